"""Figures of puzzles: the task, and what was written, also when it is wrong."""

from tiledask.lab.puzzles.figures.compositions import draw_composition
from tiledask.lab.puzzles.figures.cuts import draw_partition
from tiledask.lab.puzzles.figures.orders import draw_fault, draw_order
from tiledask.lab.puzzles.figures.runs import draw_choice, draw_question

__all__ = [
    "draw_choice", "draw_composition", "draw_fault", "draw_order", "draw_partition",
    "draw_question",
]  # fmt: skip
