"""Bars side by side under one title: the figure of most parts of `make gpu`."""

from collections.abc import Mapping, Sequence

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import BLUE, ORANGE, canvas, styled

__all__ = ["bars"]


@styled
def bars(
    names: Sequence[str], values: Mapping[str, Sequence[float]], unit: str, title: str
) -> draw.Figure:
    """A figure of ``{what: a value per name}``, a bar each; at most two of them."""
    picture = canvas(1.2 + 0.26 * len(names) * len(values), title)
    axes = picture.subplots()
    draw.grouped_bars(axes, list(values.items()), (BLUE, ORANGE), fill=1.0, upright=False)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    if len(values) > 1:
        axes.legend()
    return picture
