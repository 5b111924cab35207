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
