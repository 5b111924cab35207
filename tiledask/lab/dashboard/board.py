"""An Activity in Bokeh: who computes when, and beside each row its idle share.

device 1 | [0][1]....[0] |  //..|x     27.3 %     | is the predicted share
device 2 | ///[0][1]x[0] |  //..|      25.1 %     idle time is hatched by its cause

The same board is live in the dashboard and still in a report.
"""

from math import isnan
from typing import Any

import numpy as np
from bokeh.layouts import row
from bokeh.models import (
    CDSView,
    ColumnDataSource,
    CustomJS,
    CustomJSFilter,
    FixedTicker,
    HoverTool,
    Range1d,
)
from bokeh.plotting import figure

from tiledask.lab.dashboard.activity import Activity, RowBox, interval, stacked
from tiledask.lab.dashboard.idle import PAUSE, hatch, hatched, idle_legend
from tiledask.lab.plots.style import GREY, INK, PALE
from tiledask.plan import html

__all__ = ["Board", "columns", "headline", "legend", "patches", "set_fonts", "source"]

_ROW = 0.72
_BOX = ("y", "height", "left", "right", "middle", "text", "colour", "ink", "line", "words")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))

_FITS = """
const {left, right, height, text} = source.data
const fits = new Array(text.length).fill(false)
const size = plot.properties.inner_width.is_unset ? [0, 0] : [plot.inner_width, plot.inner_height]
const wide = size[0] / (x.end - x.start), tall = size[1] / Math.abs(y.end - y.start)
for (let i = 0; i < text.length; i++)
    fits[i] = (right[i] - left[i]) * wide > 7 * text[i].length + 3 && height[i] * tall > 11
return fits
"""
"""In the browser: which boxes have room for their text, as wide as they are there and now."""


