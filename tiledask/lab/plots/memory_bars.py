"""Memory bars: bytes by tensor class on every place, against what a device can hold.

A ledger of 3.2 TB and one of 36 GB cannot share a linear axis, and the parts of a bar lie on a
logarithmic one. So ledgers of like size share a panel, every panel has a linear axis from 0,
and the same capacity is drawn in each: a sliver beside 3.2 TB, a limit beside 36 GB.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from math import ceil
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
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
_INCHES, _HIGH = 7.2, 0.62
"""Of all bars: more of them than 20 are thinner, and not all have words; of a bar, in rows."""
_OVERHEAD = "overhead of a run"
_OVER = {"edgecolor": RED, "hatch": "////", "linewidth": 1.2}
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

Bar = tuple[str, dict[str, float]]
"""A label, and the bytes of each tensor class at the place's fullest moment."""


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
    ledgers = {"": ledgers} if isinstance(ledgers, Ledger) else ledgers
    more: dict[str, float] = {_OVERHEAD: overhead} if overhead else {}
    bars = [bar for each in ledgers.items() for bar in _bars(*each, place, more)]
    if not bars:
        raise ConfigError("memory_bars needs 1 row or more, got 0; pass a ledger that has rows")
    per = "device" if place == "stage" else place
    said: Callable[[float], str] = format_bytes if unit == "bytes" else "{:.3g}".format
    colours = _colours(dict.fromkeys(name for _, tensors in bars for name in tensors))
    panels, limits = _panels(bars, capacity or 0), [limit] if limit else []
    if capacity is not None:
        limits = [(f"capacity: {format_bytes(capacity)} per {per}", capacity), *limits]
    pitch = max(0.1, min(0.36, _INCHES / len(bars)))
    figure = canvas(1.35 + sum(0.55 + pitch * len(panel) for panel in panels), title)
    every_axes = draw.stacked_axes(figure, [0.18 / pitch + len(panel) for panel in panels])
    visible = set()
    for axes, panel in zip(every_axes, panels, strict=True):
        top = max(capacity or 0, *(_total(bar) for bar in panel))
        boxes = [
            box for row, (_, tensors) in enumerate(panel) for box in _boxes(row, tensors, colours)
        ]
        visible |= {box.gid for box in boxes if box.at[2] >= max(map(_total, panel)) / 1000}
        named = _worded(panel, pitch)
        draw.boxes(axes, boxes)
        axes.set_yticks(named, [panel[row][0] for row in named])
        axes.set_ylim(len(panel) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        for row, bar in enumerate(panel):
            if capacity is not None:
                draw.mark_excess(axes, row, capacity, _total(bar), _HIGH, **_OVER, gid="over")
            if row in named:
                at = max(_total(bar), capacity or 0), row
                draw.note(axes, at, _words(_total(bar), capacity, said))
        for name, where in limits:
            axes.axvline(where, gid=name, **draw.DASHED)
        axes.set_xlim(0, 1.25 * max(top, 1))
        draw.ticks_as(axes.xaxis, said)
        if len(panels) > 1:
            axes.set_title(f"this panel's scale: up to {format_bytes(top)}")
    when = " at its fullest moment" * any(isinstance(each, Ledger) for each in ledgers.values())
    when += " (1 GB = 1e9 bytes)" if when and max(map(_total, bars)) >= 1e9 else ""
    every_axes[-1].set_xlabel(f"{unit} per {per}{when}")
    entries: list[Any] = [draw.patch_entry(*each) for each in colours.items() if each[0] in visible]
    if any(_total(bar) > (capacity or _total(bar)) for bar in bars):
        entries.append(draw.patch_entry("over the capacity", "none", **_OVER))
    entries += [draw.line_entry(name, **draw.DASHED) for name, _ in limits]
    draw.legend(figure, entries, 4)
    return figure


def _bars(
    label: str, ledger: Ledger | Mapping[str, float], place: str, more: dict[str, float]
) -> Iterator[Bar]:
    """One per run of places that hold the same."""
    if not isinstance(ledger, Ledger):
        yield label, {**ledger, **more}
        return

    def held(number: int) -> dict[str, float]:
        return {name: size for name, size in ledger.by_tensor(number).items() if size} | more

    runs = [(tensors, [*numbers]) for tensors, numbers in groupby(ledger.places, held)]
    for tensors, (first, *rest) in runs:
        where = f"every {place}" if len(runs) == 1 else f"{place}s {first} to {[first, *rest][-1]}"
        where = where if rest else f"{place} {first}"
        yield f"{label}\n{where}" if label else where, tensors


def _total(bar: Bar) -> float:
    return sum(bar[1].values())


def _boxes(row: int, tensors: dict[str, float], colours: dict[str, Any]) -> Iterator[draw.Box]:
    left, look = 0.0, {"linewidth": 0.6}
    for name, size in tensors.items():
        yield draw.span(row, left, left + size, colours[name], gid=name, height=_HIGH, look=look)
        left += size


def _panels(bars: list[Bar], capacity: int) -> list[list[Bar]]:
    """The bars by scale, largest first; within a panel they keep their order."""
    panels: list[list[int]] = []
    for at in sorted(range(len(bars)), key=lambda at: -_total(bars[at])):
        first = panels[-1][0] if panels else at
        if panels and max(_total(bars[first]), capacity) <= _SPREAD * max(
            _total(bars[at]), capacity
        ):
            panels[-1].append(at)
        else:
            panels.append([at])
    return [[bars[at] for at in sorted(panel)] for panel in panels]


def _colours(names: Mapping[str, None]) -> dict[str, Any]:
    """Of each class: its own, the same in every figure, or else one that is free."""
    taken = {_FIXED[name] for name in names if name in _FIXED}
    # past the last colour come paler ones, so that no two classes look the same
    shades = (lighter(c, share) for share in (0, 0.5, 0.75) for c in _FREE)
    free = (shade for shade in shades if shade not in taken)
    classes = [name for name in names if name != _OVERHEAD]
    chosen = {name: _FIXED.get(name) or next(free) for name in classes}
    return chosen | ({_OVERHEAD: lighter(GREY, 0.65)} if len(classes) < len(names) else {})


def _worded(bars: list[Bar], pitch: float) -> list[int]:
    """The bars that have room for words: all of them, or the fullest and some of the others."""
    lines = 1 + max(label.count("\n") for label, _ in bars)
    apart = max(1, ceil(0.18 * lines / pitch - 1e-9))
    fullest = max(range(len(bars)), key=lambda at: _total(bars[at]))
    return [*range(fullest % apart, len(bars), apart)]


def _words(total: float, capacity: int | None, said: Callable[[float], str]) -> str:
    if not capacity:
        return said(total)
    share = total / capacity
    more = f"{100 * share:.0f} % of capacity" if share < 2 else f"{share:.3g} times capacity"
    return f"{said(total)}: {more}"
