"""When every action of a schedule starts and ends: the longest path over turns and data.

rank 0     F0 F1 .. .. B0      each device goes on until it lacks a result;
rank 1     .. F0 F1 B0 ..      down the devices, up the devices, until all is done
"""

from typing import NamedTuple

import numpy as np

from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.transfers.links import RESULT, Links
from tiledask.plan.pipelines.transfers.rendezvous import meet

__all__ = ["Path", "longest_path"]


class Path(NamedTuple):
    """When everything happens, in seconds."""

    start: np.ndarray
    """float64 [actions]."""
    end: np.ndarray
    """float64 [actions]."""
    ready: np.ndarray
    """float64 [results, stages, microbatches]: when each result is there where it is used."""
    after: np.ndarray | None = None
    """int64 [actions]: where a transfer needs both ends, the action whose end decided the start of
    each, perhaps the other end's; -1 for none."""


def longest_path(
    schedule: Schedule, seconds: np.ndarray, together: np.ndarray, links: Links
) -> Path | None:
    """The Path of a complete schedule; None if some action can never start.

    ``seconds`` [4, stages, microbatches or 1]: by kind. ``together`` [stages, microbatches or 1],
    by the forward: of a forward and a backward at once, negative for the sum of both. Raises
    DeadlockError where each of several ranks waits in a transfer for the next.
    """
    if links.meets:
        met = meet(schedule, seconds, together, links)
        return met and Path(*met)
    kind, stage, number = schedule.kind, schedule.stage, schedule.microbatch
    many, result = len(kind), RESULT[kind]
    made, waits = _waits(schedule)
    took = seconds[kind, stage, number if seconds.shape[2] > 1 else 0]
    both = np.flatnonzero(schedule.paired)
    at_once = together[stage[both], number[both] if together.shape[1] > 1 else 0]
    took[both] = np.where(at_once < 0, took[both] + took[both + 1], at_once)
    pipeline, sends = number % schedule.pipelines, np.flatnonzero(result < 2)
    of = result[sends], pipeline[sends], stage[sends]
    link, latency, carry = np.full(many, -1), np.zeros(many), np.zeros(many)
    link[sends], latency[sends], carry[sends] = links.link[of], links.latency[of], links.carry[of]
    start, there, done = _solved(
        schedule.turns.tolist(),
        schedule.paired.tolist(),
        took.tolist(),
        waits.tolist(),
        (link.tolist(), latency.tolist(), carry.tolist()),
        links.blocking,
    )
    if not done:
        return None
    ready = np.full((1 + int(result.max(initial=0)), *made.shape[1:]), -1.0)
    ready[result, stage, number] = there[many:-1]
    return Path(np.array(start), np.array(there[:many]), ready)


def _waits(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """(which action makes each result, which moment each action waits for: position n is the end of
    action n, ``actions`` + n the arrival of its result, and the last is 0).

    Each action waits for one other: a forward for the stage before, a backward for the stage
    behind, the last one's for its forward, weights' gradients for what its backward left. All
    else that it uses comes before that.
    """
    kind, stage, number = schedule.kind, schedule.stage, schedule.microbatch
    many, last = len(kind), schedule.stages - 1
    made = np.full((3, schedule.stages, schedule.microbatches), many)
    made[RESULT[kind], stage, number] = np.arange(many)
    turns = (kind != 0) & (kind != 3) & (stage == last)
    comes_from = stage + np.array([-1, 1, 1, 0])[kind] - turns
    of = np.where(turns, 0, np.array([0, 1, 1, 1])[kind])
    maker = made[of, np.maximum(comes_from, 0), number]
    arrives = np.where(comes_from != stage, many, 0)
    return made, np.where(comes_from < 0, 2 * many, maker + arrives)


def _solved(
    turns: list[int],
    paired: list[bool],
    took: list[float],
    waits: list[int],
    ways: tuple[list[int], list[float], list[float]],
    blocking: bool,
) -> tuple[list[float], list[float], bool]:
    """(starts, the moments of `_waits`, whether every action could start)."""
    link, latency, carry = ways
    many, devices = len(took), range(len(turns) - 1)
    start, there = [0.0] * many, [-1.0] * (2 * many) + [0.0]
    turn, free, link_free = turns[:-1], [0.0] * len(devices), [0.0] * (1 + max(link, default=0))
    left, moved, order = many, True, list(devices)
    while left and moved:
        moved = False
        for d in order:
            j, until, t = turn[d], turns[d + 1], free[d]
            while j < until:
                begin = there[waits[j]]
                end = j + 2 if paired[j] else j + 1
                needed = begin if end == j + 1 else min(begin, there[waits[j + 1]])
                if needed < 0:
                    break
                if end > j + 1:
                    begin = max(begin, there[waits[j + 1]])
                if begin < t:
                    begin = t
                t = done = begin + took[j]
                for a in range(j, end):
                    start[a], there[a] = begin, done
                    if (n := link[a]) < 0:
                        there[many + a] = done
                    elif blocking:
                        t += latency[a] + carry[a]
                        there[many + a] = t
                    else:
                        link_free[n] = max(done, link_free[n]) + carry[a]
                        there[many + a] = link_free[n] + latency[a]
                j = end
            if j > turn[d]:
                left, turn[d], free[d], moved = left - j + turn[d], j, t, True
        order.reverse()
    return start, there, not left
