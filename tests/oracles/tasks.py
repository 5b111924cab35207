"""Every task there is, made once, and an answer to each that is found and not typed."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate, combinations
from typing import Any

import numpy as np

import tiledask as td
from tiledask.lab.exercises.layers import PLACES
from tiledask.lab.puzzles import puzzle_names
from tiledask.plan.collectives.rows import split_rows
from tiledask.plan.inputs.model import Model

GB = 10**9
GPT = Model(hidden=2048, layers=24, heads=16, ffn=8192, vocab=51200, learned_pos=2048, name="gpt")
"""1.3 billion parameters: 21 GB of states at 16 bytes."""
SMALL = td.load_cluster("8xA10")
"""Two nodes of 4 x 24 GB."""
ROWS = ((3, 3, 3, 2), 5, 2, (2, 2))


def text(name: str, stages: int, microbatches: int, **options: int) -> str:
    """The order of a schedule, as an answer is written."""
    return td.schedule(name, stages, microbatches, **options).to_text()


def tile_loop(a, b, tile, *, last_columns=True, adds=True):
    """A tile loop in NumPy; without the last columns of tiles, or without adding up."""
    (m, k), n, (tm, tn, tk) = a.shape, b.shape[1], tile
    c = np.zeros((m, n), a.dtype)
    for i in range(0, m, tm):
        for j in range(0, n if last_columns else n - tn + 1, tn):
            for p in range(0, k, tk):
                part = a[i : i + tm, p : p + tk] @ b[p : p + tk, j : j + tn]
                c[i : i + tm, j : j + tn] = part + adds * c[i : i + tm, j : j + tn]
    return c


def hurried(a, b, tile):
    return tile_loop(a, b, tile, last_columns=False, adds=False)


ABOUT: dict[str, dict[str, Any]] = {
    "fastest-within": {"model": GPT, "cluster": SMALL, "batch": 32, "room": 6 * GB},
    "fewest-devices": {"model": GPT, "cluster": SMALL, "batch": 32},
}
"""What exercises are about here, where it is not what they are about by themselves."""
EXERCISES = td.tasks.exercise_names()


@cache
def task(name: str) -> Any:
    """The puzzle or exercise of this name."""
    return td.task(name, **ABOUT.get(name, {}))


# -- answers that are found ----------------------------------------------------------------------


def first(exercise: Any, answers: Iterator[Any]) -> Any:
    """The first of ``answers`` that meets every target."""
    return next(answer for answer in answers if exercise.result(answer))


def searched(exercise: Any) -> td.Layout:
    plans = td.search(GPT, SMALL, 32)
    return first(exercise, (plans[n].layout for n in range(plans.counts["fits"])))


def on_fewest(exercise: Any) -> td.Layout:
    plans = (td.search(GPT, SMALL, 32, devices=[n]) for n in range(1, 9))
    return next(plan.best.layout for plan in plans if plan.counts["fits"])


def cannon(skewed=True, by=1, further=0):
    """Cannon's algorithm by shifts; with no skew, other shifts, or some more of them."""

    def algorithm(row, column, a, b):
        def shift(line, block, by):
            p = line.size
            return line.sendrecv(block, (line.rank - by) % p, (line.rank + by) % p)

        if skewed and column.rank:
            a = shift(row, a, column.rank)
        if skewed and row.rank:
            b = shift(column, b, row.rank)
        c = a @ b
        for _ in range(row.size - 1 + further if row.size > 1 else 0):
            a, b = shift(row, a, by), shift(column, b, by)
            c = c + a @ b * (_ < row.size - 1)
        return c

    return algorithm


FORTH = (
    ("send x1 to 1 @to_1", "send x1 to 1 @to_1\n    send x1 to 2 @to_2"),
    ("of rank 2:", "of rank 2: x1 1024 B,"),
    ("kept2 = do forward x2", "x1 = recv from 0 @from_0\n    kept2 = do forward x2 x1"),
)
BACK = (
    ("of rank 2:", "of rank 2: ds 1024 B,"),
    ("dx2 = do backward kept2", "dx2 ds = do backward kept2"),
    ("send dx2 to 1 @to_1", "send dx2 to 1 @to_1\n    send ds to 0 @to_0"),
    ("of rank 0:", "of rank 0: ds 1024 B,"),
    ("do backward kept0 dx1", "ds = recv from 2 @from_2\n    do backward kept0 dx1 ds"),
)
"""What a skip connection changes in a pipeline's program, forward and backward."""


def skipping(*changes):
    """The program of three ranks with these changes; with a skip connection if there are none."""
    order = td.schedule("1f1b", 3, 4)
    said = str(td.program(order, block_bytes=1024, activation=4096))
    for old, new in changes or FORTH + BACK:
        assert said.count(old) == 1, old
        said = said.replace(old, new)
    return said


def rows_read(_: Any) -> dict[int, tuple[int, ...]]:
    slabs, ends = split_rows(*ROWS).slabs, (0, *accumulate(ROWS[0]))
    own = [set(range(*ends[rank : rank + 2])) for rank in range(len(slabs))]
    return {
        rank: tuple(sorted(set(range(slab.start, slab.stop)) - own[rank]))
        for rank, slab in enumerate(slabs)
    }


def every(interval: int) -> Callable:
    """Half after an overflow, twice after as many steps without."""

    def rule(scale, good, finite):
        if not finite:
            return scale / 2, 0
        return (2 * scale, 0) if good + 1 == interval else (scale, good + 1)

    return rule


def furthest_apart(exercise: Any) -> str:
    return max(exercise.runs, key=lambda name: exercise.again(name).max())


FOUND: dict[str, Callable[[Any], Any]] = {
    **{name: lambda puzzle: puzzle.solve() for name in puzzle_names()},
    "fastest-within": searched,
    "fewest-devices": on_fewest,
    "repaired-kernel": lambda _: tile_loop,
    "skip-connection": lambda _: skipping(),
    "cannon": lambda _: cannon(),
    "borrowed-rows": rows_read,
    "fewest-sums": lambda exercise: first(exercise, combinations(PLACES, 2)),
    "faulty-run": furthest_apart,
    "scale-rule": lambda exercise: first(exercise, map(every, (8, 6, 4, 2))),
}
"""Task -> who finds an answer that meets every target."""
