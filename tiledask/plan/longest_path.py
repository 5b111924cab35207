"""When every action of a schedule starts and ends: the longest path over turns and data.

    device 0   F0 F1 .. .. B0      each device goes on until it lacks a result;
    device 1   .. F0 F1 B0 ..      down the devices, up the devices, until all is done

One function, in plain loops: Numba compiles it for schedules large enough to be worth it.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

__all__ = ["LARGE", "RESULT", "longest_path"]

LARGE = 20_000
"""Actions from which the loops are compiled; before, compiling takes longer than it saves."""
RESULT = np.array([0, 1, 1, 2], np.int8)
"""By kind (F, B, I, W): F's activations, B's or I's gradient of the input, W's of the weights."""


def longest_path(
    kind: np.ndarray,
    stage: np.ndarray,
    microbatch: np.ndarray,
    turns: np.ndarray,
    seconds: np.ndarray,
    arriving: np.ndarray,
    shape: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray] | None:
    """(start, end) of every action, float64 [actions] each; None if some can never start.

    ``kind``, ``stage``, ``microbatch``, ``turns``: the columns of a Schedule, complete and without
    repetitions. ``seconds`` [4, stages, microbatches or 1]: by kind. ``arriving`` [2, stages]:
    seconds from the stage before and from the stage behind. ``shape``: (stages, micro-batches).
    """
    start, end = np.empty(len(kind)), np.empty(len(kind))
    ready = np.full((1 + int(RESULT[kind].max(initial=0)), *shape), -1.0)
    solve = _compiled() if len(kind) >= LARGE else _solve
    done = solve(kind, stage, microbatch, turns, seconds, arriving, ready, start, end)
    return (start, end) if done else None


@cache
def _compiled() -> Callable:
    import numba

    return numba.njit(cache=True)(_solve)


def _solve(kind, stage, microbatch, turns, seconds, arriving, ready, start, end):
    """Whether every action could start; fills ``start`` and ``end``.

    ``ready`` [results, stages, microbatches]: when each result is there, -1 before.
    """
    devices, last = len(turns) - 1, ready.shape[1] - 1
    varies = seconds.shape[2] > 1
    turn, free = turns[:-1].copy(), np.zeros(devices)
    left, moved, down = len(kind), True, True
    while left and moved:
        moved = False
        for step in range(devices):
            d = step if down else devices - 1 - step
            j, t = turn[d], free[d]
            while j < turns[d + 1]:
                k, s, i = kind[j], stage[j], microbatch[j]
                if k == 0:
                    result = 0
                    if s > 0:
                        there = ready[0, s - 1, i]
                        if there < 0:
                            break
                        t = max(t, there + arriving[0, s])
                elif k < 3:
                    result = 1
                    own = ready[0, s, i]
                    if own < 0:
                        break
                    t = max(t, own)
                    if s < last:
                        there = ready[1, s + 1, i]
                        if there < 0:
                            break
                        t = max(t, there + arriving[1, s])
                else:
                    result = 2
                    own = ready[1, s, i]
                    if own < 0:
                        break
                    t = max(t, own)
                start[j] = t
                t += seconds[k, s, i if varies else 0]
                end[j] = ready[result, s, i] = free[d] = t
                j += 1
            t = free[d]
            if j > turn[d]:
                left -= j - turn[d]
                turn[d] = j
                moved = True
        down = not down
    return left == 0
