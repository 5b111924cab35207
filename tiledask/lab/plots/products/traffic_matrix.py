"""Traffic matrices: bytes from rank to rank, predicted beside measured, or several runs."""

from collections.abc import Mapping

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import WIDTH, canvas, styled
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_bytes

__all__ = ["traffic_matrix"]

_MOST_NUMBERS = 12
"""Ranks up to which a cell has room for its number."""


@styled
def traffic_matrix(
    predicted: Traffic | Mapping[str, Traffic],
    measured: Traffic | None = None,
    *,
    title: str | None = None,
) -> "Figure":
    """A heat map of bytes from each rank to each other; with ``measured``, two on one colour scale
    and a red frame around every cell that differs, with the bytes measured too many or few.

    Of several, ``{name: traffic}``, a panel each on one scale. Lines are drawn between hosts.
    """
    if isinstance(predicted, Mapping):
        if not predicted:
            raise ConfigError(
                "traffic_matrix draws 1 traffic or more, got 0: {'ring': run.traffic}"
            )
        return _panels(predicted, title or "Bytes between ranks")
    if measured is not None and measured.ranks != predicted.ranks:
        raise ConfigError(
            f"the two traffics are among different ranks: {predicted.ranks} predicted, "
            f"{measured.ranks} measured; compare the same run"
        )
    traffics = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
    differs = np.zeros_like(predicted.bytes, bool)
    if measured is not None:
        differs = predicted.bytes != measured.bytes
    count = int(differs.sum())
    found = ": measured equals predicted to the byte" if measured is not None else ", predicted"
    if count:
        found = f": {count} cell{' differs' if count == 1 else 's differ'}"
    return _panels(traffics, title or f"Bytes between ranks{found}", differs)


def _panels(
    traffics: Mapping[str, Traffic], title: str, differs: np.ndarray | None = None
) -> "Figure":
    """A panel for each; ``differs``: the cells that do, from the first to the last."""
    first = next(iter(traffics.values()))
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
        for i in range(1, len(traffic.hosts)):
            if traffic.hosts[i] != traffic.hosts[i - 1]:
                draw.limit_line(axes, x=i - 0.5, gid="between hosts")
                draw.limit_line(axes, y=i - 0.5, gid="between hosts")
        for i, j in [] if differs is None else np.argwhere(differs).tolist():
            draw.mark_box(axes, (j - 0.47, i - 0.47, 0.94, 0.94), f"{i} to {j}")
        if traffic.ranks <= _MOST_NUMBERS:
            less = traffic if differs is None else first
            _numbers(axes, image, traffic.bytes, traffic.bytes - less.bytes)
    if any(traffic.ranks > _MOST_NUMBERS for traffic in traffics.values()):
        bar = figure.colorbar(image, ax=list(panels), label="bytes", shrink=0.85)
        draw.byte_ticks(bar.ax.yaxis)
    return figure


def _numbers(axes: "Axes", image, cells: np.ndarray, excess: np.ndarray) -> None:
    size = 9 if len(cells) <= 4 else 7 if len(cells) <= 8 else 5
    for (i, j), nbytes in np.ndenumerate(cells):
        words = "·" if i == j else draw.amount(format_bytes)(int(nbytes)).replace(" ", "\n")
        if excess[i, j]:
            words += f"\n({excess[i, j]:+,})"
        colour = image.cmap(image.norm(nbytes))
        draw.text_in(axes, (j - 0.5, i - 0.5, 1, 1), words, colour, size)
