"""Layers on devices: the path of one input through the layers, and where it changes device."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError
from tiledask.lab.plots.style import GREY, PALETTE, RED, canvas, fitting_text, lighter, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["layers_on_devices"]


@styled
def layers_on_devices(
    assignments: Mapping[str, Sequence[int]], *, title: str = "Which device holds which layer"
) -> "Figure":
    """A figure with one panel per assignment (the device of each layer, in order), one lane per
    device, layers counted from 1, a line from layer to layer, red where it changes devices."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not assignments or not all(len(devices) for devices in assignments.values()):
        raise ConfigError(
            "layers_on_devices draws 1 assignment or more of 1 layer or more, got "
            f"{ {name: len(devices) for name, devices in assignments.items()} }; "
            "pass {'contiguous': [0, 0, 1, 1]}"
        )
    lanes = [max(devices) + 1 for devices in assignments.values()]
    figure = canvas(0.95 + sum(0.6 + 0.34 * n for n in lanes), title)
    panels = figure.subplots(len(lanes), 1, sharex=True, squeeze=False, height_ratios=lanes)[:, 0]
    for axes, (name, devices) in zip(panels, assignments.items(), strict=True):
        _panel(axes, name, devices)
    panels[-1].set_xlim(-0.7, max(map(len, assignments.values())) - 0.3)
    panels[-1].set_xlabel("layer")
    handles = [
        Patch(color=_tone(0), label="a layer and its number (a colour per device)"),
        Line2D(
            [], [], color=RED, linewidth=2, label="crossing: activations move to another device"
        ),
        Line2D([], [], color=GREY, linewidth=1, label="stays on the device"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=3)
    figure.lay_out()
    for axes, devices in zip(panels, assignments.values(), strict=True):
        for layer, device in enumerate(devices):
            fitting_text(
                axes, (layer - 0.42, device - 0.36, 0.84, 0.72), f"{layer + 1}", _tone(device)
            )
    return figure


def _tone(device: int):
    return lighter(PALETTE[device % len(PALETTE)], 0.1)


def _panel(axes: "Axes", name: str, devices: Sequence[int]) -> None:
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    steps = list(pairwise(devices))
    crossings = sum(a != b for a, b in steps)
    axes.set_title(f"{name}: {crossings} crossing{'s' * (crossings != 1)}")
    for layer, (a, b) in enumerate(steps):
        crosses = a != b
        axes.plot(
            (layer, layer + 1),
            (a, b),
            color=RED if crosses else GREY,
            linewidth=2.0 if crosses else 1.0,
            zorder=1,
            gid="crossing" if crosses else "stays",
        )
    for layer, device in enumerate(devices):
        axes.add_patch(
            Rectangle(
                (layer - 0.42, device - 0.36),
                0.84,
                0.72,
                facecolor=_tone(device),
                edgecolor="white",
                linewidth=0.8,
                zorder=2,
            )
        )
    lanes = range(max(devices) + 1)
    axes.set_yticks(lanes, [f"device {d}" for d in lanes])
    axes.set_ylim(len(lanes) - 0.45, -0.55)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(lambda layer, _: f"{layer + 1:.0f}")
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)
