"""Figures of timelines, memory, traffic, owners, layers, idle time, products, plans, tiles.

Each function takes plain values and returns a matplotlib Figure that belongs to no window: save
it, or let a notebook show it. matplotlib is loaded by the first figure, not by this import. A
figure of one's own is drawn on a `canvas`, under the same `look`.

style, picture  the look that all share, and the Figure that draws itself
sliders         a figure that is drawn again as the reader moves sliders
primitives      what figures are made of: bars, boxes, curves, notes, legends
pipelines       Gantt charts, orders by turns, tasks in slots, idle time, memory over time
planning        memory bars, the map of a search and its front, time of a step, curves over sizes
products        owners of blocks, panels, traffic between ranks, tiles on a device
training        losses, what moves by layer, where layers, arrays and rows of an image are
"""

from tiledask.lab.plots.pipelines.gantt import gantt
from tiledask.lab.plots.pipelines.idle_blocks import idle_blocks
from tiledask.lab.plots.pipelines.memory_timeline import memory_timeline
from tiledask.lab.plots.pipelines.slots import slots
from tiledask.lab.plots.pipelines.turns import turns
from tiledask.lab.plots.planning.curves import curves
from tiledask.lab.plots.planning.cut_costs import cut_costs
from tiledask.lab.plots.planning.distribution import distribution
from tiledask.lab.plots.planning.feasibility import feasibility, short_layout
from tiledask.lab.plots.planning.memory_bars import memory_bars
from tiledask.lab.plots.planning.pareto import pareto
from tiledask.lab.plots.planning.step_breakdown import step_breakdown
from tiledask.lab.plots.products.corner import corner, two_levels
from tiledask.lab.plots.products.owners import Blocks, matrices, owners
from tiledask.lab.plots.products.panels import panels, reads
from tiledask.lab.plots.products.roofline import roofline
from tiledask.lab.plots.products.rounds import collective_rounds
from tiledask.lab.plots.products.tile_levels import tile_levels
from tiledask.lab.plots.products.tile_step import tile_step
from tiledask.lab.plots.products.traffic_matrix import traffic_matrix
from tiledask.lab.plots.sliders import sliders
from tiledask.lab.plots.style import BLUE, RED, canvas, look
from tiledask.lab.plots.training.layers_on_devices import layers_on_devices
from tiledask.lab.plots.training.layers_traffic import layers_traffic
from tiledask.lab.plots.training.losses import losses
from tiledask.lab.plots.training.placements import placements, shards
from tiledask.lab.plots.training.rank_grid import rank_grid
from tiledask.lab.plots.training.rank_groups import rank_groups
from tiledask.lab.plots.training.rows_on_ranks import rows_on_ranks

__all__ = [
    "BLUE",
    "RED",
    "Blocks",
    "canvas",
    "collective_rounds",
    "corner",
    "curves",
    "cut_costs",
    "distribution",
    "feasibility",
    "gantt",
    "idle_blocks",
    "layers_on_devices",
    "layers_traffic",
    "look",
    "losses",
    "matrices",
    "memory_bars",
    "memory_timeline",
    "owners",
    "panels",
    "pareto",
    "placements",
    "rank_grid",
    "rank_groups",
    "reads",
    "roofline",
    "rows_on_ranks",
    "shards",
    "short_layout",
    "sliders",
    "slots",
    "step_breakdown",
    "tile_levels",
    "tile_step",
    "traffic_matrix",
    "turns",
    "two_levels",
]
