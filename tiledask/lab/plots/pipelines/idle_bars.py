"""Idle shares per configuration: predicted, simulated and measured side by side."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError
from tiledask.lab.plots.style import BLUE, GREEN, ORANGE, canvas, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["idle_bars"]

_COLUMNS = {"predicted": BLUE, "simulated": ORANGE, "measured": GREEN}
_BAR = 0.27


@styled
def idle_bars(
    idle: Mapping[str, tuple[float | None, float | None, float | None]],
    *,
    title: str = "Idle share of device-time",
) -> "Figure":
    """A figure of three bars per configuration: ``{label: (predicted, simulated, measured)}``,
    each a share of 1, or None where there is no such value (drawn as a dash)."""
    import textwrap

    from matplotlib.patches import Patch

    if not idle or any(len(shares) != 3 for shares in idle.values()):
        raise ConfigError(
            f"idle_bars needs 1 configuration or more with 3 shares each, got "
            f"{ {label: len(shares) for label, shares in idle.items()} }; "
            f"pass {{'gpipe': (predicted, simulated, measured)}}, None for one that is missing"
        )
    figure = canvas(3.6, title)
    axes = figure.subplots()
    for c, (column, colour) in enumerate(_COLUMNS.items()):
        for x, shares in enumerate(idle.values()):
            _bar(axes, x + (c - 1) * (_BAR + 0.02), shares[c], column, colour, len(idle))
    axes.set_xticks(
        range(len(idle)),
        ["\n".join(textwrap.wrap(label, max(8, 96 // len(idle)))) for label in idle],
    )
    axes.set_xlim(-0.55, len(idle) - 0.45)
    highest = max((s for shares in idle.values() for s in shares if s is not None), default=1)
    axes.set_ylim(0, max(0.05, 1.12 * highest))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    axes.set_ylabel("idle / (devices x makespan)")
    axes.tick_params(axis="x", length=0)
    figure.legend(
        handles=[Patch(color=colour, label=column) for column, colour in _COLUMNS.items()],
        loc="outside lower left",
        ncols=3,
    )
    return figure


def _bar(axes, x: float, share: float | None, column: str, colour: str, groups: int) -> None:
    size = 8 if groups <= 5 else 6.5 if groups <= 7 else 5
    if share is None:
        axes.text(x, 0, "—\n", ha="center", va="bottom", fontsize=size, linespacing=0.5)
        return
    axes.bar(x, share, _BAR, color=colour, gid=column)
    axes.annotate(
        f"{100 * share:.1f}",
        (x, share),
        (0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=size,
    )
