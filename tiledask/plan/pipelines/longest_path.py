"""When every action of a schedule starts and ends: the longest path over turns and data.

    rank 0     F0 F1 .. .. B0      each device goes on until it lacks a result;
    rank 1     .. F0 F1 B0 ..      down the devices, up the devices, until all is done

One function, in plain loops: Numba compiles it for schedules large enough to be worth it. Of what
is left of it where nothing takes its time on the way, lists are quick enough for some more.

What is done with weights goes on beside the work, on a stream of each device's own, in its order:

    rank 0     .... F0 F1 F2 ...... B2     a gather begins when the stream is free, a drop and a
    weights    0=== 2===     |drop0 0===   sum of gradients when the stage was last used
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from tiledask.extras import bring
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.transfers.links import RESULT, Links
from tiledask.plan.pipelines.transfers.rendezvous import meet

__all__ = ["LARGE", "LISTED", "Path", "WeightTimes", "longest_path"]

LARGE = 100_000
"""Actions of a process, over all its schedules, from which the loops are compiled: for fewer,
loading the compiler takes longer than it saves. Once they are, they serve for any number."""
LISTED = 16
"""Actions that lists go through while the loops go through one."""
_solved = [0.0]
"""Actions so far; of those in lists the LISTED-th part."""


class WeightTimes(NamedTuple):
    """How long what is done with weights takes, what it waits for, and what waits for it."""

    seconds: np.ndarray
    """float64 [n], of each that a Schedule's ``sharding`` has."""
    after: np.ndarray
    """int64 [n]: the action that must have ended; -1 for none."""
    gathered: np.ndarray
    """int64 [actions]: what must be there before each; -1 for nothing."""
    firsts: np.ndarray
    """int64 [devices + 1]: where each device's begin."""


class Path(NamedTuple):
    """When everything happens, in seconds."""

    start: np.ndarray
    """float64 [actions]."""
    end: np.ndarray
    """float64 [actions]."""
    ready: np.ndarray
    """float64 [results, stages, microbatches]: when each result is there where it is used."""
    on_weights: np.ndarray
    """float64 [2, n]: start and end of what is done with weights."""
    after: np.ndarray | None = None
    """int64 [actions]: where a transfer needs both ends, the action whose end decided the start of
    each, perhaps the other end's; -1 for none."""


def longest_path(
    schedule: Schedule,
    seconds: np.ndarray,
    together: np.ndarray,
    links: Links,
    weights: WeightTimes | None = None,
) -> Path | None:
    """The Path of a complete schedule; None if some action can never start.

    ``seconds`` [4, stages, microbatches or 1]: by kind. ``together`` [stages, microbatches or 1],
    by the forward: of a forward and a backward at once, negative for the sum of both.
    ``weights``: None if all are there. Raises DeadlockError where each of several ranks waits in
    a transfer for the next.
    """
    if links.meets:
        met = meet(schedule, seconds, together, links)
        return met and Path(*met[:3], np.empty((2, 0)), met[3])
    listed = weights is None and seconds.shape[2] == 1 and not schedule.paired.any()
    listed = listed and not (links.blocking or links.latency.any() or links.carry.any())
    if listed and _solved[0] + len(schedule) / LISTED < LARGE:
        _solved[0] += len(schedule) / LISTED
        return _by_lists(schedule, seconds[:, :, 0])
    held = WeightTimes(np.empty(0), *(np.empty(0, np.int64),) * 3) if weights is None else weights
    on_weights = np.empty((2, len(held.seconds)))
    shape = schedule.stages, schedule.microbatches
    start, end = np.empty(len(schedule)), np.empty(len(schedule))
    ready = np.full((1 + int(RESULT[schedule.kind].max(initial=0)), *shape), -1.0)
    free = np.zeros(1 + int(links.link.max(initial=0)))
    _solved[0] += len(schedule)
    solve = _compiled() if _solved[0] >= LARGE else _solve
    done = solve(
        schedule.kind,
        schedule.stage,
        schedule.microbatch,
        schedule.paired,
        schedule.turns,
        seconds,
        together,
        links.latency,
        links.carry,
        links.link,
        links.blocking,
        ready,
        free,
        *held,
        on_weights,
        start,
        end,
    )
    return Path(start, end, ready, on_weights) if done else None


