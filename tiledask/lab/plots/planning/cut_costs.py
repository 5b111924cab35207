"""What each cut in two costs: the work of both devices, and what the first one sends across."""

from collections.abc import Sequence
from itertools import accumulate

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, ORANGE, SKY, canvas, styled

__all__ = ["cut_costs"]

_HIGH = 0.36
"""Height of one of the two bars of a cut."""


@styled
def cut_costs(
    costs: Sequence[float], sends: Sequence[float], *, title: str = "Every cut in two"
) -> "Figure":
    """A figure with two bars per cut: the device before it works and then sends, the one behind it
    works; each as long as the number in it. ``costs``: of each layer; ``sends``: of what crosses
    after each layer but the last."""
    if not costs or len(sends) != len(costs) - 1:
        raise ConfigError(
            f"cut_costs draws a cut after each of {len(costs)} layers but the last, got "
            f"{len(sends)} sends; pass one for each"
        )
    before, whole = list(accumulate(costs)), sum(costs)
    figure = canvas(1.2 + 0.5 * len(sends), title)
    axes = figure.subplots()
    slowest = []
    said: list[tuple[draw.Box, tuple[str, float, str]]] = []
    for cut, (work, send) in enumerate(zip(before, sends, strict=False)):
        first = [("first", work, BLUE), ("send", send, ORANGE)]
        second = [("second", whole - work, SKY)]
        boxes = draw.stack(axes, cut - _HIGH / 2, first, _HIGH)
        boxes += draw.stack(axes, cut + _HIGH / 2, second, _HIGH)
        said += zip(boxes, first + second, strict=True)
        slowest.append(max(work + send, whole - work))
    best = min(slowest)
    draw.limit_line(axes, best, gid="best", zorder=0.9)  # behind the bars and their numbers
    axes.set_yticks(range(len(sends)), [f"after layer {cut + 1}" for cut in range(len(sends))])
    axes.invert_yaxis()
    axes.set_xlabel("time of a device")
    names = (("first device: work", BLUE), ("first device: sending", ORANGE))
    entries = [draw.patch_entry(*each) for each in (*names, ("second device: work", SKY))]
    words = f"slower device of the best cut: {best:g}"
    draw.legend(figure, [*entries, draw.line_entry(words, linestyle="--")], 2)
    figure.lay_out()
    for box, (_, long, colour) in said:
        draw.fitting_text(axes, box, f"{long:g}", colour)
    return figure
