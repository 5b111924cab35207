"""One training under several splits: the losses lie on one another, what moves does not."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots.style import INK, PALE, PALETTE, canvas, styled
from tiledask.plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["trainings"]

_BAR = 0.42
"""Inches from one bar to the next."""


@styled
def trainings(
    losses: Mapping[str, Sequence[float]],
    sent: Mapping[str, int],
    barriers: Mapping[str, int],
    *,
    title: str = "One training, split in several ways",
) -> "Figure":
    """Two panels: the loss of each step by name of the split, and below it the bytes of a step.

    losses
        By name; the earlier, the thicker, so that lines which lie on one another are all seen.
    sent, barriers
        By the same names: bytes that all devices send in a step, and how often all of a group
        wait for each other in it.

    >>> len(trainings({"one": [2.3, 2.0]}, {"one": 0}, {"one": 0}).axes)
    2
    """
    if not losses or {*losses} != {*sent} or {*losses} != {*barriers}:
        raise ConfigError(
            f"a training is drawn with its losses, bytes and barriers: got {len(losses)}, "
            f"{len(sent)} and {len(barriers)} names; give all three by the same names, 1 or more"
        )
    bars = 0.7 + _BAR * len(losses)
    figure = canvas(3.4 + bars, title)
    curves, below = figure.subplots(2, 1, height_ratios=(3.0, bars))
    colours = dict(zip(losses, cycle(PALETTE), strict=False))
    widths = np.geomspace(11, 1.2, len(losses)) if len(losses) > 1 else [2.0]
    for (name, curve), width in zip(losses.items(), widths, strict=True):
        curves.plot(
            range(1, len(curve) + 1),
            curve,
            color=colours[name],
            linewidth=width,
            gid=name,
            solid_capstyle="butt",
        )
    curves.set_ylim(bottom=0)
    curves.set_xlabel("step")
    curves.set_ylabel("loss: cross-entropy (nats)")
    curves.set_title("Losses: colours as below, each line thinner than the one before")
    curves.grid(color=PALE, linewidth=0.8)
    curves.set_axisbelow(True)
    _bars(below, sent, barriers, colours)
    return figure


def _bars(
    axes: "Axes", sent: Mapping[str, int], barriers: Mapping[str, int], colours: dict[str, str]
) -> None:
    names = list(colours)
    axes.barh(names, [sent[n] for n in names], 0.62, color=[colours[n] for n in names])
    for i, name in enumerate(names):
        count = barriers[name]
        words = f"{format_bytes(sent[name])}, {count or 'no'} barrier{'s' * (count != 1)}"
        axes.annotate(
            words if sent[name] else "nothing moves",
            (sent[name], i),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=INK,
        )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max([*sent.values(), 1]))
    axes.xaxis.set_major_formatter(lambda size, _: format_bytes(size) if size else "0")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("bytes that all devices send in a step")
    axes.set_title("What moves in each step")
