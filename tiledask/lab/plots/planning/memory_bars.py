"""Memory bars: bytes by tensor class on every place, against what a device can hold.

A ledger of 3.2 TB and one of 36 GB cannot share a linear axis, and the parts of a bar lie on a
logarithmic one. So ledgers of like size share a panel, every panel has a linear axis from 0,
and the same capacity is drawn in each: a sliver beside 3.2 TB, a limit beside 36 GB.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import (
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PINK,
    RED,
    canvas,
    lighter,
    styled,
)
from tiledask.plan.ledger import Ledger
from tiledask.plan.units import format_bytes

__all__ = ["memory_bars"]

_SPREAD = 6.0
"""The largest ratio of extents in one panel: a bar of a sixth of the width is still legible."""
_HEIGHT = 7.2
"""Inches of all bars: more of them than 20 are thinner, and not all of them have words."""
_WHOSE = {"stage": "device"}
_OVERHEAD = "overhead of a run"
_OVER = {"edgecolor": RED, "hatch": "////"}
_FREE = [colour for colour in PALETTE if colour != RED]
"""RED is kept for what is over the capacity."""
_STATES = "weights, gradients, master weights, momentum, variance"
_REST = "activations, embedding activations, activation gradients, recomputed activations"
_PALER = {
    "unreduced gradients": ORANGE,
    "gathered sequence": GREEN,
    "head activations": PINK,
    "gathered weights": "#8C6D31",
}
_FIXED = {
    name: lighter(colour, 0)
    for name, colour in zip(f"{_STATES}, {_REST}".split(", "), _FREE, strict=True)
} | {name: lighter(colour, 0.5) for name, colour in _PALER.items()}
"""Tensor class -> its colour in every figure."""


@dataclass(frozen=True)
class _Bar:
    label: str
    tensors: dict[str, float]
    """Bytes of each tensor class at the place's fullest moment."""

    @property
    def total(self) -> float:
        return sum(self.tensors.values())


@styled
def memory_bars(
    ledgers: Ledger | Mapping[str, Ledger | Mapping[str, float]],
    capacity: int | None = None,
    *,
    place: str = "place",
    overhead: int = 0,
    unit: str = "bytes",
    limit: tuple[str, float] | None = None,
    title: str = "Memory by tensor class",
) -> "Figure":
    """A figure of stacked bars, one per place at its fullest moment; what exceeds ``capacity``
    (bytes per place) is hatched.

    ``ledgers``: by name; what was counted by hand is bytes by tensor class, for one bar. Places one
    after the other that hold the same are drawn once. ``place`` is the word for a
    place: "stage" (whose bytes are those of one device), "GPU", "worker". ``overhead``: bytes that
    a run takes on every place beside these, such as ``fits(...).overhead.total``; drawn
    last, in grey. ``unit``: what was counted by hand, if not bytes. ``limit``: a dashed line, its
    name and where it is. The legend leaves out what is too thin to be seen in any bar.
    """
    per = _WHOSE.get(place, place)
    said: Callable[[float], str] = format_bytes if unit == "bytes" else "{:.3g}".format
    if isinstance(ledgers, Ledger):
        ledgers = {"": ledgers}
    by_hand = not any(isinstance(each, Ledger) for each in ledgers.values())
    bars = [
        bar for label, ledger in ledgers.items() for bar in _bars(label, ledger, place, overhead)
    ]
    if not bars:
        raise ConfigError("memory_bars needs 1 row or more, got 0; pass a ledger that has rows")
    colours = _colours(bars)
    panels = _panels(bars, capacity or 0)
    when = "" if by_hand else " at its fullest moment"
    if when and max(bar.total for bar in bars) >= 1e9:
        when += " (1 GB = 1e9 bytes)"
    pitch = max(0.1, min(0.36, _HEIGHT / len(bars)))
    figure = canvas(1.35 + sum(0.55 + pitch * len(panel) for panel in panels), title)
    every_axes = draw.stacked_axes(figure, [0.18 / pitch + len(panel) for panel in panels])
    for axes, panel in zip(every_axes, panels, strict=True):
        _panel(axes, panel, capacity, colours, pitch, said)
        if limit:
            draw.limit_line(axes, limit[1], gid=limit[0])
        if len(panels) > 1:
            top = max(capacity or 0, *(bar.total for bar in panel))
            axes.set_title(f"this panel's scale: up to {format_bytes(top)}")
    every_axes[-1].set_xlabel(f"{unit} per {per}{when}")
    wide = _wide(panels)
    entries = [draw.patch_entry(name, each) for name, each in colours.items() if name in wide]
    if any(bar.total > (capacity or bar.total) for bar in bars):
        entries.append(draw.patch_entry("over the capacity", "none", **_OVER))
    if capacity is not None:
        words = f"capacity: {format_bytes(capacity)} per {per}"
        entries.append(draw.line_entry(words, linestyle="--"))
    if limit:
        entries.append(draw.line_entry(limit[0], linestyle="--"))
    draw.legend(figure, entries, 4)
    return figure


