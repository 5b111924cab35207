"""Where layers are, and what ranks send: layers on devices, bytes from rank to rank."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import GREY, RED, WIDTH, canvas, colour_of_rank, styled
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_bytes

__all__ = ["layers_on_devices", "traffic_matrix"]

# -- layers --------------------------------------------------------------------------------------


@styled
def layers_on_devices(
    assignments: Mapping[str, Sequence[int]],
    *,
    title: str = "Which device holds which layer",
    unit: str = "layer",
    first: int = 1,
) -> Figure:
    """A figure with one panel per assignment (the device of each layer, in order), one lane per
    device of any of them, layers counted from ``first``, a line from layer to layer, red where it
    changes devices. ``unit`` is what the words call a layer, such as "stage"."""
    if not assignments or not all(len(devices) for devices in assignments.values()):
        raise ConfigError(
            "layers_on_devices draws 1 assignment or more of 1 layer or more, got "
            f"{ {name: len(devices) for name, devices in assignments.items()} }; "
            "pass {'contiguous': [0, 0, 1, 1]}"
        )
    longest = max(map(len, assignments.values()))
    lanes = [f"device {d + 1}" for d in range(1 + max(map(max, assignments.values())))]
    panels = []
    for name, devices in assignments.items():
        boxes = [
            draw.span(device, at - 0.42, at + 0.42, colour_of_rank(device), f"{at + first}")
            for at, device in enumerate(devices)
        ]
        crossings = sum(a != b for a, b in pairwise(devices))
        panels.append((f"{name}: {crossings} crossing{'s' * (crossings != 1)}", lanes, boxes))
    entries = [
        draw.patch_entry(f"a {unit} and its number (a colour per device)", colour_of_rank(0)),
        draw.line_entry("crossing: activations move to another device", RED, linewidth=2),
        draw.line_entry("stays on the device", GREY, linewidth=1),
    ]
    across = -0.7, longest - 0.3
    figure, every = draw.lane_figure(title, panels, entries, xlabel=unit, across=across)
    for axes, devices in zip(every, assignments.values(), strict=True):
        for at, ends in enumerate(pairwise(devices)):
            crosses = len({*ends}) > 1
            colour, width, gid = (RED, 2, "crossing") if crosses else (GREY, 1, "stays")
            axes.plot((at, at + 1), ends, color=colour, linewidth=width, gid=gid, zorder=1)
    ticks = range(0, longest, 1 + longest // 30)
    every[-1].set_xticks(ticks, [f"{at + first}" for at in ticks])
    return draw.write(figure, zip(every, (boxes for *_, boxes in panels), strict=True))


# -- bytes ---------------------------------------------------------------------------------------

_MOST_NUMBERS = 12
"""Ranks up to which a cell has room for its number."""


@styled
def traffic_matrix(
    traffics: Mapping[str, Traffic], *, title: str = "Bytes between ranks"
) -> Figure:
    """A heat map of bytes from each rank to each other: a panel for each name, on one colour scale.
    Lines are drawn between hosts."""
    if len({traffic.ranks for traffic in traffics.values()}) != 1:
        raise ConfigError(
            f"traffic_matrix draws 1 traffic or more, all of as many ranks, got "
            f"{ {name: traffic.ranks for name, traffic in traffics.items()} }; draw the same run"
        )
    top = max(1, *(int(t.bytes.max(initial=0)) for t in traffics.values()))
    figure = canvas(4.1, title, WIDTH if len(traffics) > 1 else 0.6 * WIDTH)
    panels = figure.subplots(1, len(traffics), squeeze=False)[0]
    for axes, (name, traffic) in zip(panels, traffics.items(), strict=True):
        image = axes.imshow(traffic.bytes, cmap="Blues", vmin=0, vmax=top)
        axes.set_title(f"{name}: {format_bytes(traffic.total)} in {traffic.count:,} messages")
        ticks = range(0, traffic.ranks, 1 + traffic.ranks // 17)
        axes.set(xticks=ticks, yticks=ticks, xlabel="to rank", ylabel="from rank")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for i, (one, other) in enumerate(pairwise(traffic.hosts)):
            if one != other:
                axes.axvline(i + 0.5, gid="between hosts", **draw.DASHED)
                axes.axhline(i + 0.5, gid="between hosts", **draw.DASHED)
        size = 9 if traffic.ranks <= 4 else 7 if traffic.ranks <= 8 else 5
        for (i, j), nbytes in np.ndenumerate(traffic.bytes):
            if traffic.ranks <= _MOST_NUMBERS:
                amount = format_bytes(int(nbytes)).replace(" ", "\n") if nbytes else "0"
                cell, colour = (j - 0.5, i - 0.5, 1, 1), image.cmap(image.norm(nbytes))
                draw.text_in(axes, cell, "·" if i == j else amount, colour, size)
    if traffic.ranks > _MOST_NUMBERS:
        bar = figure.colorbar(image, ax=list(panels), label="bytes", shrink=0.85)
        draw.ticks_as(bar.ax.yaxis, format_bytes)
    return figure
