"""A View in Bokeh: the same board is live in the dashboard and still in a report.

time                 | idle
loss                              rows of which a view has nothing are not there
"""

from typing import Any

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import ColumnDataSource, DataRange1d, FixedTicker, HoverTool, Range, Range1d
from bokeh.plotting import figure

from tiledask.lab.dashboard.views import Chart, View
from tiledask.lab.plots.primitives import unit_of
from tiledask.lab.plots.style import BLUE, GREY, INK, PALE, as_hex, ink_on
from tiledask.plan import html

__all__ = ["Board", "headline", "legend"]

_BAR = {name: name for name in ("y", "height", "left", "right", "fill_color", "line_color")}
_HATCH = {name: name for name in ("hatch_pattern", "hatch_color")}
_ZOOMED = "xpan,xwheel_zoom,reset,save"
"""The tools of a figure that can be looked at more closely."""
_NARROW = 1 / 40
"""Of an axis, for a letter: a narrower box has no text."""


class Lanes:
    """Boxes in lanes, and a black line where each lane is predicted to end."""

    def __init__(self, across: Range, words_at: str, tools: str = "", **fixed: Any) -> None:
        """``words_at``: the side of the pointer at which is said what it is on, away from the
        page's edge. ``fixed`` is its size."""
        self.boxes, self.hatched = (ColumnDataSource(_columns([], 1, 1)) for _ in range(2))
        self.marks = ColumnDataSource({"x": [], "top": [], "bottom": []})
        self.across, self.down = across, Range1d(0.5, -0.5)
        self.plot = plot = _figure(tools, x_range=across, y_range=self.down, **fixed)
        look = {"line_width": 0.5, "hatch_scale": 8, "hatch_weight": 0.8}
        # a hatch is slow to draw, even one of nothing
        hatched = plot.hbar(**_BAR, **_HATCH, **look, source=self.hatched)
        bars = plot.hbar(**_BAR, line_width=0.5, source=self.boxes)
        mark = {"x0": "x", "x1": "x", "y0": "top", "y1": "bottom", "line_width": 3}
        plot.segment(**mark, line_color=INK, source=self.marks)
        middle = {"text_align": "center", "text_baseline": "middle", "text_font_size": "11px"}
        plot.text("middle", "y", text="number", color="ink", **middle, source=self.boxes)
        self.hover = HoverTool(renderers=[bars, hatched], attachment=words_at)
        plot.add_tools(self.hover)
        plot.yaxis.major_tick_line_color = plot.yaxis.axis_line_color = None
        plot.ygrid.grid_line_color = None
        plot.xaxis[0].ticker.desired_num_ticks = 8 if tools else 3

    def show(self, chart: Chart) -> None:
        """Draw ``chart`` in place of what was drawn before."""
        reached = [0.0, *(box.at[0] + box.at[2] for box in chart.boxes), *chart.marks]
        last = max(100.0 if chart.unit == "%" else 0.0, *reached)
        size, unit = unit_of(chart.unit, last)
        self.plot.title.text = chart.title
        self.plot.xaxis[0].axis_label = f"{chart.label} ({unit})" if unit else chart.label
        times = f": @long{{0.[00]}} {unit}, from @left{{0.[00]}} on" * (chart.unit == "s")
        self.hover.tooltips = f"<div style='max-width:150px;white-space:normal'>@what{times}</div>"
        if chart.unit == "%":
            self.across.end = next(end for end in (25, 50, last) if max(reached) <= end)
        count = max(1, len(chart.lanes))
        # a label under another cannot be read: beyond 40 rows some go without
        self.plot.yaxis[0].ticker = FixedTicker(ticks=[*range(0, count, 1 + count // 40)])
        self.plot.yaxis[0].major_label_overrides = dict(enumerate(chart.lanes))
        self.down.update(start=count - 0.42, end=-0.55)
        for source, hatches in ((self.boxes, False), (self.hatched, True)):
            mine = [box for box in chart.boxes if ("hatch" in box.look) == hatches]
            source.data = _columns(mine, size, last)
        rows, marks = np.arange(len(chart.marks)), np.array(chart.marks, float) / size
        self.marks.data = {"x": marks, "top": rows - 0.45, "bottom": rows + 0.45}


class Board:
    """All figures; ``show`` draws another View into them."""

    def __init__(self, view: View, height: int | None = None) -> None:
        """``height`` of a row in pixels; None fills the page."""
        mode = "stretch_both" if height is None else "stretch_width"
        wide: dict[str, Any] = {"sizing_mode": mode} | ({"height": height} if height else {})
        narrow = wide | {"width": 200, "sizing_mode": "fixed" if height else "stretch_height"}
        # those without an end fit what is drawn, unless somebody has zoomed in
        time = Lanes(DataRange1d(start=0, range_padding=0), "right", _ZOOMED, **wide)
        self.lanes = {"time": time, "idle": Lanes(Range1d(0, 100), "left", **narrow)}
        plots = [lanes.plot for lanes in self.lanes.values()]
        self.loss, self.floor = (ColumnDataSource({"x": [], "y": []}) for _ in range(2))
        losses = _figure("", x_axis_label="step", y_axis_label="nats per token", **wide)
        line = losses.line("x", "y", color=BLUE, line_width=2, source=self.loss)
        losses.line("x", "y", color=INK, line_dash="dotted", source=self.floor)
        words = "step @x: @y{0.0000}"
        losses.add_tools(HoverTool(renderers=[line], tooltips=words, mode="vline"))
        self.losses, rows = losses, {"time": plots, "loss": [losses]}
        self.rows = {place: row(*each, **wide) for place, each in rows.items()}
        self.layout = column(*self.rows.values(), sizing_mode=mode)
        self.show(view)

    def show(self, view: View) -> None:
        """Draw ``view`` in place of what was drawn before."""
        steps, losses, best = view.loss
        for place, shown in self.rows.items():
            shown.visible = place in view.charts or (place == "loss" and len(steps) > 0)
        for place, chart in view.charts.items():
            self.lanes[place].show(chart)
        ends = [steps[0], steps[-1]] if steps and best is not None else []
        self.loss.data = {"x": [*steps], "y": [*losses]}
        self.floor.data = {"x": ends, "y": [best] * len(ends)}
        self.losses.title.text = f"Loss (dotted: whole past known, {best:.4g})" if ends else "Loss"


def _figure(tools: str, **options: Any) -> Any:
    where = {"toolbar_location": "above" if tools else None, "active_scroll": None}
    edges = {"min_height": 160, "min_border_left": 5, "min_border_right": 14}
    plot = figure(title="", tools=tools, outline_line_color=None, **where, **edges, **options)
    plot.toolbar.logo, plot.toolbar.autohide = None, True
    plot.grid.grid_line_color, plot.axis.minor_tick_line_color = PALE, None
    plot.axis.axis_label_text_font_style = "normal"
    return plot


def _columns(boxes: Any, size: float, last: float) -> dict[str, Any]:
    """The columns of ``boxes`` for their source; across in units of ``size``."""
    # arrays travel to the browser as bytes, lists as text
    x, y, wide, height = np.array([box.at for box in boxes], float).reshape(-1, 4).T
    left, right = x / size, (x + wide) / size
    thick = wide > last / 400  # an outline would hide a thinner box
    colours = [as_hex(box.colour) for box in boxes]
    wanted = _NARROW * last * np.array([len(box.words) for box in boxes], float)
    both = zip(boxes, wide > wanted, strict=True)
    return {
        "y": y + height / 2,
        "height": height,
        "left": left,
        "right": right,
        "long": right - left,
        "middle": (left + right) / 2,
        "number": [box.words if fits else "" for box, fits in both],
        "ink": [ink_on(colour) for colour in colours],
        "what": [
            html.words(box.gid if box.words in box.gid else f"{box.gid} {box.words}")
            for box in boxes
        ],
        "fill_color": colours,
        "line_color": ["white" if t else c for t, c in zip(thick, colours, strict=True)],
        "hatch_pattern": [box.look.get("hatch", " ")[0] for box in boxes],
        "hatch_color": [box.look.get("edgecolor", INK) for box in boxes],
    }


# -- the words around it -------------------------------------------------------------------------

_CELL = "display:inline-block;margin:0 1.3em .3em 0"
_PATCH = "display:inline-block;width:1.5em;height:.9em;line-height:.8em;overflow:hidden;"
_PATCH += "vertical-align:-.1em;margin-right:.4em;"


def headline(view: View) -> str:
    """HTML: what a View is, and its numbers."""
    name, value = "color:#5a6068;font-size:12px", "font-size:15px;font-weight:600"
    facts = "".join(
        f"<div style='{_CELL}'><div style='{name}'>{html.words(what)}</div>"
        f"<div style='{value}'>{html.words(number)}</div></div>"
        for what, number in view.facts.items()
    )
    title = f"<div style='font-size:15px;margin-bottom:.3em'>{html.words(view.title)}</div>"
    return f"<div style='color:{INK};font:13px/1.35 system-ui,sans-serif'>{title}{facts}</div>"


def legend(view: View) -> str:
    """HTML: what each colour and hatch means."""
    items = []
    for words, box in view.legend:
        hatch, ink = 3 * box.look.get("hatch", " ")[0], box.look.get("edgecolor", INK)
        style = f"{_PATCH}background:{as_hex(box.colour)};color:{ink};outline:1px solid {GREY}"
        items.append(f"<span style='{style}'>{html.words(hatch)}</span>{html.words(words)}")
    if any(chart.marks for chart in view.charts.values()):
        items.append(f"<span style='{_PATCH}width:3px;background:{INK}'></span>predicted")
    if view.number:
        items.append(f"number in a box: {html.words(view.number)}")
    cells = "".join(f"<span style='{_CELL};white-space:nowrap'>{item}</span>" for item in items)
    look = f"color:{INK};font:12.5px/1.3 system-ui,sans-serif;height:6.5em;overflow:auto"
    return f"<div style='{look}'>{cells}</div>"