def _by_lists(schedule: Schedule, seconds: np.ndarray) -> Path | None:
    """The Path where results are there as soon as they are made: the same sums and maxima.

    Each action waits for one other: a forward for the stage before, a backward for the stage
    behind, the last one's for its forward, weights' gradients for what its backward left.
    """
    kind, stage, microbatch = schedule.kind, schedule.stage, schedule.microbatch
    many, last, result = len(kind), schedule.stages - 1, RESULT[kind]
    made = np.full((3, schedule.stages, schedule.microbatches), many)
    made[result, stage, microbatch] = np.arange(many)
    turned = (kind != 0) & (kind != 3) & (stage == last)
    behind = stage + np.array([-1, 1, 1, 0])[kind] - turned
    of = np.where(turned, 0, np.array([0, 1, 1, 1])[kind])
    waits = np.where(behind < 0, many, made[of, behind, microbatch]).tolist()
    took, turns = seconds[kind, stage].tolist(), schedule.turns.tolist()
    start, end = [0.0] * many, [-1.0] * many + [0.0]
    turn, free, devices = turns[:-1], [0.0] * (len(turns) - 1), list(range(len(turns) - 1))
    left, moved = many, True
    while left and moved:
        moved = False
        for d in devices:
            begun, until, t = turn[d], turns[d + 1], free[d]
            for j in range(begun, until):
                there = end[waits[j]]
                if there < 0:
                    until = j
                    break
                if there > t:
                    t = there
                start[j] = t
                t += took[j]
                end[j] = t
            if until > begun:
                left, turn[d], free[d], moved = left - until + begun, until, t, True
        devices.reverse()
    if left:
        return None
    starts, ends = np.array(start), np.array(end[:-1])
    ready = np.full((1 + int(result.max(initial=0)), *made.shape[1:]), -1.0)
    ready[result, stage, microbatch] = ends
    return Path(starts, ends, ready, np.empty((2, 0)))


@cache
def _compiled() -> Callable[..., bool]:
    """The loops, compiled; as they are where Numba isn't there, or not for this NumPy."""
    try:
        import numba
    except ImportError as error:
        warnings.warn(
            f"schedules are timed by loops that are not compiled, some 100 times slower: {error}; "
            f"the newest Numba that knows NumPy {np.__version__} compiles them: {bring('numba')}",
            UserWarning,
            stacklevel=4,
        )
        return _solve
    compiled: Callable[..., bool] = numba.njit(cache=True)(_solve)
    return compiled