class Board:
    """Two figures that share their rows; ``show`` draws another Activity into them."""

    def __init__(self, activity: Activity, height: int | None = None) -> None:
        """``height`` in pixels; None fills the page."""
        self.boxes, self.transfers = source(), source()
        self.pauses, self.causes = source(PAUSE), source(PAUSE)
        self.background, self.idle = source(("y", "right")), source(("y", "right", "text"))
        self.predicted = source(("x", "top", "bottom"))
        self._across, self._down = Range1d(0, 1), Range1d(0.5, -0.5)
        self._shown = 1.0
        fixed = (
            {"sizing_mode": "stretch_both"}
            if height is None
            else {"sizing_mode": "stretch_width", "height": height}
        )
        look = {"y_range": self._down, "min_border_left": 5, "outline_line_color": None}
        self.gantt = figure(
            title="Who computes when",
            x_range=self._across,
            tools="xpan,xwheel_zoom,reset,save",
            active_scroll=None,
            min_height=180,
            min_width=None if height is None else 420,
            **look,
            **fixed,
        )
        bars = {**fixed, "sizing_mode": "stretch_height"} if height is None else {"height": height}
        self.bars = figure(
            title="Idle share of each",
            x_range=Range1d(0, 148),
            tools="",
            width=240,
            min_height=180,
            toolbar_location=None,
            **look,
            **bars,
        )
        self._draw_gantt()
        self._draw_bars()
        self.layout = row(self.gantt, self.bars, **fixed)
        self.show(activity)

    def show(self, activity: Activity) -> None:
        """Draw ``activity`` in place of what was drawn before."""
        last = max(activity.makespan, activity.until)
        size, unit = next(((s, u) for s, u in _UNITS if last >= s), _UNITS[0])
        rows = range(len(activity.rows))
        # fit the axes, unless somebody has zoomed in
        across = last / size or 1.0
        count = max(1, len(activity.rows))
        # a label under another cannot be read: beyond 40 rows some go without
        labels = range(0, count, 1 + count // 40)
        self.gantt.yaxis[0].ticker.ticks = [*labels]
        self.gantt.yaxis[0].major_label_overrides = dict(enumerate(activity.rows))
        self._down.update(start=count - 0.42, end=-0.55)
        label = f"time since the start ({unit})"
        zoomed = (self._across.start, self._across.end) != (0, self._shown)
        if not zoomed or label != self.gantt.xaxis[0].axis_label:
            self._across.update(start=0, end=across)
            self._shown = across
        self._across.update(reset_start=0, reset_end=across)
        self.gantt.xaxis[0].axis_label = label
        thin = last / 400  # its outline would hide a box thinner than that
        self.boxes.data = columns(activity.boxes, size, thin)
        self.transfers.data = columns(activity.transfers, size, thin)
        end = activity.makespan / size or 1.0
        self.background.data = {"y": [*rows], "right": [end] * len(rows)}
        self.idle.data = {
            "y": [*rows],
            "right": [100 * share for share in activity.idle],
            "text": [
                f"{100 * share:.1f} %" if activity.boxes and not isnan(share) else ""
                for share in activity.idle
            ],
        }
        self.pauses.data = hatched(activity.pauses, size, lambda p: interval(p.start, p.end))
        shares = stacked(activity)
        self.causes.data = hatched(
            shares, 0.01, lambda p: f"{100 * (p.end - p.start):.1f} % of the time"
        )
        predicted = activity.predicted or ()
        self.predicted.data = {
            "x": [100 * share for share in predicted],
            "top": [r - 0.5 for r in rows[: len(predicted)]],
            "bottom": [r + 0.5 for r in rows[: len(predicted)]],
        }

    def _draw_gantt(self) -> None:
        plot, fits = self.gantt, CustomJSFilter(code=_FITS)
        plot.hbar(y="y", left=0, right="right", height=_ROW, color=PALE, source=self.background)
        drawn = [
            hatch(plot, self.pauses),
            plot.hbar(
                y="y",
                height="height",
                left="left",
                right="right",
                fill_color="colour",
                line_color="line",
                line_width=0.5,
                source=self.boxes,
            ),
            plot.hbar(
                y="y",
                height="height",
                left="left",
                right="right",
                color="colour",
                source=self.transfers,
            ),
        ]
        plot.text(
            x="middle",
            y="y",
            text="text",
            color="ink",
            text_align="center",
            text_baseline="middle",
            text_font_size="11px",
            source=self.boxes,
            view=CDSView(filter=fits),
        )
        fits.args = {"plot": plot, "x": self._across, "y": self._down}
        again = CustomJS(args={"fits": fits}, code="fits.change.emit()")
        for model, names in (
            (self._across, ("start", "end")),
            (self._down, ("start", "end")),
            (plot, ("inner_width", "inner_height")),
        ):
            for name in names:
                model.js_on_change(name, again)
        plot.add_tools(HoverTool(renderers=drawn, tooltips="@words", point_policy="follow_mouse"))
        plot.toolbar.logo, plot.toolbar.autohide = None, True
        plot.yaxis[0].ticker = FixedTicker(ticks=[])
        plot.grid.grid_line_color = None
        plot.yaxis.major_tick_line_color = plot.yaxis.axis_line_color = None
        set_fonts(plot)

    def _draw_bars(self) -> None:
        plot = self.bars
        plot.hbar(
            y="y",
            left=0,
            right="right",
            height=_ROW,
            fill_color=PALE,
            line_color=GREY,
            source=self.idle,
        )
        drawn = [hatch(plot, self.causes)]
        plot.add_tools(HoverTool(renderers=drawn, tooltips="@words", point_policy="follow_mouse"))
        plot.segment(
            x0="x",
            x1="x",
            y0="top",
            y1="bottom",
            line_color=INK,
            line_width=3,
            source=self.predicted,
        )
        plot.text(
            x=146,
            y="y",
            text="text",
            text_align="right",
            text_baseline="middle",
            text_font_size="11px",
            text_color=INK,
            source=self.idle,
        )
        plot.yaxis.visible = False
        plot.xaxis.ticker = FixedTicker(ticks=[0, 50, 100])
        plot.xaxis.bounds = 0, 100  # beyond it there are only the numbers
        plot.xaxis.axis_label = "idle / makespan (%)"
        plot.grid.grid_line_color = None
        plot.xgrid.grid_line_color, plot.xgrid.ticker = PALE, plot.xaxis[0].ticker
        set_fonts(plot)


def set_fonts(plot: Any) -> None:
    """Give a figure the fonts of this page."""
    plot.title.text_font_size, plot.title.text_color = "13px", INK
    plot.xaxis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_text_color = plot.axis.major_label_text_color = INK
    plot.axis.major_label_text_font_size = plot.axis.axis_label_text_font_size = "12px"
    plot.axis.minor_tick_line_color = None


def source(names: tuple[str, ...] = _BOX) -> ColumnDataSource:
    """One without rows; its columns are those of boxes, or have these names."""
    return ColumnDataSource({name: [] for name in names})


def columns(boxes: tuple[RowBox, ...], size: float, thin: float) -> dict[str, Any]:
    """The columns of ``boxes`` for their source; across in units of ``size``."""
    # arrays travel to the browser as bytes, lists as text
    numbers = np.array([(b.row, b.height, b.start, b.end) for b in boxes]).reshape(-1, 4)
    left, right = numbers[:, 2:].T / size
    return {
        "y": numbers[:, 0],
        "height": numbers[:, 1],
        "left": left,
        "right": right,
        "middle": (left + right) / 2,
        "text": [b.text for b in boxes],
        "colour": [b.colour for b in boxes],
        "ink": [b.ink for b in boxes],
        "line": ["white" if b.end - b.start > thin else b.colour for b in boxes],
        "words": [b.words for b in boxes],
    }


# -- the words around it -------------------------------------------------------------------------

_CELL = "display:inline-block;margin:0 1.6em .35em 0"


def headline(activity: Any) -> str:
    """HTML: what an Activity or Overview is, and its numbers."""
    facts = "".join(
        f"<div style='{_CELL}'><div style='color:#5a6068;font-size:12px'>{html.words(name)}</div>"
        f"<div style='font-size:17px;font-weight:600'>{html.words(value)}</div></div>"
        for name, value in activity.facts
    )
    note = html.words(activity.note)
    note = f"<div style='margin:.1em 0 .4em'>{note}</div>" if note else ""
    return (
        f"<div style='color:{INK};font:13px/1.35 system-ui,sans-serif'>"
        f"<div style='font-size:15px;margin-bottom:.3em'>{html.words(activity.title)}</div>"
        f"{note}{facts}</div>"
    )


def legend(activity: Activity) -> str:
    """HTML: what each colour means."""
    patch = "display:inline-block;width:1.1em;height:.8em;margin-right:.4em;"
    items = [(f"{patch}background:{colour}", words) for colour, words in activity.legend]
    items += [
        (f"{patch}{style};outline:1px solid {GREY}", f"idle, {words}")
        for style, words in idle_legend(activity)
    ]
    known = sum(p.end - p.start for p in activity.pauses)
    if activity.boxes and known < (1 - 1e-6) * activity.makespan * sum(activity.idle):
        items.append((f"{patch}background:{PALE};outline:1px solid {GREY}", "idle"))
    if activity.predicted is not None:
        line = f"{patch}width:3px;height:1em;vertical-align:-.15em;background:{INK}"
        items.append((line, "predicted idle share"))
    more = ""
    if activity.boxes:
        what = activity.numbers
        number = f"number in a box: {what}" if what else "more about a box: point at it"
        more = f"<span style='{_CELL}'>{number}</span>"
    return patches(items, more)


def patches(items: list[tuple[str, str]], more: str = "") -> str:
    """HTML: patches of (style, words) in a line, and ``more`` HTML behind them."""
    cells = [
        f"<span style='{_CELL};white-space:nowrap'><span style='{style}'></span>"
        f"{html.words(words)}</span>"
        for style, words in items
    ]
    style = f"color:{INK};font:12.5px/1.3 system-ui,sans-serif"
    return f"<div style='{style}'>{''.join(cells)}{more}</div>"
