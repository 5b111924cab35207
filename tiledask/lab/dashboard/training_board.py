"""An Overview in Bokeh: barriers and bytes by layer, time in collectives by rank, the loss."""

from typing import Any

from bokeh.layouts import column, row
from bokeh.models import BasicTicker, CustomJSTickFormatter, FixedTicker, HoverTool, Range1d
from bokeh.plotting import figure

from tiledask.lab.dashboard.board import columns, patches, set_fonts, source
from tiledask.lab.dashboard.training_overview import Overview
from tiledask.lab.plots.style import BLUE, GREY, INK, PALE

__all__ = ["TrainingBoard", "training_legend"]


_BYTES = """
if (tick == 0) return "0"
const units = ["B", "kB", "MB", "GB", "TB"]
const at = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(tick) / 3 + 1e-9)))
return `${Number((tick / 1000 ** at).toPrecision(4))} ${units[at]}`
"""
"""In the browser: a number of bytes as the rest of the page writes it."""


_MARGINS = {"min_border_left": 5, "min_border_right": 14}


class TrainingBoard:
    """Four figures; ``show`` draws another Overview into them."""

    def __init__(self, overview: Overview, height: int | None = None) -> None:
        """``height`` in pixels; None fills the page."""
        fixed = (
            {"sizing_mode": "stretch_both"}
            if height is None
            else {"sizing_mode": "stretch_width", "height": height // 2}
        )
        self.layers, self.ranks = Range1d(0.5, -0.5), Range1d(0.5, -0.5)
        self.barriers = _Bars("Barriers of a step", "of the rank that has most", self.layers, fixed)
        self.bytes = _Bars("Bytes of a step", "sent by all ranks", self.layers, fixed)
        self.bytes.plot.xaxis.formatter = CustomJSTickFormatter(code=_BYTES)
        self.collectives = _Bars(
            "Time in collectives", "share of a rank's time, waiting included (%)", self.ranks, fixed
        )
        self.loss = _Loss(fixed)
        self.layout = column(
            row(self.barriers.plot, self.bytes.plot, **fixed),
            row(self.loss.plot, self.collectives.plot, **fixed),
            sizing_mode=fixed["sizing_mode"],
        )
        self.show(overview)

    def show(self, overview: Overview) -> None:
        """Draw ``overview`` in place of what was drawn before."""
        said = overview.predicted
        self.barriers.show(overview.layers, overview.barriers, said["barriers"])
        self.bytes.show(overview.layers, overview.bytes, said["bytes"])
        self.collectives.show(overview.ranks, overview.collectives, (), 100.0)
        self.loss.show(overview)


class _Bars:
    """Bars of several parts in rows, and a black line where each is predicted to end."""

    def __init__(self, title: str, label: str, rows: Range1d, fixed: dict[str, Any]) -> None:
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
            **_MARGINS,
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
        plot.xaxis.ticker = BasicTicker(min_interval=1)
        plot.yaxis[0].ticker = FixedTicker(ticks=[])
        plot.ygrid.grid_line_color, plot.xgrid.grid_line_color = None, PALE
        plot.yaxis.major_tick_line_color = plot.yaxis.axis_line_color = None
        set_fonts(plot)

    def show(
        self, names: tuple[str, ...], boxes: tuple, predicted: tuple[float, ...], end: float = 0.0
    ) -> None:
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


class _Loss:
    """Loss against step, and the best there is."""

    def __init__(self, fixed: dict[str, Any]) -> None:
        self.line, self.floor = source(("x", "y")), source(("x", "y"))
        self.across, self.up = Range1d(0, 1), Range1d(0, 1)
        self.plot = plot = figure(
            title="Loss",
            x_range=self.across,
            y_range=self.up,
            tools="",
            toolbar_location=None,
            min_height=160,
            outline_line_color=None,
            **_MARGINS,
            **fixed,
        )
        drawn = plot.line(x="x", y="y", color=BLUE, line_width=2, source=self.line)
        plot.scatter(x="x", y="y", color=BLUE, size=4, source=self.line)
        plot.line(x="x", y="y", color=INK, line_dash="dotted", source=self.floor)
        plot.add_tools(HoverTool(renderers=[drawn], tooltips="step @x: @y{0.0000}", mode="vline"))
        plot.xaxis.axis_label, plot.yaxis.axis_label = "step", "nats per token"
        plot.xaxis.ticker = BasicTicker(min_interval=1)
        plot.grid.grid_line_color = PALE
        set_fonts(plot)
        plot.yaxis.axis_label_text_font_style = "normal"

    def show(self, overview: Overview) -> None:
        steps, losses = overview.losses
        finite = [loss for loss in losses if abs(loss) < float("inf")]
        self.line.data = {"x": [*steps], "y": [*losses]}
        self.across.update(start=min(steps, default=0), end=max(1, *steps, 1))
        low = 0.0 if overview.floor is not None else 0.95 * min(finite, default=0.0)
        self.up.update(start=low, end=1.05 * max(finite, default=1.0))
        known = overview.floor is not None
        ends = [self.across.start, self.across.end] if known else []
        self.floor.data = {"x": ends, "y": [overview.floor] * len(ends)}
        best = f" (dotted: the best there is, {overview.floor:.4g})" if known else ""
        self.plot.title.text = f"Loss{best}"


def training_legend(overview: Overview) -> str:
    """HTML: what each colour means."""
    patch = "display:inline-block;width:1.1em;height:.8em;margin-right:.4em;"
    items = [(f"{patch}background:{colour}", words) for colour, words in overview.legend]
    line = f"{patch}width:3px;height:1em;vertical-align:-.15em;background:{INK}"
    items.append((line, "predicted of a step"))
    rest = f"{patch}background:white;outline:1px solid {GREY}"
    items.append((rest, "of a rank's time: computing"))
    return patches(items)
