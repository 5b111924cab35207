"""Idle shares per configuration: predicted, simulated and measured side by side."""

from collections.abc import Mapping
from textwrap import fill

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, GREEN, ORANGE, canvas, styled

__all__ = ["idle_bars"]


@styled
def idle_bars(
    idle: Mapping[str, tuple[float | None, float | None, float | None]],
    *,
    names: tuple[str, str, str] = ("predicted", "simulated", "measured"),
    title: str = "Idle share of device-time",
) -> "Figure":
    """A figure of three bars per configuration: ``{label: (predicted, simulated, measured)}``,
    each a share of 1, or None where there is no such value (drawn as a dash, and left out where no
    configuration has one). ``names`` are what the three are called."""
    if not idle or any(len(shares) != 3 for shares in idle.values()):
        raise ConfigError(
            f"idle_bars needs 1 configuration or more with 3 shares each, got "
            f"{ {label: len(shares) for label, shares in idle.items()} }; "
            f"pass {{'gpipe': (predicted, simulated, measured)}}, None for one that is missing"
        )
    figure, groups = canvas(3.6, title), len(idle)
    axes = figure.subplots()
    columns = zip(*idle.values(), strict=True)
    palette = BLUE, ORANGE, GREEN
    named = list(zip(names, columns, palette, strict=True))
    there = [each for each in named if any(share is not None for share in each[1])] or named
    series, colours = [each[:2] for each in there], [each[2] for each in there]
    bars = draw.grouped_bars(axes, series, colours, width=0.87, fill=0.931)
    size = 8 if groups <= 5 else 6.5 if groups <= 7 else 5
    for x, share in bars:
        words = "—" if share is None else f"{100 * share:.1f}"
        draw.note(axes, (x, share or 0), words, (0, 2), size)
    axes.set_xticks(range(groups), [fill(label, max(8, 96 // groups)) for label in idle])
    axes.tick_params(axis="x", length=0)
    highest = max((s for shares in idle.values() for s in shares if s is not None), default=1)
    axes.set(xlim=(-0.55, groups - 0.45), ylim=(0, max(0.05, 1.12 * highest)))
    axes.set_ylabel("idle / (devices x makespan)")
    draw.percent_ticks(axes.yaxis)
    draw.legend(figure, axes)
    return figure
