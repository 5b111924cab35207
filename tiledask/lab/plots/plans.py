"""What a search found: which shapes fit and how fast they are; what less memory costs in time."""

from textwrap import fill
from typing import Any

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.curves import curves
from tiledask.lab.plots.primitives import Box, Figure
from tiledask.lab.plots.style import BLUE, INK, ORANGE, PALE, canvas, lighter, styled
from tiledask.plan.choosing.search import Plans
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["feasibility", "pareto", "round_bytes", "short_layout", "summary"]

_COLOURS = {"fits": BLUE, "tight": lighter(ORANGE, 0.45), "no": PALE}
_BEST = {"edgecolor": INK, "linewidth": 2.2, "zorder": 3}


@styled
def feasibility(plans: Plans) -> "Figure":
    """A figure with a cell for every tp and pp: the time of a step and the bytes of the best plan
    that has them, or how many bytes it is too large by; empty where no layout splits evenly. The
    best of all has a frame."""
    # the best plan of each pair that has one: plans lie in their order
    firsts = plans.to_frame(None)[["tp", "pp"]].drop_duplicates()
    best = {(tp, pp): plans[at] for at, tp, pp in firsts.itertuples(name=None)}
    columns, rows = (sorted({pair[at] for pair in best}) or [1] for at in (0, 1))
    title = fill(f"What fits, and how fast: {_of(plans)}", 84)
    figure = canvas(1.9 + 0.4 * max(3, len(rows)), title)
    axes, boxes = figure.subplots(), []
    for (tp, pp), plan in best.items():
        at = columns.index(tp) - 0.48, rows.index(pp) - 0.46, 0.96, 0.92
        colour: Any = _COLOURS[plan.verdict]
        first = format_seconds(plan.seconds)
        if plan.verdict == "fits":  # at twice the time it is as pale as it gets
            colour = lighter(colour, min(0.85, 1.7 * (1 - plans[0].seconds / plan.seconds)))
        elif plan.verdict == "no":
            first = f"+{round_bytes(plan.shortfall)}"
        if plan.layout == plans[0].layout:
            draw.box(axes, at, "none", gid="best", **_BEST)
            first = f"★ {first}"
        words = f"{first}\n{round_bytes(plan.peak)}", first
        boxes.append(Box(at, colour, words, plan.verdict, {"linewidth": 0}))
    axes.set_title(fill(summary(plans), 112), fontsize=8.5)
    draw.cells(axes, columns, rows)
    draw.boxes(axes, boxes)
    axes.set(xlabel="tensor parallelism (tp)", ylabel="pipeline stages (pp)")
    labels = {
        "fits": "fits: time of a step (darker: faster)",
        "tight": "tight: fits or not, by the overhead of a run",
        "no": f"too large: bytes over {round_bytes(plans.cluster.device.memory_bytes)}",
    }
    verdicts = {plan.verdict for plan in best.values()}
    entries = [draw.patch_entry(labels[n], _COLOURS[n]) for n in labels if n in verdicts]
    word = "the nearest" if verdicts == {"no"} else "the best of all"
    draw.legend(figure, [*entries, draw.patch_entry(f"★ {word}", "none", **_BEST)], 2)
    figure.lay_out()
    draw.write(axes, boxes, 8.0)
    return figure


def pareto(plans: Plans) -> "Figure":
    """A figure of the time of a step, by formula, against the bytes on the fullest device: a line
    for each number of devices, through the plans that fit and that no other beats in both."""
    lines: dict[str, dict[float, float]] = {}
    frame = plans.to_frame(None).sort_values(["by_formula", "peak"])
    for devices, fits in frame[frame.verdict == "fits"].groupby("devices"):
        front = fits[fits.peak < fits.peak.cummin().shift().fillna(float("inf"))]
        words = f"{devices:,} device{'s' * (devices != 1)}: {len(fits):,} that fit"
        lines[words] = dict(zip(front.peak[::-1], front.by_formula[::-1], strict=True))
    title = fill(f"What less memory costs in time: {_of(plans)}", 84)
    axis = "bytes on the fullest device, without a run's overhead; dashed: what a device has"
    if not lines:
        empty = canvas(1.2, title)
        axes = empty.subplots()
        axes.set_axis_off()
        axes.set_title(fill(summary(plans), 112), fontsize=8.5)
        return empty
    names: draw.Look = {"xlabel": axis, "ylabel": "seconds of a step, by formula", "title": title}
    figure = curves(lines, log="y", **names)
    (axes,) = figure.axes
    for line in axes.lines:  # as before, until there is enough memory for the next
        line.set_drawstyle("steps-post")
    draw.ticks_as(axes.xaxis, format_bytes)
    axes.axvline(plans.cluster.device.memory_bytes, gid="capacity", **draw.DASHED)
    axes.set_title(fill(summary(plans), 112), fontsize=8.5)
    return figure


def _of(plans: Plans) -> str:
    return f"{plans.model.name} on {plans.cluster}"


# -- in words ------------------------------------------------------------------------------------


def summary(plans: Plans) -> str:
    """What was searched for and what is best, in a sentence."""
    plural = "s" * (plans.global_batch != 1)
    task = f"{plans.global_batch:,} sequence{plural} of {plans.sequence:,} tokens a step"
    if not len(plans):
        return f"{task}: no layout splits them evenly"
    best = plans[0]
    layout, size = short_layout(best.layout), round_bytes(best.peak)
    if best.verdict == "no":
        over = round_bytes(best.shortfall)
        return f"{task}: nothing fits; the nearest takes {size}, {over} too much: {layout}"
    word = "best" if best.verdict == "fits" else "nothing fits for sure; the best tight one"
    return f"{task}; {word}: {format_seconds(best.seconds)}, {size}, {layout}"


def short_layout(layout: Layout) -> str:
    """The layout in one line, without what follows from the batch, and what is usual.

    >>> short_layout(Layout(dp=2, tp=8, zero=1, microbatches=9, flash_attention=True,
    ...                     sequence_parallel=True))
    'dp=2 tp=8 pp=1 zero=1 sequence_parallel'
    """
    words = str(layout).replace("=True", "").split()
    words = [w for w in words if w != "flash_attention" and not w.startswith("microbatches=")]
    return " ".join(words if layout.flash_attention else [*words, "without flash_attention"])


def round_bytes(n: int) -> str:
    """``n`` bytes as text of three digits.

    >>> round_bytes(62_980_000_000)
    '63 GB'
    """
    return format_bytes(float(f"{n:.3g}"))
