"""The one loop of a simulation: every device goes on until it lacks a result.

rank 0     F0 F1 .. .. B0      down the devices and up the devices until all is done;
rank 1     .. F0 F1 B0 ..      where it stops before that is the deadlock
"""

from typing import NamedTuple

import numpy as np

from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import Schedule

__all__ = ["Walk", "is_complete", "makers", "sources", "walk"]


class Walk(NamedTuple):
    """When everything happens, seconds; actions by their positions, device after device."""

    start: list[float]
    end: list[float]
    maker: list[int]
    """The action whose result each waits for; none at or above the number of actions."""
    there: list[float]
    """When that result is there."""
    stands: list[int]
    """Where devices stand for good; empty if the order can run."""


def is_complete(schedule: Schedule) -> bool:
    """Whether every stage sees every micro-batch forward once and, in training, backward once,
    each on the device that holds it, and pairs are a forward and a backward."""
    kind, stage, number = schedule.kind, schedule.stage, schedule.microbatch
    stages, many = schedule.stages, schedule.microbatches
    if stages * many > len(kind) or not len(kind):  # before anything is made for each of them
        return False
    if min(stage.min(), number.min()) < 0 or stage.max() >= stages:
        return False
    if (np.array(schedule.places)[number % schedule.pipelines, stage] != schedule.device).any():
        return False
    where = (kind.astype(np.int64) * stages + stage) * many + number
    forward, whole, inputs, weights = np.bincount(where, minlength=4 * stages * many).reshape(4, -1)
    backward = whole + inputs - (1 if schedule.trains else 0)
    if (forward != 1).any() or (inputs != weights).any() or backward.any():
        return False
    first = np.flatnonzero(schedule.paired)
    second = np.minimum(first + 1, len(kind) - 1)
    gradient = (kind[second] == 1) | (kind[second] == 2)
    same = schedule.device[first] == schedule.device[second]
    return bool(((kind[first] == 0) & gradient & same).all())


def sources(kind: np.ndarray, stage: np.ndarray, microbatch: np.ndarray) -> np.ndarray:
    """int64 [actions, 2]: the positions of the actions whose results each uses, -1 for none.

    The rule of needs.py: activations from the stage before; a backward's own activations and the
    gradient from the stage behind; for W what I left.
    """
    shape = int(stage.max(initial=0)) + 3, int(microbatch.max(initial=0)) + 1
    activations, gradient = np.full(shape, -1), np.full(shape, -1)  # stage s at row s + 1
    forward, backward = kind == 0, (kind == 1) | (kind == 2)
    activations[stage[forward] + 1, microbatch[forward]] = np.flatnonzero(forward)
    gradient[stage[backward] + 1, microbatch[backward]] = np.flatnonzero(backward)
    own = np.where(backward, activations[stage + 1, microbatch], gradient[stage + 1, microbatch])
    own = np.where(forward, activations[stage, microbatch], own)
    return np.stack([own, np.where(backward, gradient[stage + 2, microbatch], -1)], axis=1)


def makers(schedule: Schedule) -> np.ndarray:
    """int64 [actions]: the position of the one action whose result each waits for, 2 x actions for
    none: what else it uses comes before that."""
    own, behind = sources(schedule.kind, schedule.stage, schedule.microbatch).T
    maker: np.ndarray = np.where(behind < 0, own, behind)
    return np.where(maker < 0, 2 * len(maker), maker)


def walk(schedule: Schedule, costs: PipelineCosts) -> Walk:
    """The Walk of a schedule that is complete."""
    kind, stage, number = schedule.kind, schedule.stage, schedule.microbatch
    many, maker = len(kind), makers(schedule)
    # moments: ends, arrivals, 0
    travels = (maker < many) & (stage[np.minimum(maker, many - 1)] != stage)
    moment = np.where(travels, maker + many, maker)
    boundary, pipeline = stage + (kind == 0), number % schedule.pipelines
    boundary[kind == 3] = 0  # what W makes goes nowhere
    link = np.full(many, -1)
    if costs.carry.any():
        places = np.pad(np.array(schedule.places), ((0, 0), (1, 1)), mode="edge")
        source, target = (places[pipeline, boundary + after] for after in (0, 1))
        back = kind != 0
        source[back], target[back] = target[back], source[back]
        link = np.where(source != target, source * schedule.devices + target, -1)
    start, there, stands = _solved(
        schedule.turns.tolist(),
        schedule.paired.tolist(),
        costs.of_actions(schedule).tolist(),
        moment.tolist(),
        link.tolist(),
        costs.latency[pipeline, boundary].tolist(),
        costs.carry[pipeline, boundary].tolist(),
    )
    arrived = [there[m] for m in moment.tolist()]
    return Walk(start, there[:many], maker.tolist(), arrived, stands)


def _solved(
    turns: list[int],
    paired: list[bool],
    took: list[float],
    moment: list[int],
    link: list[int],
    latency: list[float],
    carry: list[float],
) -> tuple[list[float], list[float], list[int]]:
    """(starts, the moments of `walk`, where devices stand)."""
    many, devices = len(took), range(len(turns) - 1)
    start, there = [0.0] * many, [-1.0] * (2 * many) + [0.0]
    at, free, link_free = turns[:-1], [0.0] * len(devices), [0.0] * (1 + max(link, default=0))
    order, moved = list(devices), True
    while moved:
        moved = False
        for d in order:
            j, until, t = at[d], turns[d + 1], free[d]
            while j < until:
                begin, after = there[moment[j]], j + 1
                if begin < 0:
                    break
                took_now = took[j]
                if paired[j]:
                    other = there[moment[j + 1]]
                    if other < 0:
                        break
                    begin, after, took_now = max(begin, other), j + 2, took_now + took[j + 1]
                if begin < t:
                    begin = t
                t = begin + took_now
                for a in range(j, after):
                    start[a], there[a] = begin, t
                    if (n := link[a]) < 0:
                        there[many + a] = t + latency[a]
                    else:
                        link_free[n] = max(t, link_free[n]) + carry[a]
                        there[many + a] = link_free[n] + latency[a]
                j = after
            if j > at[d]:
                at[d], free[d], moved = j, t, True
        order.reverse()
    return start, there, [at[d] for d in devices if at[d] < turns[d + 1]]
