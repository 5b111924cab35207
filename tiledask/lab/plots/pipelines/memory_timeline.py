"""Memory over time: what every device holds, one row each, against what it can hold."""

from collections.abc import Mapping

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, GREY, INK, RED, canvas, lighter, styled
from tiledask.plan.pipelines.footprint import Footprint
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["memory_timeline"]

_ROWS = 8
"""The most devices drawn."""
_COLUMNS = 3
_HELD = lighter(BLUE, 0.65)
_OVER = {"edgecolor": RED, "hatch": "/////"}
_CAPACITY = {"linestyle": "--", "linewidth": 1.0}


@styled
def memory_timeline(
    held: Footprint | Mapping[str, Footprint],
    capacity: float | None = None,
    *,
    unit: str = "bytes",
    title: str = "Memory over time",
) -> "Figure":
    """A figure with a row per device and a column per Footprint, all on one scale; what exceeds
    ``capacity`` is hatched, and a dot marks each device's first peak.

    Of more than eight devices the first, the last, some between and the fullest are drawn.
    ``unit``: "bytes", or the word for what was counted: "activations".
    """
    columns = {held.origin: held} if isinstance(held, Footprint) else dict(held)
    devices = {f.devices for f in columns.values()}
    if not 1 <= len(columns) <= _COLUMNS or len(devices) != 1 or 0 in devices:
        raise ConfigError(
            f"memory_timeline draws 1 to {_COLUMNS} footprints of equally many devices, 1 or "
            f"more, got {[f.devices for f in columns.values()]}; draw the others in a second figure"
        )
    rows = _drawn(list(columns.values()), *devices)
    figure = canvas(1.5 + 0.5 * len(rows), title)
    grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    for column, (name, footprint) in zip(grid.T, columns.items(), strict=True):
        for axes, device in zip(column, rows, strict=True):
            _row(axes, footprint, device, capacity, unit)
        most, fullest, time = footprint.peak
        what = "" if unit == "bytes" else f" {unit}"
        words = f"{name}: at most {_size(most, unit)}{what}"
        where = f"first on device {fullest + 1}, after {format_seconds(time)}"
        heading = f"{words}\n{where}" if len(columns) > 1 else f"{words}, {where}"
        column[0].set_title(heading)
        column[-1].set_xlabel("time (s)")
    _scale(grid, rows, list(columns.values()), capacity)
    skipped = devices.pop() - len(rows)
    over = capacity is not None and any(f.over(capacity) for f in columns.values())
    entries = _legend(capacity, unit, over, skipped)
    draw.legend(figure, entries, 4 if len(entries) < 5 else 3)
    return figure


def _drawn(footprints: list[Footprint], devices: int) -> list[int]:
    """The first, the last, some between, and each footprint's fullest."""
    if devices <= _ROWS:
        return list(range(devices))
    fullest = {f.peak.device for f in footprints}
    spread = np.linspace(0, devices - 1, _ROWS - len(fullest)).round().astype(int)
    return sorted(fullest | set(spread.tolist()))


def _row(axes: "Axes", footprint: Footprint, device: int, capacity, unit: str) -> None:
    times, held = footprint.steps[device]
    lasting = np.append(times[1:] > times[:-1], True)  # what comes and goes at once is no step
    times, held = times[lasting], held[lasting]
    if times[-1] < footprint.makespan:
        times, held = np.append(times, footprint.makespan), np.append(held, held[-1])
    axes.fill_between(times, held, step="post", color=_HELD, linewidth=0)
    draw.curve(axes, times, held, BLUE, 1.0, drawstyle="steps-post", gid=f"device {device + 1}")
    if capacity is not None:
        above = np.maximum(held, capacity)
        look = {"facecolor": "none", "linewidth": 0, "gid": "over", **_OVER}
        axes.fill_between(times, capacity, above, step="post", **look)
        draw.limit_line(axes, y=capacity, gid="capacity", **_CAPACITY)
    at = int(np.argmax(held))
    dot = {"marker": "o", "markersize": 3, "clip_on": False}
    draw.curve(axes, times[at], held[at], INK, 0, gid="peak", **dot)
    most, fullest = footprint.peaks[device], device == footprint.peak.device
    draw.label_right(axes, [most], [f"peak {_size(most, unit)}"], INK if fullest else GREY)


def _scale(grid: np.ndarray, rows: list[int], footprints: list[Footprint], capacity) -> None:
    top = max(capacity or 0, *(f.peak.bytes for f in footprints)) or 1
    grid[0, 0].set_ylim(0, 1.12 * top)
    grid[0, 0].set_xlim(0, max(f.makespan for f in footprints) or 1)
    for row, device in zip(grid, rows, strict=True):
        for axes in row:
            axes.set_yticks([])
            axes.spines[["left"]].set_visible(False)
            axes.tick_params(axis="x", length=0 if axes not in grid[-1] else 3)
        row[0].set_ylabel(f"device {device + 1}", rotation=0, ha="right", va="center")


def _size(size: float, unit: str) -> str:
    return format_bytes(size) if unit == "bytes" else f"{size:.4g}"


def _legend(capacity, unit: str, over: bool, skipped: int) -> list:
    what = "bytes held" if unit == "bytes" else f"{unit} held"
    entries = [
        draw.patch_entry(f"{what}, one scale for all", _HELD, edgecolor=BLUE),
        draw.line_entry("first peak", marker="o", markersize=3, linestyle="none"),
    ]
    if capacity is not None:
        entries.append(draw.line_entry(f"capacity: {_size(capacity, unit)}", **_CAPACITY))
    if over:
        entries.append(draw.patch_entry("over the capacity", "none", **_OVER))
    if skipped:
        entries.append(draw.line_entry(f"{skipped} more devices are not drawn", linestyle="none"))
    return entries
