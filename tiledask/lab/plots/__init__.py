"""Figures of timelines, memory, traffic, owners, layers, idle time, products, plans, tiles.

Each function takes plain values and returns a matplotlib Figure that belongs to no window: save
it, or let a notebook show it. matplotlib is loaded by the first figure, not by this import.
"""

from tiledask.lab.plots.curves import (
    bubble_against_latency,
    memory_against_bubble,
    utilisation_against,
)
from tiledask.lab.plots.footprint import memory_timeline
from tiledask.lab.plots.front import pareto
from tiledask.lab.plots.gantt import gantt
from tiledask.lab.plots.idle import idle_bars
from tiledask.lab.plots.intensity import intensity
from tiledask.lab.plots.layer_traffic import layers_traffic
from tiledask.lab.plots.layers import layers_on_devices
from tiledask.lab.plots.live import LiveLoss
from tiledask.lab.plots.losses import losses
from tiledask.lab.plots.memory import memory_bars
from tiledask.lab.plots.owners import Blocks, owners
from tiledask.lab.plots.panels import panels, reads, tradeoff
from tiledask.lab.plots.plans import feasibility
from tiledask.lab.plots.rows import rows_on_ranks
from tiledask.lab.plots.sensitivity import sensitivity_bars
from tiledask.lab.plots.step import step_breakdown
from tiledask.lab.plots.tiles_levels import tile_levels
from tiledask.lab.plots.tiles_roofline import roofline
from tiledask.lab.plots.tiles_waves import wave_tails
from tiledask.lab.plots.traffic import traffic_matrix
from tiledask.lab.plots.trainings import trainings

__all__ = [
    "Blocks",
    "LiveLoss",
    "bubble_against_latency",
    "feasibility",
    "gantt",
    "idle_bars",
    "intensity",
    "layers_on_devices",
    "layers_traffic",
    "losses",
    "memory_against_bubble",
    "memory_bars",
    "memory_timeline",
    "owners",
    "panels",
    "pareto",
    "reads",
    "roofline",
    "rows_on_ranks",
    "sensitivity_bars",
    "step_breakdown",
    "tile_levels",
    "tradeoff",
    "traffic_matrix",
    "trainings",
    "utilisation_against",
    "wave_tails",
]
