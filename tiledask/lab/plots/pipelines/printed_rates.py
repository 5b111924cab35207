"""Published rates against ours: on the diagonal where both are the same."""

from collections.abc import Iterable, Mapping
from itertools import cycle

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import GREY, LINES, canvas, styled

__all__ = ["printed_rates"]


@styled
def printed_rates(
    rates: Mapping[str, Iterable[tuple[float, float, bool]]],
    *,
    title: str = "Printed and worked out again",
) -> "Figure":
    """A figure of rates: ``{how: [(printed, ours, whether they agree)]}``. A ring where they agree,
    a disc where they do not, a colour for each way of working them out."""
    every = {how: list(rows) for how, rows in rates.items()}
    if not every or not all(every.values()):
        raise ConfigError(
            f"printed_rates draws 1 way or more of 1 rate or more, got "
            f"{ {how: len(rows) for how, rows in every.items()} }; "
            f"pass {{'simulated': [(0.25, 0.25, True)]}}"
        )
    figure = canvas(4.6, title)
    axes = figure.subplots()
    top = 1.05 * max(max(row[:2]) for rows in every.values() for row in rows)
    draw.curve(
        axes, [0, top], [0, top], GREY, 0.9, zorder=1, label="ours = printed", gid="the same"
    )
    sizes = [4 + width for width in draw.falling_widths(5.0, len(every))]
    for (how, rows), colour, size in zip(every.items(), cycle(LINES), sizes, strict=False):
        agree = [row[:2] for row in rows if row[2]]
        miss = [row[:2] for row in rows if not row[2]]
        ring = {"marker": "o", "markersize": size, "markeredgewidth": 1.8, "zorder": 3}
        words = f"{how}: {len(agree)} of {len(rows)} agree"
        hollow = ring | {"markerfacecolor": "none"}
        draw.curve(axes, [], [], colour, 0, label=words, **hollow)
        for name, points, look in (("agree", agree, hollow), ("miss", miss, ring)):
            if points:
                xs, ys = zip(*points, strict=True)
                draw.curve(axes, xs, ys, colour, 0, gid=f"{how}, {name}", **look)
    if any(not row[2] for rows in every.values() for row in rows):
        draw.curve(axes, [], [], GREY, 0, marker="o", label="filled: they differ", gid="legend")
    axes.set(xlim=(0, top), ylim=(0, top), xlabel="idle share, printed", ylabel="idle share, ours")
    draw.percent_ticks(axes.xaxis)
    draw.percent_ticks(axes.yaxis)
    draw.grid(axes)
    draw.legend(figure, axes, 5 if len(every) < 3 else 3)
    return figure
