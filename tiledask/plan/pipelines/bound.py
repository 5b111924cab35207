"""What no order could beat, and what held this one up.

lower bound    device d:  the way to it | all of its work | the way back from it
critical path  the chain of actions and hops, without a gap, that ends last
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.longest_path import longest_path
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.transfers.links import RESULT, Links
from tiledask.plan.pipelines.transfers.rendezvous import work_of
from tiledask.plan.units import format_seconds

__all__ = ["Bound", "CriticalPath", "Evidence", "critical_path", "lower_bound"]


class Bound(NamedTuple):
    """A makespan that no order of the same actions on the same devices goes below."""

    seconds: float
    why: str


@dataclass(frozen=True)
class Evidence:
    """What a simulated Timeline came from, for questions that are asked later."""

    schedule: Schedule
    seconds: np.ndarray
    """[4, stages, microbatches or 1]: of each kind."""
    together: np.ndarray
    """[stages, microbatches or 1]: of a forward and a backward at once; negative for the sum."""
    links: Links

    def bound(self) -> Bound:
        return lower_bound(self.schedule, self.seconds, self.links, self.together)

    def critical_path(self) -> "CriticalPath":
        return critical_path(self.schedule, self.seconds, self.links, self.together)


def lower_bound(
    schedule: Schedule, seconds: np.ndarray, links: Links, together: np.ndarray
) -> Bound:
    """The Bound of a complete schedule, from its actions, places and times alone.

    A device can start when the first micro-batch has come down to it, then has all its work to
    do, and after its last action the gradient still has to go up (after a weight gradient, which
    nobody waits for, nothing). And a micro-batch alone has to go all the way down and up.
    Transfers that occupy a device are not counted as its work. Arguments as in `longest_path`.

    With one stage per device it is the closed forms' bound (closed_form.py); ZB-V attains it.
    """
    devices, arriving = schedule.devices, links.arriving
    keys = schedule.stage.astype(np.int64) * len(KINDS) + schedule.kind
    counts = np.bincount(keys, minlength=schedule.stages * len(KINDS))
    there = counts.reshape(schedule.stages, len(KINDS)) > 0
    # until the gradient of a stage's input: by B or by I, the shorter if it has both
    _, B, I, _ = seconds
    split, whole_back = there[:, 2:3], there[:, 1:2]
    gradient = np.where(split & whole_back, np.minimum(B, I), np.where(split, I, B))
    before, after, lone = np.full(devices, np.inf), np.full(devices, np.inf), Bound(0.0, "no work")
    for r, place in enumerate(schedule.places):
        mine = slice(r, None, schedule.pipelines) if seconds.shape[2] > 1 else slice(None)
        forward, back = seconds[0][:, mine], gradient[:, mine]
        if not forward.size:
            continue
        down = np.cumsum(forward + arriving[0, r, :, None], axis=0)  # F done [stages, m or 1]
        reach, alone, way_back = down - forward, down[-1], down[-1] - down
        if schedule.trains:
            up = np.cumsum(back + np.roll(arriving[1, r], 1)[:, None], axis=0)
            way_back = np.where(there[:, 3:], 0.0, up - back)
            alone = down[-1] + up[-1] + np.where(there[0, 3], seconds[3, 0][mine], 0.0)
        np.minimum.at(before, np.array(place), reach.min(axis=1))
        np.minimum.at(after, np.array(place), way_back.min(axis=1))
        i = int(np.argmax(alone))
        if alone[i] > lone.seconds:
            number = r + i * schedule.pipelines
            why = f"micro-batch {number} alone, all the way: {format_seconds(alone[i])}"
            lone = Bound(float(alone[i]), why)
    work = np.bincount(schedule.device, work_of(schedule, seconds, together), minlength=devices)
    whole = np.where(work > 0, before + work + after, 0.0)
    d = int(np.argmax(whole))
    if lone.seconds > whole[d]:
        return lone
    parts = (format_seconds(part[d]) for part in (before, work, after))
    return Bound(
        float(whole[d]),
        "device {}: {} until work reaches it, {} of work, {} from it to the end".format(
            d + 1, *parts
        ),
    )


@dataclass(frozen=True, repr=False)
class CriticalPath:
    """The actions that decided the makespan, first to last; each starts when the last one's
    result was there, or its device free."""

    actions: tuple[Action, ...]
    compute: float
    """Seconds of the actions."""
    latency: float
    """Seconds in which a result was on its way between two of them."""
    by_device: dict[int, float]
    """Seconds of compute on the path, for each device that has any."""

    @property
    def binds(self) -> str:
        """What has the largest part: "device 3", counted from 1, or "latency"."""
        device, most = max(self.by_device.items(), key=lambda x: x[1], default=(0, 0.0))
        return "latency" if self.latency > most else f"device {device + 1}"

    def __repr__(self) -> str:
        return (
            f"CriticalPath({len(self.actions)} actions, {format_seconds(self.compute)} of compute "
            f"on {len(self.by_device)} devices, {format_seconds(self.latency)} of latency, "
            f"most on {self.binds})"
        )


def critical_path(
    schedule: Schedule, seconds: np.ndarray, links: Links, together: np.ndarray
) -> CriticalPath:
    """The CriticalPath of a schedule that can run; arguments as in `longest_path`.

    Where several chains end at once, it follows the device's own turn. All that lies between two
    actions counts as latency: the way, a link that carries another block, a device that sends.
    """
    path = longest_path(schedule, seconds, together, links)
    if path is None:
        raise ScheduleError("a schedule that cannot run has no critical path; see td.validate")
    start, end, paired = path.start, path.end, schedule.paired
    made_at = np.zeros(path.ready.shape, np.int64)  # the position of who makes each result
    made_at[RESULT[schedule.kind], schedule.stage, schedule.microbatch] = np.arange(len(schedule))
    firsts = set(schedule.turns[:-1].tolist())
    positions: list[int] = []
    latency = 0.0
    by_device: dict[int, float] = defaultdict(float)
    at = int(np.argmax(end))
    while True:
        first = at - 1 if at not in firsts and paired[at - 1] else at
        both = range(first, first + 2 if paired[first] else first + 1)
        positions += reversed(both)
        by_device[int(schedule.device[at])] += float(end[first] - start[first])
        waited = []
        if path.after is not None:
            waited += [(0.0, int(path.after[first]))] if path.after[first] >= 0 else []
        elif first not in firsts:
            waited.append((_free_after(schedule, first - 1, end, links), first - 1))
        for a in both if path.after is None else ():
            waited += _arrivals(schedule, a, path.ready, made_at)
        if not waited:
            break
        _, before = max(waited, key=lambda w: w[0])
        latency += float(start[first] - end[before])
        at = before
    actions = tuple(schedule.action(j) for j in reversed(positions))
    return CriticalPath(actions, sum(by_device.values()), latency, dict(sorted(by_device.items())))


def _free_after(schedule: Schedule, at: int, end: np.ndarray, links: Links) -> float:
    """When the device is free after this action: once it has sent, if it does nothing meanwhile."""
    if not links.blocking:
        return float(end[at])
    block = (at - 1, at) if at and schedule.paired[at - 1] else (at,)
    results = ((int(RESULT[schedule.kind[a]]), a) for a in block)
    sent = (
        links.hop[result, schedule.microbatch[a] % schedule.pipelines, schedule.stage[a]]
        for result, a in results
        if result < 2
    )
    return float(end[at] + sum(sent))


def _arrivals(
    schedule: Schedule, at: int, ready: np.ndarray, made_at: np.ndarray
) -> list[tuple[float, int]]:
    """(seconds, position of who made it) of each result from another stage that it uses."""
    k, s, i = schedule.kind[at], schedule.stage[at], schedule.microbatch[at]
    if k == 0:
        used = (0, s - 1, i) if s else None
    else:
        used = (1, s + 1, i) if k < 3 and s + 1 < schedule.stages else None
    return [(float(ready[used]), int(made_at[used]))] if used else []
