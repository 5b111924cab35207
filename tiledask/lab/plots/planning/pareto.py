"""The front of a search: what less memory on a device, or fewer devices, cost in time."""

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.planning.feasibility import round_bytes, short_layout, summary
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import GREY, INK, LINES, ORANGE, RED, canvas, lighter, styled
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.units import format_seconds
from tiledask.plan.whole import whole_number

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["pareto"]

_COLOURS = tuple(colour for colour in LINES if colour != ORANGE)
_MARKERS = "os^Dv"
_APART = 15.0
"""Points between two numbers: none lies upon another."""
_ROW = 0.19
"""Inches of a line of the table."""


@styled
def pareto(plans: Plans, *, knees: int = 6, title: str | None = None) -> "Figure":
    """A figure of seconds a step, by formula, against bytes on the fullest device: a point per plan
    that fits, a line through those of each number of devices that no other beats in both, and of
    about ``knees`` points on the lines the layouts with their simulated seconds."""
    knees = whole_number("knees", knees, 1)
    heading = title or f"What less memory costs in time: {plans.model.name} on {plans.cluster}"
    frame = plans.to_frame(None)
    fronts = {n: _front(frame, n) for n in sorted(frame.devices.unique().tolist())}
    fronts = {n: front for n, front in fronts.items() if len(front)}
    rows = min(max(knees, 2 * len(fronts)), sum(map(len, fronts.values())))
    figure = canvas(4.9 + _ROW * rows, fill(heading, 84))
    axes, table = draw.stacked_axes(figure, [4.0, _ROW * rows + 0.05])
    table.axis("off")
    axes.set_title(fill(summary(plans), 112), fontsize=8.5)
    _limits(axes, plans, frame)
    _points(axes, frame, fronts, plans.cluster.device.memory_bytes)
    if not (frame.verdict != "no").any():
        _nothing(axes, plans, frame)
    draw.legend(figure, axes)
    figure.lay_out()
    ring = {"marker": "o", "markersize": 11, "markeredgecolor": INK, "markeredgewidth": 1.1}
    for number, at in enumerate(_knees(axes, frame, list(fronts.values()), rows), 1):
        x, y = frame.peak[at], frame.by_formula[at]
        draw.curve(axes, x, y, "white", 0, **ring, zorder=5, clip_on=False, gid="knee")
        draw.note(axes, (x, y), f"{number}", (0, 0), 7, va="center_baseline", zorder=6)
        _describe(table, 1 - (number - 0.5) / rows, number, plans[at], len(fronts) > 1)
    return figure


def _front(frame: "pd.DataFrame", devices: int) -> np.ndarray:
    """The plans on ``devices`` devices that fit and that none beats in both, by rising bytes."""
    mine = np.flatnonzero((frame.devices == devices) & (frame.verdict == "fits"))
    mine = mine[np.lexsort((frame.peak.to_numpy()[mine], frame.by_formula.to_numpy()[mine]))]
    peak = frame.peak.to_numpy()[mine]  # in the order of time
    least = np.minimum.accumulate(peak)
    return mine[np.r_[True, peak[1:] < least[:-1]][: len(mine)]][::-1]


def _limits(axes: "Axes", plans: Plans, frame: "pd.DataFrame") -> None:
    """The axes, and where a device is full."""
    capacity = plans.cluster.device.memory_bytes
    words = f"capacity: {round_bytes(capacity)} a device"
    draw.limit_line(axes, capacity, gid="capacity", label=words)
    seen = frame.peak[frame.verdict != "no"]
    # no point below: no need for empty space down to 0
    least = 0.0 if seen.empty or seen.min() < capacity / 2 else 0.9 * float(seen.min())
    axes.set_xlim(least, 1.04 * capacity)
    axes.set_xlabel("bytes on the fullest device, without the overhead of a run (1 GB = 1e9 bytes)")
    draw.byte_ticks(axes.xaxis)
    draw.grid(axes)
    seconds = frame.by_formula[frame.verdict != "no"]
    if not len(seconds):
        axes.set_yticks([])
        return
    axes.set_ylabel("time of a step, by formula")
    low, high = seconds.min() / 1.2, seconds.max() * 1.2
    digits = (1, 2, 5) if high > 8 * low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    draw.log_ticks(axes.yaxis, low, high, format_seconds, digits)


