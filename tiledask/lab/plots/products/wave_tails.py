"""The last wave: how much of a device tiles leave idle, against the size of the product."""

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError
from tiledask.lab.plots.style import GREY, PALE, PALETTE, YELLOW, canvas, styled
from tiledask.tile.choice import Waves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["wave_tails"]

_COLOURS = tuple(colour for colour in PALETTE if colour != YELLOW)  # too pale for a line


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
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for (name, line), colour in zip(sizes.items(), cycle(_COLOURS), strict=False):
        xs = sorted(line)
        marker = "." if len(xs) <= 40 else ""
        above.plot(
            xs,
            [line[n].efficiency for n in xs],
            marker=marker,
            color=colour,
            linewidth=1.3,
            label=name,
            gid=name,
        )
        below.plot(
            xs,
            [line[n].count for n in xs],
            color=colour,
            linewidth=1.3,
            drawstyle="steps-mid",
            gid=f"{name} waves",
        )
    above.axhline(1, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
    above.set_ylim(0, 1.06)
    above.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    above.set_ylabel("tiles / (waves x slots)")
    below.set_ylim(bottom=0)
    below.set_ylabel("waves")
    below.yaxis.get_major_locator().set_params(integer=True)
    below.set_xlabel("rows and columns of C")
    for axes in (above, below):
        axes.grid(color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
    figure.legend(
        *above.get_legend_handles_labels(), loc="outside lower left", ncols=min(3, len(sizes))
    )
    return figure
