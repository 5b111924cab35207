"""Bars of what a plan needs, bytes by tensor class and the time of a step by its parts; curves of
what was computed or measured at several sizes or steps.

A ledger of 3.2 TB and one of 36 GB cannot share a linear axis, and the parts of a bar lie on a
logarithmic one. So ledgers of like size share a panel, every panel has a linear axis from 0,
and the same capacity is drawn in each: a sliver beside 3.2 TB, a limit beside 36 GB.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle, groupby
from math import ceil
from textwrap import fill
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PALETTE,
    PINK,
    RED,
    SKY,
    YELLOW,
    canvas,
    lighter,
    styled,
)
from tiledask.plan.ledger import Ledger
from tiledask.plan.timing.step import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["PARTS", "curves", "memory_bars", "step_breakdown"]

_SPREAD = 6.0
"""The largest ratio of extents in one panel: a bar of a sixth of the width is still legible."""
_INCHES = 7.2
"""Of all bars: more of them than 20 are thinner, and not all have words."""
_OVERHEAD = "overhead of a run"
_OVER: draw.Look = {"edgecolor": RED, "hatch": "////", "linewidth": 1.2}
_FREE = [colour for colour in PALETTE if colour != RED]
"""RED is kept for what is over the capacity."""
_STATES = "weights, gradients, master weights, momentum, variance"
_REST = "activations, embedding activations, activation gradients, recomputed activations"
_COLOURS: dict[str, Any] = {
    **dict(zip(f"{_STATES}, {_REST}".split(", "), _FREE, strict=True)),
    "unreduced gradients": lighter(ORANGE, 0.5),
    "gathered sequence": lighter(GREEN, 0.5),
    "head activations": lighter(PINK, 0.5),
    "gathered weights": lighter("#8C6D31", 0.5),
    _OVERHEAD: lighter(GREY, 0.65),
}
"""Tensor class -> its colour in every figure."""


@styled
def memory_bars(
    ledgers: Any,
    capacity: int | None = None,
    *,
    place: str = "place",
    overhead: int = 0,
    title: str = "Memory by tensor class",
) -> Figure:
    """A figure of stacked bars, one per place at its fullest moment; what exceeds ``capacity``
    (bytes per place) is hatched.

    ``ledgers``: one, or several by name; what was counted by hand is bytes by tensor class, for one
    bar. Places one after the other that hold the same are drawn once. ``place`` is the word for a
    place: "stage" (whose bytes are those of one device), "GPU", "worker". ``overhead``: bytes that
    a run takes on every place beside these, such as ``fits(...).overhead.total``; drawn
    last, in grey.
    """
    ledgers = getattr(ledgers, "ledger", ledgers)  # of an estimate
    ledgers = {"": ledgers} if isinstance(ledgers, Ledger) else ledgers
    bars = [bar for name, each in ledgers.items() for bar in _bars(name, each, place, overhead)]
    if not bars:
        raise ConfigError("memory_bars needs 1 row or more, got 0; pass a ledger that has rows")
    totals, cap = [sum(tensors.values()) for _, tensors in bars], capacity or 0
    classes = dict.fromkeys(name for _, tensors in bars for name in tensors)
    groups, colours = _by_scale(totals, cap), _colours(classes)
    pitch = max(0.1, min(0.36, _INCHES / len(bars)))
    panels, tops, visible = [], list[float](), set[str]()
    for group in groups:
        boxes, fullest = [], max(group, key=totals.__getitem__)
        tops.append(max(cap, totals[fullest]))
        for row, n in enumerate(group):
            left = 0.0
            for name, size in bars[n][1].items():
                boxes.append(draw.span(row, left, left + size, colours[name], gid=name))
                left += size
        visible |= {box.gid for box in boxes if box.at[2] >= tops[-1] / 500}
        scale = f"this panel's scale: up to {format_bytes(tops[-1])}" * (len(groups) > 1)
        lines = 1 + max(bars[n][0].count("\n") for n in group)
        step, first = ceil(0.18 * lines / pitch - 1e-9), group.index(fullest)
        names = [bars[n][0] * ((row - first) % step == 0) for row, n in enumerate(group)]
        panels.append((scale, names, boxes))
    per = "device" if place == "stage" else place
    entries = [draw.patch_entry(n, colour) for n, colour in colours.items() if n in visible]
    if max(totals) > cap * (1 + 1e-9) and cap:
        entries.append(draw.patch_entry("over the capacity", "none", **_OVER))
    if cap:
        words = f"capacity: {format_bytes(cap)} per {per}"
        entries.append(draw.line_entry(words, **draw.DASHED))
    when = " at its fullest moment" * any(isinstance(each, Ledger) for each in ledgers.values())
    when += " (1 GB = 1e9 bytes)" if when and max(totals) >= 1e9 else ""
    below = f"bytes per {per}{when}"
    figure, every = draw.lane_figure(title, panels, entries, xlabel=below, pitch=pitch)
    for axes, (_, names, _), group, top in zip(every, panels, groups, tops, strict=True):
        axes.set_xlim(0, 1.25 * max(top, 1))
        _label(axes, names, [totals[n] for n in group], cap)
    return figure


def _label(axes: draw.Axes, names: list[str], totals: list[float], cap: float) -> None:
    """Totals at the right of the bars that are named, what is above the capacity, and a line."""
    draw.ticks_as(axes.xaxis, format_bytes)
    if cap:
        axes.axvline(cap, gid="capacity", **draw.DASHED)
    for row, (name, total) in enumerate(zip(names, totals, strict=True)):
        of = ""
        if cap:
            draw.mark_excess(axes, row, cap, total, **_OVER, gid="over")
            share = total / cap
            of = f": {100 * share:.0f} % of" if share < 2 else f": {share:.3g} times"
            of += " capacity"
        if name:
            short = total + max(cap, *totals) / 2 < cap  # its words end before the line
            at = total if short else max(total, cap)
            draw.note(axes, (at, row), format_bytes(total) + of)


def _bars(
    label: str, ledger: Ledger | Mapping[str, float], place: str, overhead: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """(label, bytes of each tensor class) of each run of places that hold the same."""
    more: dict[str, float] = {_OVERHEAD: overhead} if overhead else {}
    if not isinstance(ledger, Ledger):
        yield label, {**ledger, **more}
        return

    def held(number: int) -> dict[str, float]:
        return {name: size for name, size in ledger.by_tensor(number).items() if size} | more

    runs = [(tensors, [*numbers]) for tensors, numbers in groupby(ledger.places, held)]
    for tensors, (first, *rest) in runs:
        where = f"{place}s {first} to {rest[-1]}" if rest else f"{place} {first}"
        where = f"every {place}" if rest and len(runs) == 1 else where
        yield f"{label}\n{where}" if label else where, tensors


def _by_scale(totals: list[float], capacity: float) -> list[list[int]]:
    """The bars of each panel, the largest panel first; within one they keep their order."""
    panels: list[list[int]] = []
    for n in sorted(range(len(totals)), key=lambda n: -totals[n]):
        least = _SPREAD * max(totals[n], capacity)
        if not panels or max(totals[panels[-1][0]], capacity) > least:
            panels.append([])
        panels[-1].append(n)
    return [sorted(panel) for panel in panels]


def _colours(names: Mapping[str, None]) -> dict[str, Any]:
    """Of each class: its own, the same in every figure, or else one that is free."""
    # past the last colour come paler ones, so that no two classes look the same
    shades = [lighter(c, share) for share in (0, 0.5, 0.75) for c in _FREE]
    taken = {lighter(_COLOURS[name], 0) for name in names if name in _COLOURS}
    free = (shade for shade in shades if shade not in taken)
    return {name: _COLOURS.get(name) or next(free) for name in sorted(names, key=_OVERHEAD.__eq__)}


# -- the time of a step --------------------------------------------------------------------------

# a colour for each part in every figure, so that two can be compared
PARTS = {
    "compute": (BLUE, "compute"),
    "recompute": (SKY, "recompute: activations again"),
    "tp": (ORANGE, "tp: waiting for tensor parallelism"),
    "cp": (YELLOW, "cp: waiting for keys and values"),
    "ep": (PINK, "ep: waiting for experts"),
    "pp": (PALETTE[7], "pp: transfers between stages"),
    "bubble": (PALE, "bubble: filling and draining"),
    "dp": (GREEN, "dp: waiting for gradients, weights"),
    "optimizer": (PALETTE[9], "optimizer: weights are updated"),
}


@styled
def step_breakdown(
    steps: Mapping[str, StepEstimate],
    *,
    per: int | None = None,
    title: str = "Where the time of a step goes",
) -> Figure:
    """A figure with a bar per step: time and share of each part where there is room, and at the
    end the step's time and MFU. ``per``: seconds are times the step's devices over so many, so that
    bars of more devices can be compared."""
    if not steps:
        raise ConfigError("step_breakdown draws 1 step or more, got 0; pass {'name': plan.step}")
    boxes, names, ends = [], [fill(name, 76) for name in steps], []
    for row, step in enumerate(steps.values()):
        times, left = (step.layout.devices / per if per else 1.0), 0.0
        ends.append(times * step.total)
        for part, (colour, _) in PARTS.items():
            if seconds := times * getattr(step, part):
                words = _words(part, seconds, seconds / ends[-1], per)
                at = (left, row - 0.18, seconds, 0.58)  # its name stands above it
                look: draw.Look = {"linewidth": 0.6, "hatch": "...." if part == "bubble" else None}
                boxes.append(draw.Box(at, colour, words, part, look))
                left += seconds
    seen = {box.gid: box for box in boxes}
    entries = [
        draw.patch_entry(label, colour, edgecolor="white", hatch=seen[part].look["hatch"])
        for part, (colour, label) in PARTS.items()
        if part in seen
    ]
    figure, (axes,) = draw.lane_figure(
        title,
        [("", [""] * len(steps), boxes)],
        entries,
        xlabel=f"time of a step × devices / {per}" if per else "time of a step",
        across=(0, 1.16 * max(ends)),
        pitch=0.6 + 0.3 * max(name.count("\n") for name in names),
    )
    for row, (name, step) in enumerate(zip(names, steps.values(), strict=True)):
        draw.note(axes, (0, row - 0.18), name, (0, 2), ha="left")
        total = f"{format_seconds(ends[row])}\nMFU {100 * step.mfu:.1f} %"
        draw.note(axes, (ends[row], row + 0.11), total)
    draw.ticks_as(axes.xaxis, format_seconds)
    return draw.write(figure, [(axes, boxes)])


def _words(part: str, seconds: float, share: float, per: int | None) -> tuple[str, ...]:
    """As many as may fit; of bars of more devices the seconds are what they have in common."""
    time = f"{seconds:.2f} s" if 1 <= seconds < 10 else format_seconds(seconds)
    percent = f"{100 * share:.0f} %"
    short = percent if per is None else f"{seconds:.1f} s" if seconds >= 0.1 else time
    both = f"{part}\n{time}"
    return f"{both}, {percent}", f"{both}\n{percent}", f"{part}\n{short}", part, short


# -- curves ----------------------------------------------------------------------------------------

_FINE = 40
"""Points from which on a line is drawn without dots, and has no ticks of its own."""


@styled
def curves(
    series: Mapping[str, Mapping[float, float]],
    *,
    xlabel: str,
    ylabel: str,
    marks: Mapping[str, Mapping[float, float]] | None = None,
    log: str = "xy",
    title: str = "",
) -> Figure:
    """A figure with a line for each of ``series``: name -> {x: y}, and red crosses at ``marks``.

    On the axes that are logarithmic, ``log`` ("", "x", "y" or "xy"), numbers are above 0. There
    all values of x are ticks, and labels beginning with "bytes" or "seconds" have suitable units. A
    line of 40 points or more is one of a formula: it has no dots and no ticks. Where ``marks`` have
    several names, each stands left of its points, and they have no ticks.

    >>> len(curves({"one core": {64: 1e-5, 128: 8e-5}}, xlabel="n", ylabel="seconds").axes)
    1
    """
    marks = marks or {}
    beside = len(marks) > 1
    every = [*series.values(), *marks.values()]
    xs, ys = [x for line in every for x in line], [y for line in every for y in line.values()]
    if not ys or ("x" in log and min(xs) <= 0) or ("y" in log and min(ys) <= 0):
        raise ConfigError(
            f"curves draws 1 line or more, on logarithmic axes of numbers above 0, got "
            f"{dict(series)}; pass {{'one core': {{64: 1e-5, 128: 8e-5}}}}"
        )
    figure = canvas(3.2, title)
    axes = figure.subplots()
    for colour, (name, line) in zip(cycle(PALETTE), series.items(), strict=False):
        look: draw.Look = {} if len(line) >= _FINE else {"marker": "o", "markersize": 4}
        look |= {"linewidth": 2.0, "color": colour, "label": name, "gid": name}
        axes.plot([*line], [*line.values()], **look)
    for name, line in marks.items():
        look = {"markersize": 7, "markeredgewidth": 1.8, "gid": name, "zorder": 5, "color": RED}
        axes.plot([*line], [*line.values()], "x", label=None if beside else name, **look)
        for at in line.items() if beside else ():
            draw.note(axes, at, name, (-4, 4), color=RED)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if "y" in log:
        axes.set(yscale="log", ylim=(min(ys) / 2, 2 * max(ys)))
        digits = (1,) if max(ys) > 100 * min(ys) else (1, 2, 5)
        _log_ticks(axes.yaxis, digits, ylabel, "{:g}".format)
    if "x" in log:
        axes.set(xscale="log")
        named = [*series.values(), *(() if beside else marks.values())]
        _log_ticks(axes.xaxis, (1,), xlabel, lambda x: f"{x:,.0f}" if x % 1 == 0 else f"{x:.3g}")
        if ticks := sorted({x for line in named if len(line) < _FINE for x in line}):
            axes.set_xticks(ticks)
    elif beside:
        axes.margins(x=0.18)  # for the words at the left
    axes.grid()
    if names := [*series, *(() if beside else marks)]:
        columns = min(len(names), max(1, 70 // (8 + max(map(len, names)))))
        figure.set_figheight(3.2 + 0.2 * (-(-len(names) // columns) - 1))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=columns)
    return figure


def _log_ticks(
    axis: draw.Axes, digits: tuple[int, ...], label: str, other: Callable[[float], str]
) -> None:
    """Ticks at ``digits`` times powers of ten, in the unit that ``label`` begins with, if any."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=digits, numticks=20))
    axis.set_minor_locator(NullLocator())
    units = {"bytes": format_bytes, "seconds": format_seconds}
    draw.ticks_as(axis, units.get(label.partition(" ")[0], other))
