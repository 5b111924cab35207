"""One training under several splits: the losses lie on one another, what moves does not."""

from collections.abc import Mapping, Sequence
from itertools import cycle

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
    curves, below = draw.stacked_axes(figure, (3.0, bars))
    colours = dict(zip(losses, cycle(PALETTE), strict=False))
    widths = draw.falling_widths(11, len(losses))
    for (name, curve), width in zip(losses.items(), widths, strict=True):
        steps, look = range(len(curve)), {"gid": name, "solid_capstyle": "butt"}
        draw.curve(curves, steps, curve, colours[name], width, **look)
    curves.set(xlabel="step", ylabel="loss: cross-entropy (nats)")
    curves.set_ylim(bottom=0)
    curves.set_title("Losses: colours as below, each line thinner than the one before")
    draw.grid(curves)
    draw.whole_ticks(curves.xaxis)
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
        draw.note(axes, (sent[name], i), words if sent[name] else "nothing moves")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max([*sent.values(), 1]))
    draw.byte_ticks(axes.xaxis)
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="bytes that all devices send in a step", title="What moves in each step")
