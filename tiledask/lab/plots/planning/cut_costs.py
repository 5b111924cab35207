"""What cuts cost: the work of each device, and what it sends across. Every cut in two, or some."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, ORANGE, RED, SKY, canvas, styled

__all__ = ["cut_costs"]

_HIGH = 0.36
"""Height of one of the two bars of a cut."""
_BAR = 0.62
"""Height of the bar of a device."""


@styled
def cut_costs(
    costs: Sequence[float],
    sends: Sequence[float],
    *,
    cuts: Mapping[str, Sequence[int]] | None = None,
    room: Sequence[float] = (),
    title: str = "Every cut in two",
) -> "Figure":
    """A figure with two bars per cut: the device before it works and then sends, the one behind it
    works; each as long as the number in it. ``costs``: of each layer; ``sends``: of what crosses
    after each layer but the last.

    ``cuts``, name -> layers of each device: these alone are drawn, each in a panel of its own with
    a bar per device. ``room``: how much work each device has room for; what exceeds it is hatched.
    """
    if not costs or len(sends) != len(costs) - 1:
        raise ConfigError(
            f"cut_costs draws a cut after each of {len(costs)} layers but the last, got "
            f"{len(sends)} sends; pass one for each"
        )
    if cuts:
        return _by_device(costs, [*sends, 0], cuts, room, title)
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


def _by_device(
    costs: Sequence[float],
    sends: Sequence[float],
    cuts: Mapping[str, Sequence[int]],
    room: Sequence[float],
    title: str,
) -> Figure:
    rows = [len(sizes) for sizes in cuts.values()]
    figure = canvas(1.1 + sum(0.4 + 0.34 * n for n in rows), title)
    panels, said = draw.stacked_axes(figure, rows, sharex=True), []
    over = {"facecolor": "none", "edgecolor": RED, "hatch": "////", "linewidth": 1.2}
    exceeds = False
    for axes, (name, sizes) in zip(panels, cuts.items(), strict=True):
        took, fits = [], True
        for device, (first, last) in enumerate(pairwise([0, *accumulate(sizes)])):
            work, send = sum(costs[first:last]), sends[last - 1]
            parts = [("work", work, BLUE), ("send", send, ORANGE)]
            boxes = draw.stack(axes, device, parts, _BAR)
            left, low, long, high = boxes[0]
            boxes[0] = left, low, min([long, *room[device : device + 1]]), high  # for its number
            said += [(axes, *each) for each in zip(boxes, parts, strict=True)]
            took.append(work + send)
            if len(room) > device:
                ends = device - 0.45, device + 0.45
                axes.vlines(room[device], *ends, "black", linewidth=2.2, gid="room", zorder=4)
                draw.mark_excess(axes, device, room[device], work, _BAR, **over, gid="over")
                fits &= work <= room[device]
        exceeds |= not fits
        words = "the slowest takes" if fits else "does not fit, the slowest would take"
        axes.set_title(f"{name}: {words} {max(took):g}")
        draw.lanes(axes, [f"device {n + 1}" for n in range(len(sizes))])
    panels[-1].set_xlabel("time of a device: its layers, then what it sends")
    entries = [draw.patch_entry("work", BLUE), draw.patch_entry("sending", ORANGE)]
    entries += [draw.line_entry("room for work", "black", linewidth=2.2)] if len(room) else []
    entries += [draw.patch_entry("no room", "none", **over)] if exceeds else []
    draw.legend(figure, entries, 4)
    figure.lay_out()
    for axes, box, (_, long, colour) in said:
        draw.fitting_text(axes, box, f"{long:g}", colour)
    return figure
