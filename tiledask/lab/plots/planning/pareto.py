"""The front of a search: what less memory on a device, or fewer devices, cost in time."""

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import style
from tiledask.lab.plots.planning.feasibility import round_bytes, short_layout, summary
from tiledask.lab.plots.style import GREY, INK, ORANGE, PALE, PALETTE, RED, YELLOW, lighter
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["pareto"]

_COLOURS = tuple(colour for colour in PALETTE if colour not in (YELLOW, ORANGE))
_MARKERS = "os^Dv"
_APART = 15.0
"""Points between two numbers: none lies upon another."""
_ROW = 0.19
"""Inches of a line of the table."""


@style.styled
def pareto(plans: Plans, *, knees: int = 6, title: str | None = None) -> "Figure":
    """A figure of seconds a step, by formula, against bytes on the fullest device: a point per plan
    that fits, a line through those of each number of devices that no other beats in both, and of
    about ``knees`` points on the lines the layouts with their simulated seconds."""
    if isinstance(knees, bool) or not isinstance(knees, int) or knees < 1:
        raise ConfigError(f"knees must be an integer of 1 or more, got {knees!r}")
    heading = title or f"What less memory costs in time: {plans.model.name} on {plans.cluster}"
    frame = plans.to_frame(None)
    fronts = {n: _front(frame, n) for n in sorted(frame.devices.unique().tolist())}
    fronts = {n: front for n, front in fronts.items() if len(front)}
    rows = min(max(knees, 2 * len(fronts)), sum(map(len, fronts.values())))
    figure = style.canvas(4.9 + _ROW * rows, fill(heading, 84))
    axes, table = figure.subplots(2, 1, height_ratios=[4.0, _ROW * rows + 0.05])
    table.axis("off")
    axes.set_title(fill(summary(plans), 112), fontsize=8.5)
    _limits(axes, plans, frame)
    _points(axes, frame, fronts)
    if not (frame.verdict != "no").any():
        _nothing(axes, frame, plans[0].shortfall if len(plans) else 0)
    handles, _ = axes.get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside lower left", ncols=3)
    figure.lay_out()
    chosen = _knees(axes, frame, list(fronts.values()), rows)
    for number, at in enumerate(chosen, 1):
        x, y = frame.peak[at], frame.by_formula[at]
        axes.plot(
            x,
            y,
            "o",
            markersize=11,
            color="white",
            markeredgecolor=INK,
            markeredgewidth=1.1,
            zorder=5,
            clip_on=False,
            gid="knee",
        )
        axes.annotate(f"{number}", (x, y), ha="center", va="center_baseline", fontsize=7, zorder=6)
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
    from matplotlib.ticker import FixedLocator, NullLocator

    capacity = plans.cluster.device.memory_bytes
    axes.axvline(
        capacity,
        color=INK,
        linestyle="--",
        linewidth=1.4,
        gid="capacity",
        label=f"capacity: {round_bytes(capacity)} a device",
    )
    axes.set_xlim(0, 1.04 * capacity)
    axes.set_xlabel("bytes on the fullest device, without the overhead of a run (1 GB = 1e9 bytes)")
    axes.set_ylabel("time of a step, by formula")
    axes.xaxis.set_major_formatter(lambda size, _: format_bytes(size) if size else "0")
    axes.grid(color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    seconds = frame.by_formula[frame.verdict != "no"]
    if not len(seconds):
        axes.set_yticks([])
        return
    low, high = seconds.min() / 1.2, seconds.max() * 1.2
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    steps = (1, 2, 5) if high > 8 * low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    ticks = [d * 10.0**e for e in range(-7, 9) for d in steps]
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if low <= t <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda s, _: format_seconds(s))


def _nothing(axes: "Axes", frame: "pd.DataFrame", shortfall: int) -> None:
    """How far the nearest is from the capacity."""
    capacity = axes.lines[0].get_xdata()[0]
    if not len(frame):
        axes.text(0.5, 0.5, "no layout", transform=axes.transAxes, ha="center", color=GREY)
        return
    nearest = frame.peak.min()
    axes.set_ylabel("")
    axes.set_xlim(0, 1.15 * nearest)
    axes.axvline(
        nearest,
        color=RED,
        linewidth=1.4,
        gid="nearest",
        label=f"the nearest layout: {round_bytes(nearest)}",
    )
    axes.axvspan(
        capacity,
        nearest,
        facecolor="none",
        edgecolor=lighter(RED, 0.7),
        hatch="//",
        linewidth=0,
        gid="over",
    )
    axes.text(
        capacity / 2,
        0.5,
        f"nothing fits:\n{round_bytes(shortfall)} are missing",
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="center",
    )


def _points(axes: "Axes", frame: "pd.DataFrame", fronts: dict[int, np.ndarray]) -> None:
    tight = frame[frame.verdict == "tight"]
    if len(tight):
        axes.scatter(
            tight.peak,
            tight.by_formula,
            s=9,
            marker="x",
            color=lighter(ORANGE, 0.15),
            linewidth=0.6,
            gid="tight",
            label=f"{len(tight):,} tight: without the room for a run's overhead",
        )
    capacity = axes.lines[0].get_xdata()[0]
    for n, (devices, front) in enumerate(fronts.items()):
        colour, marker = _COLOURS[n % len(_COLOURS)], _MARKERS[n % len(_MARKERS)]
        fits = frame[(frame.devices == devices) & (frame.verdict == "fits")]
        axes.scatter(
            fits.peak,
            fits.by_formula,
            s=7,
            marker=marker,
            color=lighter(colour, 0.6),
            linewidth=0,
            zorder=2,
            gid=f"{devices} devices",
        )
        best = frame.loc[front]
        # what a step takes with so much memory: as before, until there is enough for the next
        axes.plot(
            best.peak,
            best.by_formula,
            drawstyle="steps-post",
            color=colour,
            linewidth=1.6,
            marker=marker,
            markersize=3.5,
            zorder=3,
            gid=f"front of {devices}",
            label=f"{_count(devices, 'device')}: {_count(len(fits), 'plan')} that fit",
        )
        axes.plot(
            [best.peak.iloc[-1], capacity],
            [best.by_formula.iloc[-1]] * 2,
            color=colour,
            linewidth=0.8,
            linestyle=":",
            zorder=3,
        )


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
    for x, text, align in cells:
        table.text(
            x, y, text, ha=align, va="center", fontsize=7.5, transform=table.transAxes, gid="row"
        )
