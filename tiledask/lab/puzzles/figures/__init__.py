"""Figures of puzzles: the task, and what was written, also when it is wrong.

draw_cuts          layers on devices
draw_orders        an order as a Gantt chart, or as written
draw_runs          simulated runs
draw_compositions  a partition and a schedule together
frame              what all of them share
"""

from tiledask.lab.puzzles.figures.draw_compositions import draw_composition
from tiledask.lab.puzzles.figures.draw_cuts import draw_partition
from tiledask.lab.puzzles.figures.draw_orders import draw_order
from tiledask.lab.puzzles.figures.draw_runs import draw_choice

__all__ = [
    "draw_choice",
    "draw_composition",
    "draw_order",
    "draw_partition",
]