def _nothing(axes: "Axes", plans: Plans, frame: "pd.DataFrame") -> None:
    """How far the nearest is from the capacity."""
    capacity, middle = plans.cluster.device.memory_bytes, {"ha": "center", "va": "center"}
    if not len(frame):
        axes.text(0.5, 0.5, "no layout", transform=axes.transAxes, **middle, color=GREY)
        return
    nearest = frame.peak.min()
    axes.set_xlim(0, 1.15 * nearest)
    words = f"the nearest layout: {round_bytes(nearest)}"
    draw.limit_line(axes, nearest, color=RED, linestyle="-", gid="nearest", label=words)
    over = {"edgecolor": lighter(RED, 0.7), "hatch": "//", "linewidth": 0, "gid": "over"}
    axes.axvspan(capacity, nearest, facecolor="none", **over)
    words = f"nothing fits:\n{round_bytes(plans[0].shortfall)} are missing"
    axes.text(capacity / 2, 0.5, words, transform=axes.get_xaxis_transform(), **middle)


def _points(
    axes: "Axes", frame: "pd.DataFrame", fronts: dict[int, np.ndarray], capacity: int
) -> None:
    tight = frame[frame.verdict == "tight"]
    if len(tight):
        look = {"s": 9, "marker": "x", "color": lighter(ORANGE, 0.15), "linewidth": 0.6}
        words = f"{len(tight):,} tight: without the room for a run's overhead"
        axes.scatter(tight.peak, tight.by_formula, **look, gid="tight", label=words)
    for n, (devices, front) in enumerate(fronts.items()):
        colour, marker = _COLOURS[n % len(_COLOURS)], _MARKERS[n % len(_MARKERS)]
        fits = frame[(frame.devices == devices) & (frame.verdict == "fits")]
        look = {"s": 7, "marker": marker, "color": lighter(colour, 0.6), "linewidth": 0}
        axes.scatter(fits.peak, fits.by_formula, **look, zorder=2, gid=f"{devices} devices")
        best = frame.loc[front]
        # what a step takes with so much memory: as before, until there is enough for the next
        words = f"{_count(devices, 'device')}: {_count(len(fits), 'plan')} that fit"
        look = {"drawstyle": "steps-post", "marker": marker, "markersize": 3.5, "zorder": 3}
        look |= {"gid": f"front of {devices}", "label": words}
        draw.curve(axes, best.peak, best.by_formula, colour, **look)
        peak, seconds = best.peak.iloc[-1], best.by_formula.iloc[-1]
        draw.curve(axes, [peak, capacity], [seconds] * 2, colour, 0.8, linestyle=":", zorder=3)


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}{'s' * (n != 1)}"


def _knees(axes: "Axes", frame: "pd.DataFrame", fronts: list[np.ndarray], most: int) -> list[int]:
    """Up to ``most`` plans: of each front its ends, then what lies farthest from the straight
    line between those already chosen; from left to right, front after front."""
    pixels = axes.figure.dpi / 72
    spots = [
        axes.transData.transform(frame.loc[f, ["peak", "by_formula"]]) / pixels for f in fronts
    ]
    chosen: list[tuple[int, int]] = []

    def taken(spot: np.ndarray) -> bool:
        return any(np.hypot(*(spots[k][at] - spot)) < _APART for k, at in chosen)

    # the fastest first: it is the one that people look for
    ends = [(k, len(front) - 1) for k, front in enumerate(fronts)]
    ends += [(k, 0) for k in range(len(fronts))]
    for k, at in ends:
        if len(chosen) < most and not taken(spots[k][at]):
            chosen.append((k, at))
    while len(chosen) < most:
        turns = [
            (_turn(spots[k], sorted(at for j, at in chosen if j == k), at), k, at)
            for k, front in enumerate(fronts)
            for at in range(len(front))
            if not taken(spots[k][at])
        ]
        if not turns or max(turns)[0] < 1:
            break
        chosen.append(max(turns)[1:])
    return [int(fronts[k][at]) for k, at in sorted(chosen)]


def _turn(spots: np.ndarray, chosen: list[int], at: int) -> float:
    """Points between spot ``at`` and the straight line through its chosen neighbours."""
    before = max((c for c in chosen if c < at), default=None)
    behind = min((c for c in chosen if c > at), default=None)
    if before is None or behind is None:
        return 0.0
    (dx, dy), (x, y) = spots[behind] - spots[before], spots[at] - spots[before]
    return float(abs(dx * y - dy * x) / np.hypot(dx, dy))


def _describe(table: "Axes", y: float, number: int, plan: Plan, several: bool) -> None:
    cells = [
        (0.012, f"{number}", "center"),
        (0.09, format_seconds(plan.seconds), "right"),
        (0.17, round_bytes(plan.peak), "right"),
    ]
    if several:
        cells.append((0.27, _count(plan.layout.devices, "device"), "right"))
    cells.append((0.29 if several else 0.19, short_layout(plan.layout), "left"))
    look = {"va": "center", "fontsize": 7.5, "transform": table.transAxes, "gid": "row"}
    for x, text, align in cells:
        table.text(x, y, text, ha=align, **look)
