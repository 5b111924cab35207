"""An Overview in Bokeh: barriers and bytes by layer, time in collectives by rank, the loss."""

from typing import Any

from bokeh.layouts import column, row
from bokeh.models import BasicTicker, HoverTool, Range1d
from bokeh.plotting import figure

from tiledask.lab.dashboard.bars import MARGINS, Bars
from tiledask.lab.dashboard.board import patches, set_fonts, source
from tiledask.lab.dashboard.training_overview import Overview
from tiledask.lab.plots.style import BLUE, GREY, INK, PALE

__all__ = ["TrainingBoard", "training_legend"]


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
        self.barriers = Bars("Barriers of a step", "of the rank that has most", self.layers, fixed)
        self.bytes = Bars("Bytes of a step", "sent by all ranks", self.layers, fixed, True)
        self.collectives = Bars(
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
            **MARGINS,
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
