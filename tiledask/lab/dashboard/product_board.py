"""A ProductActivity in Bokeh: who computes when, and below it bytes and memory by worker."""

from bokeh.layouts import column, row
from bokeh.models import Range1d

from tiledask.lab.dashboard.bars import Bars
from tiledask.lab.dashboard.board import Board
from tiledask.lab.dashboard.products import ProductActivity

__all__ = ["ProductBoard"]


_LOWEST = 370
"""Pixels that both rows take at least: a page that has less room scrolls."""


class ProductBoard:
    """A Board and two figures of bars; ``show`` draws another ProductActivity into them."""

    def __init__(self, activity: ProductActivity, height: int | None = None) -> None:
        """``height`` of the Board in pixels, and of the bars again; None fills the page."""
        fixed = (
            {"sizing_mode": "stretch_both"}
            if height is None
            else {"sizing_mode": "stretch_width", "height": height}
        )
        self.board, rows = Board(activity, height), Range1d(0.5, -0.5)
        self.received = Bars("Bytes received", "from other workers", rows, fixed, True)
        self.memory = Bars("Memory", "the most held, operands included", rows, fixed, True)
        self.layout = column(
            self.board.layout,
            row(self.received.plot, self.memory.plot, **fixed),
            sizing_mode=fixed["sizing_mode"],
            min_height=_LOWEST if height is None else None,
        )
        self.show(activity)

    def show(self, activity: ProductActivity) -> None:
        """Draw ``activity`` in place of what was drawn before."""
        self.board.show(activity)
        limits = activity.limits
        self.received.show(activity.rows, activity.received, limits.get("received", ()))
        self.memory.show(activity.rows, activity.memory, limits.get("memory", ()))
