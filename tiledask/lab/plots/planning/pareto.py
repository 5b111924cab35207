"""The front of a search: what less memory on a device, or fewer devices, cost in time."""

from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.planning.feasibility import round_bytes, summary
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import GREY, LINES, ORANGE, canvas, lighter, styled
from tiledask.plan.choosing.search import Plans
from tiledask.plan.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["pareto"]

_COLOURS = tuple(colour for colour in LINES if colour != ORANGE)


@styled
def pareto(plans: Plans) -> "Figure":
    """A figure of seconds a step, by formula, against bytes on the fullest device: a point per plan
    that fits, and a line through those of each number of devices that no other beats in both."""
    heading = f"What less memory costs in time: {plans.model.name} on {plans.cluster}"
    capacity, frame = plans.cluster.device.memory_bytes, plans.to_frame(None)
    figure = canvas(4.6, fill(heading, 84))
    axes = figure.subplots()
    axes.set_title(fill(summary(plans), 112), fontsize=8.5)
    words = f"capacity: {round_bytes(capacity)} a device"
    draw.limit_line(axes, capacity, gid="capacity", label=words)
    tight = frame[frame.verdict == "tight"]
    if len(tight):
        look = {"s": 9, "marker": "x", "color": lighter(ORANGE, 0.15), "linewidth": 0.6}
        words = f"{len(tight):,} tight: without the room for a run's overhead"
        axes.scatter(tight.peak, tight.by_formula, **look, gid="tight", label=words)
    for devices, colour in zip(sorted(frame.devices.unique().tolist()), cycle(_COLOURS)):
        fits = frame[(frame.devices == devices) & (frame.verdict == "fits")]
        if len(fits):
            look = {"s": 7, "color": lighter(colour, 0.6), "linewidth": 0, "zorder": 2}
            axes.scatter(fits.peak, fits.by_formula, **look, gid=f"{devices} devices")
            # what a step takes with so much memory: as before, until there is enough for the next
            best = _front(fits)
            words = f"{devices:,} device{'s' * (devices != 1)}: {len(fits):,} that fit"
            look = {"drawstyle": "steps-post", "marker": "o", "markersize": 3.5, "zorder": 3}
            look |= {"gid": f"front of {devices}", "label": words}
            draw.curve(axes, best.peak, best.by_formula, colour, **look)
    seen = frame[frame.verdict != "no"]
    if len(seen):
        low, high = seen.by_formula.min() / 1.2, seen.by_formula.max() * 1.2
        digits = (1, 2, 5) if high > 8 * low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
        draw.log_ticks(axes.yaxis, low, high, format_seconds, digits)
        axes.set_ylabel("time of a step, by formula")
    else:
        missing = f"nothing fits:\n{round_bytes(plans[0].shortfall)} are missing"
        words, middle = missing if len(frame) else "no layout", {"ha": "center", "va": "center"}
        axes.text(0.5, 0.5, words, transform=axes.transAxes, color=GREY, **middle)
        axes.set_yticks([])
    # no point below: no need for empty space down to 0
    near = len(seen) and seen.peak.min() > capacity / 2
    axes.set_xlim(0.9 * float(seen.peak.min()) if near else 0.0, 1.04 * capacity)
    axes.set_xlabel("bytes on the fullest device, without the overhead of a run (1 GB = 1e9 bytes)")
    draw.byte_ticks(axes.xaxis)
    draw.grid(axes)
    draw.legend(figure, axes)
    return figure


def _front(fits: "pd.DataFrame") -> "pd.DataFrame":
    """The plans that none beats in both, by rising bytes."""
    by_time = fits.sort_values(["by_formula", "peak"])
    peak = by_time.peak.to_numpy()
    least = np.minimum.accumulate(peak)
    return by_time[np.r_[True, peak[1:] < least[:-1]]][::-1]
