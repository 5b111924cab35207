"""Where the time of a step goes: its parts as stacked bars, and the MFU that is left."""

from collections.abc import Mapping
from textwrap import fill
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots import style
from tiledask.lab.plots.plans import short_layout
from tiledask.lab.plots.primitives import Box, Figure
from tiledask.plan.timing.step import StepEstimate
from tiledask.plan.units import format_seconds

__all__ = ["PARTS", "step_breakdown"]

# a colour for each part in every figure, so that two can be compared
PARTS = {
    "compute": (style.BLUE, "compute"),
    "recompute": (style.SKY, "recompute: activations again"),
    "tp": (style.ORANGE, "tp: waiting for tensor parallelism"),
    "cp": (style.YELLOW, "cp: waiting for keys and values"),
    "ep": (style.PINK, "ep: waiting for experts"),
    "pp": (style.PALETTE[7], "pp: transfers between stages"),
    "bubble": (style.PALE, "bubble: pipeline fills and drains"),
    "dp": (style.GREEN, "dp: waiting for gradients or weights"),
    "optimizer": (style.PALETTE[9], "optimizer: weights are updated"),
}
_HATCH = {"bubble": "...."}
_SPREAD = 6.0
"""Steps that differ by more than this share no axis of seconds: the shortest would be a dash."""
_BAR, _LINE = 0.36, 0.155
"""Inches of a bar, and of a line of the name above it."""


@style.styled
def step_breakdown(
    steps: StepEstimate | Mapping[str, StepEstimate],
    *,
    shares: bool | None = None,
    per: int | None = None,
    title: str = "Where the time of a step goes",
) -> "Figure":
    """A figure with a bar per step: time and share of each part where there is room, and at the
    end the step's time and MFU. ``shares``: all bars are equally long, their parts are shares
    (default: if the longest step takes more than six times the shortest). ``per``: seconds are
    times the step's devices over so many, so that bars of more devices can be compared."""
    if isinstance(steps, StepEstimate):
        steps = {f"{steps.model.name}, {short_layout(steps.layout)}": steps}
    if not steps:
        raise ConfigError("step_breakdown draws 1 step or more, got 0; pass {'name': plan.step}")
    times = [step.layout.devices / per if per else 1.0 for step in steps.values()]
    totals = [n * step.total for n, step in zip(times, steps.values(), strict=True)]
    if shares is None:
        shares = max(totals) > _SPREAD * min(totals)
    names = [fill(name, 100) for name in steps]
    above = _LINE * (1 + max(name.count("\n") for name in names))
    pitch = above + _BAR + 0.1
    entries, columns = _entries([*steps.values()]), 3 if len(steps) > 1 else 2
    height = 1.0 + 0.2 * -(-len(entries) // columns) + pitch * len(steps)
    figure = style.canvas(height, fill(title, 84))
    axes, boxes = figure.subplots(), []
    axes.set(xlim=(0, 1.16 * (1.0 if shares else max(totals))), ylim=(pitch * len(steps), 0))
    for n, (name, step) in enumerate(zip(names, steps.values(), strict=True)):
        top, unit = pitch * n + above, times[n] * step.total if shares else 1.0
        draw.note(axes, (0, top), name, (0, 2), ha="left")
        boxes += _bar(step, top, times[n], unit, per)
        words = f"{format_seconds(times[n] * step.total)}\nMFU {100 * step.mfu:.1f} %"
        draw.note(axes, (times[n] * step.total / unit, top + _BAR / 2), words)
    draw.boxes(axes, boxes)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if shares:
        axes.set_xlabel("share of the step's time")
        axes.set_xticks([n / 5 for n in range(6)], [f"{20 * n} %" for n in range(6)])
    else:
        axes.set_xlabel(f"time of a step x devices / {per}" if per else "time of a step")
        draw.ticks_as(axes.xaxis, format_seconds)
    draw.legend(figure, entries, columns)
    figure.lay_out()
    draw.write(axes, boxes)
    return figure


def _bar(step: StepEstimate, top: float, times: float, unit: float, per: int | None) -> list[Box]:
    """The parts, each with as many words as may fit."""
    left, made = 0.0, []
    for part, (colour, _) in PARTS.items():
        if seconds := times * getattr(step, part):
            time, percent = format_seconds(seconds), f"{100 * seconds / times / step.total:.0f} %"
            short = percent
            if per is not None:  # what bars of more devices have in common
                short = f"{seconds:.1f} s" if seconds >= 0.1 else time
            lines = f"{time}, {percent}", f"{time}\n{percent}", short
            words = (*(f"{part}\n{line}" for line in lines), short)
            look: draw.Look = {"linewidth": 0.6, "hatch": _HATCH.get(part)}
            made.append(Box((left, top, seconds / unit, _BAR), colour, words, part, look))
            left += seconds / unit
    return made


def _entries(steps: list[StepEstimate]) -> list[Any]:
    """What the parts are; of a single step also what they take."""
    entries = []
    for part, (colour, label) in PARTS.items():
        taken = [getattr(step, part) for step in steps]
        if len(steps) == 1 and taken[0]:
            label += f": {format_seconds(taken[0])}, {100 * taken[0] / steps[0].total:.1f} %"
        if any(taken):
            look: draw.Look = {"edgecolor": "white", "hatch": _HATCH.get(part)}
            entries.append(draw.patch_entry(label, colour, **look))
    return entries
