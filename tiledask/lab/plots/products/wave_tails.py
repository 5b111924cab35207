"""The last wave: how much of a device tiles leave idle, against the size of the product."""

from collections.abc import Mapping
from itertools import cycle

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import GREY, LINES, canvas, styled
from tiledask.tile.choice import Waves

__all__ = ["wave_tails"]


@styled
def wave_tails(
    sizes: Mapping[str, Mapping[int, Waves]], *, title: str = "What the last wave leaves idle"
) -> "Figure":
    """A figure of `td.tile.waves`, ``{name: {n: Waves}}``: above, the share of slots that have a
    tile, over all waves; below, how many waves there are."""
    if not sizes or not all(sizes.values()):
        raise ConfigError(
            f"wave_tails draws 1 line or more of 1 size or more, got "
            f"{ {name: len(line) for name, line in sizes.items()} }; pass {{'mine': {{n: Waves}}}}"
        )
    figure = canvas(5.0, title)
    above, below = draw.stacked_axes(figure, [2, 1], sharex=True)
    for (name, line), colour in zip(sizes.items(), cycle(LINES), strict=False):
        xs = sorted(line)
        marker = "." if len(xs) <= 40 else ""
        shares, counts = [line[n].efficiency for n in xs], [line[n].count for n in xs]
        draw.curve(above, xs, shares, colour, 1.3, marker=marker, label=name, gid=name)
        draw.curve(below, xs, counts, colour, 1.3, drawstyle="steps-mid", gid=f"{name} waves")
    draw.limit_line(above, y=1, color=GREY, linewidth=0.8, zorder=0)
    above.set(ylim=(0, 1.06), ylabel="tiles / (waves x slots)")
    draw.percent_ticks(above.yaxis)
    below.set(ylabel="waves", xlabel="rows and columns of C")
    below.set_ylim(bottom=0)
    draw.whole_ticks(below.yaxis)
    draw.grid(above, below)
    draw.legend(figure, above)
    return figure
