"""What no order could beat, and what held this one up.

lower bound    device d:  the way to it | all of its work | the way back from it
critical path  the chain of actions and hops, without a gap, that ends last
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tiledask.plan.longest_path import RESULT
from tiledask.plan.schedule import KINDS, Action, Schedule
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
    arriving: np.ndarray
    """[2, stages]: seconds from the stage before and from the stage behind."""

    def bound(self) -> Bound:
        return lower_bound(self.schedule, self.seconds, self.arriving)

    def critical_path(self, start: np.ndarray, end: np.ndarray) -> "CriticalPath":
        return critical_path(self.schedule, start, end, self.arriving)


def lower_bound(schedule: Schedule, seconds: np.ndarray, arriving: np.ndarray) -> Bound:
    """The Bound of a complete schedule, from its actions, places and times alone.

    A device can start when the first micro-batch has come down to it, then has all its work to
    do, and after its last action the gradient still has to go up (after a weight gradient, which
    nobody waits for, nothing). And a micro-batch alone has to go all the way down and up.
    ``seconds`` and ``arriving`` as in `longest_path`.

    With one stage per device it is the closed forms' bound (plan/closed_form.py); ZB-V attains it.
    """
    place, devices, stages = np.array(schedule.place), schedule.devices, schedule.stages
    keys = schedule.stage.astype(np.int64) * len(KINDS) + schedule.kind
    counts = np.bincount(keys, minlength=stages * len(KINDS)).reshape(stages, len(KINDS))
    forward, gradient = seconds[0], _gradient(seconds, counts > 0)
    down = np.cumsum(forward + arriving[0, :, None], axis=0)  # [stages, m or 1]: F done there
    reach = down - forward
    if schedule.trains:
        up = np.cumsum(gradient + np.roll(arriving[1], 1)[:, None], axis=0)
        back = np.where(counts[:, 3:] > 0, 0.0, up - gradient)
        lone = down[-1] + up[-1] + np.where(counts[0, 3], seconds[3, 0], 0.0)
    else:
        back, lone = down[-1] - down, down[-1]
    work = np.bincount(schedule.device, _durations(schedule, seconds), minlength=devices)
    before, after = np.full(devices, np.inf), np.full(devices, np.inf)
    np.minimum.at(before, place, reach.min(axis=1))
    np.minimum.at(after, place, back.min(axis=1))
    whole = np.where(work > 0, before + work + after, 0.0)
    d, i = int(np.argmax(whole)), int(np.argmax(lone))
    if lone[i] > whole[d]:
        return Bound(
            float(lone[i]), f"micro-batch {i} alone, all the way: {format_seconds(lone[i])}"
        )
    parts = (format_seconds(part[d]) for part in (before, work, after))
    return Bound(
        float(whole[d]),
        "device {}: {} until work reaches it, {} of work, {} from it to the end".format(d, *parts),
    )


def _gradient(seconds: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Seconds until the gradient of a stage's input: of B or of I, the shorter if it has both."""
    _, B, I, _ = seconds
    split, whole = there[:, 2:3], there[:, 1:2]
    return np.where(split & whole, np.minimum(B, I), np.where(split, I, B))


def _durations(schedule: Schedule, seconds: np.ndarray) -> np.ndarray:
    number = schedule.microbatch if seconds.shape[2] > 1 else 0
    return seconds[schedule.kind, schedule.stage, number]


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
        """What has the largest part: "device 3", or "latency"."""
        device, most = max(self.by_device.items(), key=lambda x: x[1], default=(0, 0.0))
        return "latency" if self.latency > most else f"device {device}"

    def __repr__(self) -> str:
        return (
            f"CriticalPath({len(self.actions)} actions, {format_seconds(self.compute)} of compute "
            f"on {len(self.by_device)} devices, {format_seconds(self.latency)} of latency, "
            f"most on {self.binds})"
        )


def critical_path(
    schedule: Schedule, start: np.ndarray, end: np.ndarray, arriving: np.ndarray
) -> CriticalPath:
    """The CriticalPath of a schedule whose actions ran from ``start`` to ``end`` (longest_path).

    Where several chains end at once, it follows the device's own turn.
    """
    shape = 1 + int(RESULT[schedule.kind].max()), schedule.stages, schedule.microbatches
    made_at = np.zeros(shape, np.int64)  # the position of the action that makes each result
    made_at[RESULT[schedule.kind], schedule.stage, schedule.microbatch] = np.arange(len(schedule))
    firsts = set(schedule.turns[:-1].tolist())
    at, path, latency = int(np.argmax(end)), [], 0.0
    while True:
        path.append(at)
        if start[at] == 0.0:
            break
        if at not in firsts and end[at - 1] == start[at]:
            at -= 1
            continue
        waited = _inputs(schedule, at, made_at, arriving)
        at, hop = next((b, hop) for b, hop in waited if end[b] + hop == start[at])
        latency += hop
    took = [float(end[j] - start[j]) for j in path]
    by_device: Counter = Counter()
    for j, seconds in zip(path, took, strict=True):
        by_device[int(schedule.device[j])] += seconds
    actions = (
        Action(KINDS[schedule.kind[j]], int(schedule.stage[j]), int(schedule.microbatch[j]))
        for j in reversed(path)
    )
    return CriticalPath(tuple(actions), sum(took), latency, dict(sorted(by_device.items())))


def _inputs(schedule: Schedule, at: int, made_at: np.ndarray, arriving: np.ndarray):
    """(position, seconds on its way) of each result that the action at this position uses."""
    k, s, i = schedule.kind[at], schedule.stage[at], schedule.microbatch[at]
    if k == 0:
        return [(int(made_at[0, s - 1, i]), float(arriving[0, s]))] if s else []
    if k == 3:
        return [(int(made_at[1, s, i]), 0.0)]
    own = [(int(made_at[0, s, i]), 0.0)]
    if s + 1 < schedule.stages:
        own.append((int(made_at[1, s + 1, i]), float(arriving[1, s])))
    return own