def _bars(
    label: str, ledger: Ledger | Mapping[str, float], place: str, overhead: int
) -> list[_Bar]:
    """One bar per run of places that hold the same."""
    more = {_OVERHEAD: overhead} if overhead else {}
    if not isinstance(ledger, Ledger):
        return [_Bar(label, {**ledger, **more})]
    runs: list[tuple[int, int, dict[str, float]]] = []
    for number in ledger.places:
        by_tensor = ledger.by_tensor(number).items()
        tensors: dict[str, float] = {name: size for name, size in by_tensor if size}
        tensors |= more
        if runs and runs[-1][2] == tensors:
            runs[-1] = (runs[-1][0], number, tensors)
        else:
            runs.append((number, number, tensors))
    bars = []
    for first, last, tensors in runs:
        where = f"{place}s {first} to {last}" if len(runs) > 1 else f"every {place}"
        where = f"{place} {first}" if first == last else where
        bars.append(_Bar(f"{label}\n{where}" if label else where, tensors))
    return bars


def _panels(bars: list[_Bar], capacity: int) -> list[list[_Bar]]:
    """The bars by scale, largest first; within a panel they keep their order."""
    panels: list[list[_Bar]] = []
    for bar in sorted(bars, key=lambda bar: -bar.total):
        extent = max(bar.total, capacity)
        if panels and max(panels[-1][0].total, capacity) <= _SPREAD * extent:
            panels[-1].append(bar)
        else:
            panels.append([bar])
    return [[bar for bar in bars if any(bar is each for each in panel)] for panel in panels]


def _wide(panels: list[list[_Bar]]) -> set[str]:
    """The classes that some bar shows: a thousandth of its panel or more."""
    wide = set()
    for panel in panels:
        least = max(bar.total for bar in panel) / 1000
        wide |= {name for bar in panel for name, size in bar.tensors.items() if size >= least}
    return wide


def _colours(bars: list[_Bar]) -> dict[str, tuple]:
    """Of each class: its own, the same in every figure, or else one that is free."""
    names = dict.fromkeys(name for bar in bars for name in bar.tensors)
    classes = [name for name in names if name != _OVERHEAD]
    taken = {_FIXED[name] for name in classes if name in _FIXED}
    # past the last colour come paler ones, so that no two classes look the same
    shades = (lighter(c, share) for share in (0, 0.5, 0.75) for c in _FREE)
    free = (shade for shade in shades if shade not in taken)
    chosen = {name: _FIXED.get(name) or next(free) for name in classes}
    return chosen | ({_OVERHEAD: lighter(GREY, 0.65)} if len(classes) < len(names) else {})


def _panel(
    axes: "Axes",
    bars: list[_Bar],
    capacity: int | None,
    colours: dict[str, tuple],
    pitch: float,
    said: Callable[[float], str],
) -> None:
    worded, height = _worded(bars, pitch), 0.62
    for y, bar in enumerate(bars):
        parts = [(name, size, colours[name]) for name, size in bar.tensors.items()]
        draw.stack(axes, y, parts, height)
        if capacity is not None:
            look = {**_OVER, "gid": "over", "linewidth": 1.2}
            draw.mark_excess(axes, y, capacity, bar.total, height, **look)
        if y in worded:
            draw.note(axes, (max(bar.total, capacity or 0), y), _total(bar.total, capacity, said))
    if capacity is not None:
        draw.limit_line(axes, capacity, gid="capacity")
    axes.set_yticks(worded, [bars[y].label for y in worded])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1.25 * max(capacity or 1, *(bar.total for bar in bars)))
    draw.ticks_as(axes.xaxis, draw.amount(said))
    axes.tick_params(axis="y", length=0)


def _worded(bars: list[_Bar], pitch: float) -> list[int]:
    """The bars that have room for words: all of them, or the fullest and some of the others."""
    lines = 1 + max(bar.label.count("\n") for bar in bars)
    apart = max(1, ceil(0.18 * lines / pitch - 1e-9))
    fullest = max(range(len(bars)), key=lambda y: bars[y].total)
    return list(range(fullest % apart, len(bars), apart))


def _total(total: float, capacity: int | None, said: Callable[[float], str]) -> str:
    if not capacity:
        return said(total)
    share = total / capacity
    return f"{said(total)}: " + (
        f"{100 * share:.0f} % of capacity" if share < 2 else f"{share:.3g} times capacity"
    )
