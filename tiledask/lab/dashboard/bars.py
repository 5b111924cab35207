"""Bars in rows, of several parts, and a black line where each is predicted to end; in Bokeh.

layer 0  |####====|  |    as long as a part is, each in its colour; the line is the prediction
layer 1  |####======|
"""

from typing import Any

from bokeh.models import BasicTicker, CustomJSTickFormatter, FixedTicker, HoverTool, Range1d
from bokeh.plotting import figure

from tiledask.lab.dashboard.board import columns, set_fonts, source
from tiledask.lab.plots.style import INK, PALE

__all__ = ["MARGINS", "Bars"]

_BYTES = """
if (tick == 0) return "0"
const units = ["B", "kB", "MB", "GB", "TB"]
const at = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(tick) / 3 + 1e-9)))
return `${Number((tick / 1000 ** at).toPrecision(4))} ${units[at]}`
"""
"""In the browser: a number of bytes as the rest of the page writes it."""

MARGINS = {"min_border_left": 5, "min_border_right": 14}


class Bars:
    """Bars of several parts in rows, and a black line where each is predicted to end."""

    def __init__(
        self, title: str, label: str, rows: Range1d, fixed: dict[str, Any], is_bytes: bool = False
    ) -> None:
        """``label`` is of the axis, ``rows`` may be shared, ``fixed`` says how large it is."""
        self.boxes, self.predicted = source(), source(("x", "top", "bottom"))
        self.across, self.rows = Range1d(0, 1), rows
        self.plot = plot = figure(
            title=title,
            x_range=self.across,
            y_range=rows,
            tools="",
            toolbar_location=None,
            min_height=160,
            outline_line_color=None,
            **MARGINS,
            **fixed,
        )
        bars = plot.hbar(
            y="y",
            height="height",
            left="left",
            right="right",
            fill_color="colour",
            line_color="line",
            line_width=0.5,
            source=self.boxes,
        )
        plot.segment(
            x0="x",
            x1="x",
            y0="top",
            y1="bottom",
            line_color=INK,
            line_width=3,
            source=self.predicted,
        )
        plot.add_tools(HoverTool(renderers=[bars], tooltips="@words", point_policy="follow_mouse"))
        plot.xaxis.axis_label = label
        plot.xaxis.ticker = BasicTicker(min_interval=1, desired_num_ticks=3)
        if is_bytes:
            plot.xaxis.formatter = CustomJSTickFormatter(code=_BYTES)
        plot.yaxis[0].ticker = FixedTicker(ticks=[])
        plot.ygrid.grid_line_color, plot.xgrid.grid_line_color = None, PALE
        plot.yaxis.major_tick_line_color = plot.yaxis.axis_line_color = None
        set_fonts(plot)

    def show(
        self, names: tuple[str, ...], boxes: tuple, predicted: tuple[float, ...], end: float = 0.0
    ) -> None:
        """Draw these in place of what was drawn before, up to ``end`` if that is not 0."""
        count = max(1, len(names))
        self.plot.yaxis[0].ticker.ticks = [*range(0, count, 1 + count // 40)]
        self.plot.yaxis[0].major_label_overrides = dict(enumerate(names))
        self.rows.update(start=count - 0.42, end=-0.55)
        last = max([box.end for box in boxes] + [*predicted], default=0.0)
        self.across.end = end or 1.05 * last or 1.0
        self.boxes.data = columns(boxes, 1.0, self.across.end / 400)
        rows = range(len(predicted))
        self.predicted.data = {
            "x": [*predicted],
            "top": [r - 0.45 for r in rows],
            "bottom": [r + 0.45 for r in rows],
        }
