"""Layers on devices: the path of one input through the layers, and where it changes device."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import GREY, RED, canvas, colour_of_rank, styled

__all__ = ["layers_on_devices"]


@styled
def layers_on_devices(
    assignments: Mapping[str, Sequence[int]],
    *,
    title: str = "Which device holds which layer",
    unit: str = "layer",
    first: int = 1,
) -> "Figure":
    """A figure with one panel per assignment (the device of each layer, in order), one lane per
    device of any of them, layers counted from ``first``, a line from layer to layer, red where it
    changes devices. ``unit`` is what the words call a layer, such as "stage"."""
    from matplotlib.ticker import MaxNLocator

    if not assignments or not all(len(devices) for devices in assignments.values()):
        raise ConfigError(
            "layers_on_devices draws 1 assignment or more of 1 layer or more, got "
            f"{ {name: len(devices) for name, devices in assignments.items()} }; "
            "pass {'contiguous': [0, 0, 1, 1]}"
        )
    longest = max(map(len, assignments.values()))
    lanes = [max(map(max, assignments.values())) + 1] * len(assignments)
    figure = canvas(0.95 + sum(0.6 + 0.34 * n for n in lanes), title)
    panels = draw.stacked_axes(figure, lanes, sharex=True)
    for axes, (name, devices) in zip(panels, assignments.items(), strict=True):
        _panel(axes, name, devices, lanes[0])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        draw.ticks_as(axes.xaxis, lambda layer: f"{layer + first:.0f}")
    panels[-1].set(xlim=(-0.7, longest - 0.3), xlabel=unit)
    entries = [
        draw.patch_entry(f"a {unit} and its number (a colour per device)", colour_of_rank(0)),
        draw.line_entry("crossing: activations move to another device", RED, linewidth=2),
        draw.line_entry("stays on the device", GREY, linewidth=1),
    ]
    draw.legend(figure, entries)
    figure.lay_out()
    for axes, devices in zip(panels, assignments.values(), strict=True):
        for layer, device in enumerate(devices):
            number = f"{layer + first}"
            draw.fitting_text(axes, _box(layer, device), number, colour_of_rank(device))
    return figure


def _box(layer: int, device: int) -> draw.Box:
    return layer - 0.42, device - draw.HEIGHT / 2, 0.84, draw.HEIGHT


def _panel(axes: "Axes", name: str, devices: Sequence[int], lanes: int) -> None:
    steps = list(pairwise(devices))
    crossings = sum(a != b for a, b in steps)
    axes.set_title(f"{name}: {crossings} crossing{'s' * (crossings != 1)}")
    for layer, step in enumerate(steps):
        colour, width, gid = (GREY, 1, "stays") if len({*step}) == 1 else (RED, 2, "crossing")
        draw.curve(axes, (layer, layer + 1), step, colour, width, zorder=1, gid=gid)
    for layer, device in enumerate(devices):
        draw.box(axes, _box(layer, device), colour_of_rank(device), zorder=2)
    draw.lanes(axes, [f"device {d + 1}" for d in range(lanes)])