def _solve(
    kind: np.ndarray,
    stage: np.ndarray,
    microbatch: np.ndarray,
    paired: np.ndarray,
    turns: np.ndarray,
    seconds: np.ndarray,
    together: np.ndarray,
    latency: np.ndarray,
    carry: np.ndarray,
    link: np.ndarray,
    blocking: bool,
    ready: np.ndarray,
    link_free: np.ndarray,
    moves: np.ndarray,
    after: np.ndarray,
    gathered: np.ndarray,
    firsts: np.ndarray,
    on_weights: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> bool:
    """Whether every action could start; fills ``start``, ``end``, ``ready`` and ``on_weights``.

    ``link_free``: when each link has carried its last block.
    """
    devices, last, pipelines = len(turns) - 1, ready.shape[1] - 1, latency.shape[1]
    simple, sends = not blocking, latency.any() or carry.any()
    varies, pair_varies = seconds.shape[2] > 1, together.shape[1] > 1
    turn, free = turns[:-1].copy(), np.zeros(devices)
    sharded, stream, gathers = len(moves) > 0, np.zeros(devices), firsts[:-1].copy()
    left, moved, down = len(kind), True, True
    while left and moved:
        moved = False
        for step in range(devices):
            d = step if down else devices - 1 - step
            j, t = turn[d], free[d]
            while j < turns[d + 1]:
                if sharded:
                    wanted = max(gathered[j], gathered[j + 1] if paired[j] else -1)
                    while gathers[d] <= wanted:
                        g = gathers[d]
                        issued = max(stream[d], end[after[g]] if after[g] >= 0 else 0.0)
                        stream[d] = issued + moves[g]
                        on_weights[0, g], on_weights[1, g] = issued, stream[d]
                        gathers[d] = g + 1
                    if wanted >= 0:
                        t = max(t, on_weights[1, wanted])
                if simple and not paired[j]:  # the common case, without the loops over pairs
                    k, s, i = kind[j], stage[j], microbatch[j]
                    if k == 0:
                        there = ready[0, s - 1, i] if s > 0 else 0.0
                    elif k == 3:
                        there = ready[1, s, i]
                    else:
                        there = ready[1, s + 1, i] if s < last else 0.0
                        if ready[0, s, i] < 0:
                            there = -1.0
                    if there < 0:
                        break
                    if k < 3 and there > t:
                        t = there
                    start[j] = t
                    t += seconds[k, s, i if varies else 0]
                    end[j] = t
                    result = 0 if k == 0 else (2 if k == 3 else 1)
                    there = t
                    if k < 3 and sends:
                        r = i % pipelines if pipelines > 1 else 0
                        n = link[result, r, s]
                        if n >= 0:
                            gone = max(t, link_free[n]) + carry[result, r, s]
                            link_free[n] = gone
                            there = gone + latency[result, r, s]
                    ready[result, s, i] = there
                    free[d] = t
                    j += 1
                    continue
                until = j + 2 if paired[j] else j + 1
                stuck = False
                for a in range(j, until):
                    k, s, i = kind[a], stage[a], microbatch[a]
                    there = 0.0
                    if k == 0:
                        if s > 0:
                            there = ready[0, s - 1, i]
                    elif k == 3:
                        there = ready[1, s, i]
                    elif ready[0, s, i] < 0:
                        stuck = True
                    elif s < last:
                        there = ready[1, s + 1, i]
                    if there < 0:
                        stuck = True
                    elif k < 3:  # a weight gradient uses what is on its device, done before it
                        t = max(t, there)
                if stuck:
                    break
                k, s, i = kind[j], stage[j], microbatch[j]
                took = seconds[k, s, i if varies else 0]
                if paired[j]:
                    both = together[s, i if pair_varies else 0]
                    second = seconds[kind[j + 1], stage[j + 1], microbatch[j + 1] if varies else 0]
                    took = both if both >= 0 else took + second
                begin = t
                t += took
                done = t
                for a in range(j, until):
                    start[a], end[a] = begin, done
                    k, s, i = kind[a], stage[a], microbatch[a]
                    r = i % pipelines if pipelines > 1 else 0
                    if k == 3:
                        ready[2, s, i] = done
                        continue
                    result = 0 if k == 0 else 1
                    n = link[result, r, s]
                    if n < 0:
                        ready[result, s, i] = done
                    elif blocking:
                        t += latency[result, r, s] + carry[result, r, s]
                        ready[result, s, i] = t
                    else:
                        gone = max(done, link_free[n]) + carry[result, r, s]
                        link_free[n] = gone
                        ready[result, s, i] = gone + latency[result, r, s]
                free[d] = t
                j = until
            t = free[d]
            if j > turn[d]:
                left -= j - turn[d]
                turn[d] = j
                moved = True
        down = not down
    if sharded and not left:
        for d in range(devices):
            for g in range(gathers[d], firsts[d + 1]):
                issued = max(stream[d], end[after[g]] if after[g] >= 0 else 0.0)
                stream[d] = issued + moves[g]
                on_weights[0, g], on_weights[1, g] = issued, stream[d]
    return left == 0
