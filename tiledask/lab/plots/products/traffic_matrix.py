"""Traffic matrices: bytes from rank to rank, predicted beside measured."""

from typing import TYPE_CHECKING

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots.style import RED, WIDTH, canvas, ink_on, styled
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["traffic_matrix"]

_MOST_NUMBERS = 12
"""Ranks up to which a cell has room for its number."""


@styled
def traffic_matrix(
    predicted: Traffic, measured: Traffic | None = None, *, title: str | None = None
) -> "Figure":
    """A heat map of bytes from each rank to each other; with ``measured``, two on one colour scale
    and a red frame around every cell that differs, with the bytes measured too many or few."""
    from matplotlib.patches import Rectangle

    if measured is not None and measured.ranks != predicted.ranks:
        raise ConfigError(
            f"the two traffics are among different ranks: {predicted.ranks} predicted, "
            f"{measured.ranks} measured; compare the same run"
        )
    traffics = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
    differs = np.zeros_like(predicted.bytes, bool)
    if measured is not None:
        differs = predicted.bytes != measured.bytes
    top = max(1, *(int(t.bytes.max(initial=0)) for t in traffics.values()))
    width = WIDTH if measured is not None else 0.6 * WIDTH
    figure = canvas(4.1, title or _headline(differs, measured), width)
    panels = figure.subplots(1, len(traffics), squeeze=False)[0]
    for axes, (name, traffic) in zip(panels, traffics.items(), strict=True):
        image = axes.imshow(traffic.bytes, cmap="Blues", vmin=0, vmax=top)
        axes.set_title(f"{name}: {format_bytes(traffic.total)} in {traffic.count:,} messages")
        ticks = range(0, traffic.ranks, 1 + traffic.ranks // 17)
        axes.set_xticks(ticks)
        axes.set_yticks(ticks)
        axes.set_xlabel("to rank")
        axes.set_ylabel("from rank")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for i, j in np.argwhere(differs).tolist():
            axes.add_patch(
                Rectangle((j - 0.47, i - 0.47), 0.94, 0.94, fill=False, edgecolor=RED, linewidth=2)
            )
        if traffic.ranks <= _MOST_NUMBERS:
            _numbers(axes, image, traffic.bytes, traffic.bytes - predicted.bytes)
    figure.colorbar(image, ax=list(panels), format=_tick, label="bytes", shrink=0.85)
    return figure


def _tick(size: float, _position: int | None = None) -> str:
    return format_bytes(size) if size else "0"


def _headline(differs: np.ndarray, measured: Traffic | None) -> str:
    if measured is None:
        return "Bytes between ranks, predicted"
    if differs.any():
        count = int(differs.sum())
        return f"Bytes between ranks: {count} cell{' differs' if count == 1 else 's differ'}"
    return "Bytes between ranks: measured equals predicted to the byte"


def _numbers(axes: "Axes", image: "AxesImage", cells: np.ndarray, excess: np.ndarray) -> None:
    size = 9 if len(cells) <= 4 else 7 if len(cells) <= 8 else 5
    for (i, j), nbytes in np.ndenumerate(cells):
        words = "·" if i == j else _tick(int(nbytes)).replace(" ", "\n")
        if excess[i, j]:
            words += f"\n({excess[i, j]:+,})"
        colour = ink_on(image.cmap(image.norm(nbytes)))
        axes.text(j, i, words, ha="center", va="center", fontsize=size, color=colour)
