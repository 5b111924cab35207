"""Answers to tasks that JSON cannot hold: functions, layouts, placements.

The others, and what the judge has to say of all of them, are in tests/golden/judged*.json.gz, which
name these by their place. Right answers are not here: `oracles.tasks` finds one for each task.
"""

from functools import partial

import numpy as np
from oracles.tasks import cannon, every, hurried, tile_loop

import tiledask as td

ANSWERS: dict[str, list] = {
    "fastest-within": [
        td.Layout(tp=4, microbatches=32),
        td.Layout(tp=4, pp=2, microbatches=32, recompute="full"),
        td.Layout(tp=4, dp=2, microbatches=32),
        td.Layout(microbatches=32),
    ],
    "fewest-devices": [
        td.Layout(tp=4, pp=2, microbatches=32, recompute="full"),
        td.Layout(pp=2, microbatches=32),
        td.Layout(tp=4, pp=4, microbatches=32),
    ],
    "repaired-kernel": [
        hurried,
        partial(tile_loop, last_columns=False),
        partial(tile_loop, adds=False),
        np.matmul,
        lambda a, b: a @ b,
        lambda a, b, tile: a @ b,
        lambda a, b, tile: a,
    ],
    "cannon": [
        cannon(skewed=False),
        lambda row, column, a, b: a @ b,
        lambda row, column, a, b: b,
        lambda row: row,
    ],
    "scale-rule": [
        every(1),
        every(2000),
        lambda scale, good, finite: (scale, good),
        lambda scale, good, finite: scale,
        lambda scale, good, finite: (0, 0),
    ],
}
"""Task -> answers."""
ON_WORKERS: dict[str, list[tuple]] = {
    "choreography": [
        (
            {"algorithm": "summa", "panel": 64},
            "7.2 MB of A move, 10.8 of B and 0 of partial sums of C",
        ),
        (
            {"algorithm": "2.5d", "grid": (2, 1, 2)},
            "rank 0 holds A 1.8, B 1.8, fetched panels 2.7, C 0.72 MB",
        ),
        ({"algorithm": "cannon", "panel": 64}, "cannon has no option panel"),
        ({"algorithm": "sumo"}, "no algorithm 'sumo'"),
        ("summa", "an answer is a dict of td.matmul's arguments: algorithm"),
    ],
}
"""Task on workers -> (an answer that does not solve it, words of the reason)."""
