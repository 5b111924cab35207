"""Bars side by side under one title: the figure of most parts of `make gpu`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tiledask.lab.plots.style import BLUE, ORANGE, canvas, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bars"]


@styled
def bars(
    names: Sequence[str], values: Mapping[str, Sequence[float]], unit: str, title: str
) -> "Figure":
    """A figure of ``{what: a value per name}``, a bar each; at most two of them."""
    picture = canvas(1.2 + 0.26 * len(names) * len(values), title)
    axes, each = picture.subplots(), 0.8 / len(values)
    for number, (what, lengths) in enumerate(values.items()):
        at = [i + (number - (len(values) - 1) / 2) * each for i in range(len(names))]
        axes.barh(at, lengths, each, color=(BLUE, ORANGE)[number % 2], label=what)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    if len(values) > 1:
        axes.legend()
    return picture
