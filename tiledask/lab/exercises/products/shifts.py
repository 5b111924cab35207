"""Write Cannon's algorithm with shifts along rows and columns; run on square grids, and counted."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tiledask.errors import CollectiveError, RuleError
from tiledask.lab.exercises.on_ranks import run_on_ranks
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.reading import function

__all__ = ["cannon_by_shifts"]

Algorithm = Callable[..., Any]
SIDES, BLOCK = (1, 2, 3), (4, 3, 2)
"""Grids of p x p ranks, and (m, k, n) of a block's product."""
MOST = 2 * (3 * 2 + 2 * 9)
"""Blocks that move on 3 x 3: of A and of B, two rows of three in the skew, then all nine twice."""


def cannon_by_shifts() -> Exercise:
    """Write a function (row, column, a, b) -> a rank's block of C, from its blocks of A and B.

    ``row`` and ``column`` are its groups; its place in one is its coordinate along the other. It is
    run on 1 x 1, 2 x 2 and 3 x 3 ranks, with whole numbers; what it sends is counted.
    """

    def measure(answer: Algorithm) -> list[Target]:
        wrong, remarks, moved, others = 0, [], 0.0, 0
        for p in SIDES:
            off, moved, kinds = _run(answer, p)
            wrong += int(off.sum())
            others += sum(kind not in ("send", "recv") for kind in kinds)
            if off.any():
                i, j = np.argwhere(off)[0]
                remarks.append(f"rank ({i}, {j}) of {p} x {p} has another block than C's")
        return [
            Target("wrong blocks of C", 0, wrong, 0, remarks=remarks[:1]),
            Target("calls that are no shift", 0, others, 0),
            Target("blocks moved on 3 x 3", MOST, moved, None),
        ]

    return Exercise(
        name="Cannon by shifts",
        form=(
            "a function such as def cannon(row, column, a, b): return a @ b, for example "
            "answer = cannon"
        ),
        hints=(
            "On p x p ranks each multiplies p times, and after the skew all blocks move on "
            "between two products. How often is that?",
            "Row i of A moves i places to the left: along row, by the rank's place in column. "
            "And column j of B?",
            "Skew both, multiply, then row.size - 1 times: shift a and b by 1 and add their "
            "product.",
        ),
        measured=measure,
        read=function,
    )


def _run(answer: Algorithm, p: int) -> tuple[np.ndarray, float, list[str]]:
    """(which blocks of C are wrong, blocks of A and B that move, the kinds of all calls)."""
    (m, k, n), rng = BLOCK, np.random.default_rng(p)
    a, b = (rng.integers(-4, 5, shape).astype(float) for shape in ((m * p, k * p), (k * p, n * p)))

    def program(rank: Any) -> np.ndarray:
        i, j = rank.coordinates
        mine = a[m * i : m * i + m, k * j : k * j + k], b[k * i : k * i + k, n * j : n * j + n]
        return np.asarray(answer(rank.group(1), rank.group(0), *(x.copy() for x in mine)))

    try:
        done = run_on_ranks(answer, program, p, p, takes="(row, column, a, b)")
    except RuleError as error:
        if not isinstance(error.__cause__, CollectiveError):
            raise
        raise RuleError(
            f"on {p} x {p} ranks one waits for a block that none sends to it: all ranks of a row "
            f"shift equally often, each time by the same places, and so do those of a column"
        ) from error
    c, off = a @ b, np.zeros((p, p), bool)
    for (i, j), found in zip(np.ndindex(p, p), done.results, strict=True):
        if found.dtype == object:
            raise RuleError(f"rank ({i}, {j}) has no block of C back; is a return missing?")
        if found.shape != (m, n):
            raise RuleError(f"a block of C has {[m, n]} numbers, got {[*found.shape]} back")
        off[i, j] = not np.array_equal(found, c[m * i : m * i + m, n * j : n * j + n])
    # a block of A and one of B, of different sizes, move together: count in both
    sent = sum(record.sent for record in done.records)
    return off, 2 * sent / (8 * (m * k + k * n)), [record.kind for record in done.records]
