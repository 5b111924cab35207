"""Layers on devices: the path of one input through the layers, and where it changes device."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import GREY, RED, canvas, colour_of_rank, styled

__all__ = ["layers_on_devices"]


@styled
def layers_on_devices(
    assignments: Mapping[str, Sequence[int]],
    *,
    costs: Sequence[float] | None = None,
    title: str = "Which device holds which layer",
    unit: str = "layer",
    first: int = 1,
) -> "Figure":
    """A figure with one panel per assignment (the device of each layer, in order), one lane per
    device of any of them, layers counted from ``first``, a line from layer to layer, red where it
    changes devices. ``unit`` is what the words call a layer, such as "stage". With ``costs``, one
    per layer, boxes are as long as they say, and each device's sum stands at the right."""
    from matplotlib.ticker import MaxNLocator

    if not assignments or not all(len(devices) for devices in assignments.values()):
        raise ConfigError(
            "layers_on_devices draws 1 assignment or more of 1 layer or more, got "
            f"{ {name: len(devices) for name, devices in assignments.items()} }; "
            "pass {'contiguous': [0, 0, 1, 1]}"
        )
    longest = max(map(len, assignments.values()))
    if costs is not None and len(costs) != longest:
        raise ConfigError(
            f"layers_on_devices draws a box for each of {longest} layers, got {len(costs)} costs; "
            f"pass one for each, or leave them out"
        )
    edges = list(accumulate(costs or [1] * longest, initial=0.0 if costs else -0.5))
    lanes = [max(map(max, assignments.values())) + 1] * len(assignments)
    figure = canvas(0.95 + sum(0.6 + 0.34 * n for n in lanes), title)
    panels = draw.stacked_axes(figure, lanes, sharex=True)
    for axes, (name, devices) in zip(panels, assignments.items(), strict=True):
        _panel(axes, name, devices, lanes[0], edges)
        if costs:
            sums = np.bincount(devices, costs[: len(devices)], lanes[0])
            draw.label_right(axes, range(lanes[0]), [f"{each:g} in all" for each in sums])
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            draw.ticks_as(axes.xaxis, lambda layer: f"{layer + first:.0f}")
    margin = 0.008 * edges[-1] if costs else 0.2
    xlabel = "cost of the layers, one after another" if costs else unit
    panels[-1].set(xlim=(edges[0] - margin, edges[-1] + margin), xlabel=xlabel)
    entries = [
        draw.patch_entry(f"a {unit} and its number (a colour per device)", colour_of_rank(0)),
        draw.line_entry("crossing: activations move to another device", RED, linewidth=2),
        draw.line_entry("stays on the device", GREY, linewidth=1),
    ]
    draw.legend(figure, entries)
    figure.lay_out()
    for axes, devices in zip(panels, assignments.values(), strict=True):
        for layer, device in enumerate(devices):
            box = _box(edges, layer, device)
            draw.fitting_text(axes, box, f"{layer + first}", colour_of_rank(device))
    return figure


def _box(edges: Sequence[float], layer: int, device: int) -> draw.Box:
    gap = 0.08 if edges[0] < 0 else 0.002 * edges[-1]  # to scale: hardly any
    left, right = edges[layer : layer + 2]
    return left + gap, device - draw.HEIGHT / 2, right - left - 2 * gap, draw.HEIGHT


def _panel(
    axes: "Axes", name: str, devices: Sequence[int], lanes: int, edges: Sequence[float]
) -> None:
    steps = list(pairwise(devices))
    crossings = sum(a != b for a, b in steps)
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    axes.set_title(f"{name}: {crossings} crossing{'s' * (crossings != 1)}")
    for layer, step in enumerate(steps):
        colour, width, gid = (GREY, 1, "stays") if len({*step}) == 1 else (RED, 2, "crossing")
        draw.curve(axes, middles[layer : layer + 2], step, colour, width, zorder=1, gid=gid)
    for layer, device in enumerate(devices):
        draw.box(axes, _box(edges, layer, device), colour_of_rank(device), zorder=2)
    draw.lanes(axes, [f"device {d + 1}" for d in range(lanes)])
