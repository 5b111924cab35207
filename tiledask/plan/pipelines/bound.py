"""What no order could beat, and what held this one up.

lower bound    device d:  the way to it | all of its work | the way back from it
critical path  the chain of actions and hops, without a gap, that ends last
"""

from operator import itemgetter
from typing import NamedTuple

import numpy as np

from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.units import format_seconds

__all__ = ["Bound", "CriticalPath", "critical_path", "lower_bound"]


class Bound(NamedTuple):
    """A makespan that no order of the same actions on the same devices goes below."""

    seconds: float
    why: str


def lower_bound(schedule: Schedule, costs: PipelineCosts) -> Bound:
    """The Bound of a complete schedule, from its actions, places and times alone.

    A device can start when the first micro-batch has come down to it, then has all its work to
    do, and after its last action the gradient still has to go up (after a weight gradient, which
    nobody waits for, nothing). And a micro-batch alone has to go all the way down and up.

    With one stage per device it is the closed forms' bound (closed_form.py); ZB-V attains it.
    """
    devices, stages, seconds = schedule.devices, schedule.stages, costs.seconds
    keys = schedule.stage.astype(np.int64) * len(KINDS) + schedule.kind
    there = np.bincount(keys, minlength=stages * len(KINDS)).reshape(stages, len(KINDS), 1) > 0
    # until the gradient of a stage's input: by B or by I, the shorter if it has both
    _, B, I, _ = seconds
    gradient = np.where(there[:, 2], np.where(there[:, 1], np.minimum(B, I), I), B)
    before, after, lone = np.full(devices, np.inf), np.full(devices, np.inf), Bound(0.0, "no work")
    for r, place in enumerate(schedule.places):
        mine = slice(r, None, schedule.pipelines) if seconds.shape[2] > 1 else slice(None)
        forward, back, hop = seconds[0][:, mine], gradient[:, mine], costs.hop[r, :-1, None]
        if not forward.size:
            continue
        down = np.cumsum(forward + hop, axis=0)  # F done [stages, m or 1]
        reach, alone, way_back = down - forward, down[-1], down[-1] - down
        if schedule.trains:
            up = np.cumsum(back + hop, axis=0)
            way_back = np.where(there[:, 3], 0.0, up - back)
            alone = down[-1] + up[-1] + np.where(there[0, 3], seconds[3, 0][mine], 0.0)
        np.minimum.at(before, np.array(place), reach.min(axis=1))
        np.minimum.at(after, np.array(place), way_back.min(axis=1))
        i = int(np.argmax(alone))
        if alone[i] > lone.seconds:
            number = r + i * schedule.pipelines
            why = f"micro-batch {number} alone, all the way: {format_seconds(alone[i])}"
            lone = Bound(float(alone[i]), why)
    work = np.bincount(schedule.device, costs.of_actions(schedule), minlength=devices)
    whole = np.where(work > 0, before + work + after, 0.0)
    d = int(np.argmax(whole))
    if lone.seconds > whole[d]:
        return lone
    way, all_work, back_way = (format_seconds(part[d]) for part in (before, work, after))
    why = f"{way} until work reaches it, {all_work} of work, {back_way} from it to the end"
    return Bound(float(whole[d]), f"device {d}: {why}")


class CriticalPath(NamedTuple):
    """The actions that decided the makespan, first to last; each starts when the last one's
    result was there, or its device free."""

    actions: tuple[Action, ...]
    binds: str
    """What has the largest part: "device 2", or "latency"."""


def critical_path(
    schedule: Schedule, costs: PipelineCosts, start: list[float], end: list[float]
) -> CriticalPath:
    """The CriticalPath of a schedule whose actions start and end so.

    Where several chains end at once, it follows the device's own turn.
    """
    actions, paired, device = list(schedule), schedule.paired.tolist(), schedule.device.tolist()
    firsts, maker = set(schedule.turns[:-1].tolist()), schedule.maker.tolist()
    way = costs.of_ways(schedule).tolist()
    path, parts, latency = list[Action](), [0.0] * schedule.devices, 0.0
    at = int(np.argmax(end))
    while True:
        first = at - 1 if at not in firsts and paired[at - 1] else at
        both = [first, first + 1] if paired[first] else [first]
        path += (actions[j] for j in reversed(both))
        parts[device[at]] += end[first] - start[first]
        waited = [] if first in firsts else [(end[first - 1], first - 1)]
        waited += [(end[maker[a]] + way[a], maker[a]) for a in both if maker[a] >= 0]
        if not waited:
            most = max(parts)
            binds = "latency" if latency > most else f"device {parts.index(most)}"
            return CriticalPath(tuple(reversed(path)), binds)
        _, at = max(waited, key=itemgetter(0))
        latency += start[first] - end[at]
