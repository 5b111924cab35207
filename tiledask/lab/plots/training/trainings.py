"""One training under several splits: its losses, how far each split is from them, what moves."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import ceil, floor

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import PALETTE, canvas, styled
from tiledask.plan.units import format_bytes

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
    """The losses of the first training, how far from them the others are, and the bytes of a step.

    losses
        By name. A distance is relative; where there is none, it is drawn at the tick 0.
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
    bars, (first, *others) = 0.7 + _BAR * len(losses), losses
    heights = (2.0, *[2.0] * bool(others), bars)
    figure = canvas(0.4 + sum(heights), title)
    curves, *apart, below = draw.stacked_axes(figure, heights)
    colours = dict(zip(losses, cycle(PALETTE), strict=False))
    draw.curve(curves, range(len(losses[first])), losses[first], colours[first], gid=first)
    curves.set(ylabel="loss (nats)", title=f"Losses: {first}")
    curves.set_ylim(bottom=0)
    for axes in apart:
        _distances(axes, {name: losses[name] for name in others}, losses[first], colours)
    for axes in (curves, *apart):
        axes.set_xlabel("step")
        draw.grid(axes)
        draw.whole_ticks(axes.xaxis)
    _bars(below, sent, barriers, colours)
    return figure


def _distances(
    axes: "Axes",
    losses: Mapping[str, Sequence[float]],
    right: Sequence[float],
    colours: dict[str, str],
) -> None:
    far = {name: np.abs(np.divide(each, right) - 1) for name, each in losses.items()}
    least = min((off[off > 0].min() for off in far.values() if off.any()), default=1e-16) / 4
    for name, off in far.items():
        draw.curve(axes, range(len(off)), np.maximum(off, least), colours[name], gid=name)
    axes.set(yscale="log", ylabel="relative")
    axes.set_title("The others' distance from it, colours as below")
    low, high = np.log10([2 * least, axes.get_ylim()[1]])
    powers = range(ceil(low), floor(high) + 1)
    axes.set_yticks([least, *(10.0**n for n in powers)], ["0", *(f"$10^{{{n}}}$" for n in powers)])
    axes.tick_params(axis="y", which="minor", left=False)


def _bars(
    axes: "Axes", sent: Mapping[str, int], barriers: Mapping[str, int], colours: dict[str, str]
) -> None:
    names = list(colours)
    axes.barh(names, [sent[n] for n in names], 0.62, color=[colours[n] for n in names])
    for i, name in enumerate(names):
        count = barriers[name]
        words = f"{format_bytes(sent[name])}, {count or 'no'} barrier{'s' * (count != 1)}"
        draw.note(axes, (sent[name], i), words if sent[name] else "nothing moves")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max([*sent.values(), 1]))
    draw.byte_ticks(axes.xaxis)
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="bytes that all devices send in a step", title="What moves in each step")
