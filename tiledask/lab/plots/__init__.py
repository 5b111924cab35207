"""Figures of timelines, memory, traffic, owners, layers, idle time, products, plans, tiles.

Each function takes plain values and returns a matplotlib Figure that belongs to no window: save
it, or let a notebook show it. matplotlib is loaded by the first figure, not by this import. What
one notebook draws once is plain matplotlib in its cell, on a `canvas`, under the same `look`.

style, picture  the look that all share, and the Figure that draws itself
primitives      what figures are made of: boxes in lanes and in planes, notes, legends
gantt           who did what when
timelines       idle time pushed together, memory over time, tasks in slots
memory_bars     bytes by tensor class
step_breakdown  the time of a step
plans           the map of a search, and its front
curves          curves over sizes; losses of trainings
arrays          formulas over ranks, owners of blocks, matrices
products        a product with its operands at its edges; a block, a tile, a step of the loop
ranks           layers on devices, groups of ranks, rows of an image, bytes between ranks
kernels         the roofline of every level, tiles within tiles
sliders         a figure that is drawn again as the reader moves sliders
"""

from tiledask.lab.plots.arrays import Blocks, matrices, owners, placements
from tiledask.lab.plots.curves import curves, losses
from tiledask.lab.plots.gantt import gantt
from tiledask.lab.plots.kernels import roofline, tile_levels
from tiledask.lab.plots.memory_bars import memory_bars
from tiledask.lab.plots.plans import feasibility, pareto, short_layout
from tiledask.lab.plots.products import corner, tile_step, two_levels
from tiledask.lab.plots.ranks import (
    layers_on_devices,
    rank_groups,
    rows_on_ranks,
    traffic_matrix,
)
from tiledask.lab.plots.sliders import sliders
from tiledask.lab.plots.step_breakdown import step_breakdown
from tiledask.lab.plots.style import BLUE, RED, canvas, look
from tiledask.lab.plots.timelines import idle_blocks, memory_timeline, slots

__all__ = [
    "BLUE",
    "RED",
    "Blocks",
    "canvas",
    "corner",
    "curves",
    "feasibility",
    "gantt",
    "idle_blocks",
    "layers_on_devices",
    "look",
    "losses",
    "matrices",
    "memory_bars",
    "memory_timeline",
    "owners",
    "pareto",
    "placements",
    "rank_groups",
    "roofline",
    "rows_on_ranks",
    "short_layout",
    "sliders",
    "slots",
    "step_breakdown",
    "tile_levels",
    "tile_step",
    "traffic_matrix",
    "two_levels",
]
