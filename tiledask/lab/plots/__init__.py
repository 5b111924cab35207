"""Figures of timelines, memory, traffic, owners, layers, idle time, products, plans, tiles.

Each function takes plain values and returns a matplotlib Figure that belongs to no window: save
it, or let a notebook show it. matplotlib is loaded by the first figure, not by this import. What
one notebook draws once is plain matplotlib in its cell, on a `canvas`, under the same `look`.

style, picture  the look that all share, and the Figure that draws itself
primitives      what figures are made of: boxes in lanes and in planes, notes, legends
gantt           who did what when; idle time, memory over time, tasks in slots
plans           bytes by tensor class, the time of a step, the map of a search
curves          curves over sizes; losses of trainings
arrays          formulas over ranks, owners of blocks, a step of the loop over tiles
ranks           layers on devices, groups of ranks, rows of an image, bytes between ranks
sliders         a figure that is drawn again as the reader moves sliders
"""

from tiledask.lab.plots.arrays import corner, owners, placements, tile_step
from tiledask.lab.plots.curves import curves, losses
from tiledask.lab.plots.gantt import gantt, idle_blocks, memory_timeline, slots
from tiledask.lab.plots.plans import feasibility, memory_bars, short_layout, step_breakdown
from tiledask.lab.plots.ranks import layers_on_devices, rank_groups, rows_on_ranks, traffic_matrix
from tiledask.lab.plots.sliders import sliders
from tiledask.lab.plots.style import BLUE, RED, canvas

__all__ = [
    "BLUE",
    "RED",
    "canvas",
    "corner",
    "curves",
    "feasibility",
    "gantt",
    "idle_blocks",
    "layers_on_devices",
    "losses",
    "memory_bars",
    "memory_timeline",
    "owners",
    "placements",
    "rank_groups",
    "rows_on_ranks",
    "short_layout",
    "sliders",
    "slots",
    "step_breakdown",
    "tile_step",
    "traffic_matrix",
]
