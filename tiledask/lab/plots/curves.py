"""Curves of what was computed or measured at several sizes or steps, and losses of trainings."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import GREY, PALETTE, RED, YELLOW, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["curves", "losses"]

_WORDS: dict[str, Callable[[float], str]] = {
    "bytes": draw.amount(format_bytes),
    "seconds": draw.amount(format_seconds),
}
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
) -> "Figure":
    """A figure with a line for each of ``series``: name -> {x: y}, and red crosses at ``marks``.

    On the axes that are logarithmic, ``log`` ("", "x", "y" or "xy"), numbers are above 0. There
    all values of x are ticks, and labels beginning with "bytes" or "seconds" have suitable units. A
    line of 40 points or more is one of a formula: it has no dots and no ticks. Where ``marks`` have
    several names, each stands left of its points, and they have no ticks.

    >>> len(curves({"one core": {64: 1e-5, 128: 8e-5}}, xlabel="n", ylabel="seconds").axes)
    1
    """
    marks = marks or {}
    every = [*series.values(), *marks.values()]
    xs = sorted({x for line in every for x in line})
    ys = [y for line in every for y in line.values()]
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
    beside = len(marks) > 1
    for name, line in marks.items():
        look = {"marker": "x", "markersize": 7, "markeredgewidth": 1.8, "linestyle": "none"}
        look |= {"gid": name, "zorder": 5, "color": RED, "label": None if beside else name}
        axes.plot([*line], [*line.values()], **look)
        for at in line.items() if beside else ():
            draw.note(axes, at, name, (-4, 4), color=RED)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if "y" in log:
        digits = (1,) if max(ys) > 100 * min(ys) else (1, 2, 5)
        words = _words(ylabel, "{:g}".format)
        draw.log_ticks(axes.yaxis, min(ys) / 2, 2 * max(ys), words, digits)
    if "x" in log:
        named = [*series.values(), *(() if beside else marks.values())]
        ticks = sorted({x for line in named if len(line) < _FINE for x in line})
        words = _words(xlabel, "{:,}".format if ticks else "{:,g}".format)
        if ticks:
            axes.set(xscale="log")
            axes.set_xticks(ticks, [words(x) for x in ticks], minor=False)
            axes.set_xticks([], minor=True)
        else:
            draw.log_ticks(axes.xaxis, xs[0], xs[-1], words, (1,))
    axes.grid()
    if beside and "x" not in log:
        axes.margins(x=0.18)  # for the words at the left
    if names := len(series) + (0 if beside else len(marks)):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=names)
    return figure


def _words(label: str, other: Callable[[float], str]) -> Callable[[float], str]:
    return _WORDS.get(label.partition(" ")[0], other)


# -- losses --------------------------------------------------------------------------------------

_LINE = 0.19
"""Inches of a line of a legend."""
_CLOSE = 0.03
"""Runs that are nearer than this lie on one line: their losses are drawn half as high."""
_MARKS = "oxs^Dv"
_DASHES = ("-", (0, (5, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)))
Steps = tuple[np.ndarray, np.ndarray]
"""Numbers of steps, and a loss or a difference of each."""


@styled
def losses(
    runs: Mapping[str, Any],
    *,
    controls: Sequence[Any] = (),
    dtype: str | None = None,
    title: str | None = None,
) -> "Figure":
    """A figure of the losses of ``runs``: name -> a `Trained`, or losses from step 0 on.

    Below are the differences of all others from the first, relative to the larger loss, in the
    steps that both have; where two are equal to the bit there is nothing to draw.

    controls
        The first run in other roundings (tiledask.lab.precision.controls), drawn as one band of all
        of them: from the lowest loss to the highest, and below up to the one that is farthest away,
        in the steps that all have. A run in the band did no more than round-off does.
    dtype
        In which activations were added up over the ranks: then the difference that round-off
        makes (tiledask.lab.precision.drift) is shown too. A line marks the first step in which a
        run is outside.
    """
    lines = {name: _steps(run) for name, run in runs.items()}
    if not any(len(y) for _, y in lines.values()):
        raise ConfigError(
            f"losses draws 1 run or more with 1 step or more, got {len(lines)} runs with 0 steps; "
            "pass {'one rank': trained}"
        )
    first, *others = lines
    apart = {name: _apart(lines[first], lines[name]) for name in others}
    # beside each panel as many lines of its legend as there are
    panel = max(2.4, 0.6 + _LINE * (2 * len(others) + 2 * (dtype is not None)))
    close = apart and all((off < _CLOSE).all() for _, off in apart.values())
    above = max(panel / 2, 0.3 + _LINE * len(lines)) if close else panel
    figure = canvas(0.8 + above + panel if others else 3.4, title or "Loss")
    axes = draw.stacked_axes(figure, [above, panel] if others else [1], sharex=True)
    for n, (name, (x, y)) in enumerate(lines.items()):
        # the first is wide and pale, so that those that lie on it can be seen; one step is a dot
        look: draw.Look = (
            {"linewidth": 5.0, "alpha": 0.35} if others and not n else {"linewidth": 1.6}
        )
        look |= {"linestyle": _DASHES[n % len(_DASHES)], "color": PALETTE[n % len(PALETTE)]}
        axes[0].plot(x, y, label=name, marker="o" if len(x) == 1 else None, **look)
    if len(controls):
        _band(axes, lines[first], [_steps(run)[1] for run in controls])
    last = max(1, *(int(x[-1]) for x, _ in lines.values() if len(x)))
    axes[0].set_ylabel("loss (nats)")
    axes[-1].set(xlabel="step", xlim=(-0.02 * last, 1.02 * last))
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    if others:
        seen = _differences(axes[1], apart)
        axes[1].set_title(f"difference from {first}, relative; none: equal to the bit")
        if dtype is None:
            _fit(axes[1], seen)
    if others and dtype is not None:
        shapes = [getattr(run, "shape", (1,)) for run in runs.values()]
        depths = [run.model.layers for run in runs.values() if hasattr(run, "model")]
        _envelope(axes[1], last, apart, dtype, max(map(prod, shapes)), max(depths, default=1))
    for each in axes:
        if each.get_legend_handles_labels()[0]:  # beside: lines may be anywhere
            each.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _steps(run: Any) -> Steps:
    y = np.asarray(getattr(run, "losses", run), float)
    return np.arange(len(y)) + getattr(run, "first", 0), y


def _apart(one: Steps, other: Steps) -> Steps:
    """The steps that both have, and how far apart they are there."""
    both, here, there = np.intersect1d(one[0], other[0], return_indices=True)
    return both, _relative(one[1][here], other[1][there])


def _relative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How far ``a`` is from ``b``, as a share of the larger; nan if that is not finite."""
    larger = np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore"):
        return np.abs(a - b) / np.where(larger == 0, 1.0, larger)


def _band(axes: Sequence["Axes"], first: Steps, controls: list[np.ndarray]) -> None:
    """What the controls do: their losses, and how far they are from the first run."""
    x, y = first
    steps = min(len(y), *map(len, controls))
    every = np.array([each[:steps] for each in controls])
    look: draw.Look = {"color": YELLOW, "alpha": 0.45, "linewidth": 0.8, "zorder": 1}
    look["gid"] = "controls"
    label = f"{len(controls)} controls"
    axes[0].fill_between(x[:steps], every.min(0), every.max(0), label=label, **look)
    for below in axes[1:]:
        off = _relative(every, y[:steps])
        words = f"{label}, at most\n{off.max():.1e}"
        # from 0, which a logarithmic axis puts at its lower end: a control may be equal to the bit
        below.fill_between(x[:steps], 0, off.max(0), label=words, **look)


def _differences(axes: "Axes", apart: dict[str, Steps]) -> bool:
    """A mark for each step: between two of them there may be steps with no difference. Whether
    there is any."""
    drawn = False
    for n, (name, (both, off)) in enumerate(apart.items(), 1):
        some, wrong = np.isfinite(off) & (off > 0), int((~np.isfinite(off)).sum())
        words = "equal to the bit" if not off.any() else f"at most {off.max():.1e}"
        words = f"not finite in {wrong} of {len(both)}" if wrong else words
        words = words if len(both) else "no step in common"
        # open shapes, so that one is seen on another; dots where there are many
        look: draw.Look = {"marker": "o", "markersize": 3.5}
        if len(both) <= _FINE:
            look = {"marker": _MARKS[(n - 1) % len(_MARKS)], "markersize": 7, "fillstyle": "none"}
            look |= {"markeredgewidth": 1.6}
        look |= {"linestyle": "none", "color": PALETTE[n % len(PALETTE)]}
        axes.plot(both[some], off[some], label=f"{name}:\n{words}", **look)
        drawn = drawn or bool(some.any())
    if drawn:
        axes.set_yscale("log")
    return drawn


def _fit(axes: "Axes", seen: bool) -> None:
    """A decade or more, since two differences of one rounding are no slope; or words for none."""
    if not seen:
        axes.set_yticks([])
        words = "no difference to be drawn"
        draw.text_in(axes, (0, 0, 1, 1), words, "white", 9, transform=axes.transAxes)
        return
    low, high = axes.get_ylim()
    if low > 0 and high < 10 * low:
        axes.set_ylim((low * high / 10) ** 0.5, (low * high * 10) ** 0.5)


def _envelope(
    axes: "Axes", last: int, apart: dict[str, Steps], dtype: str, ranks: int, layers: int
) -> None:
    """What round-off makes, and the first step in which a run is outside."""
    from tiledask.lab.precision.drift import SAFETY, likely

    steps = np.arange(last + 1)
    chance = SAFETY * np.array([likely(n + 1, dtype, ranks, layers) for n in steps.tolist()])
    words = f"envelope, {SAFETY:g} x random walk\n({ranks} ranks, {layers} layers)"
    axes.plot(steps, chance, color=GREY, linewidth=1.2, label=words)
    outside = [both[off > chance[both]] for both, off in apart.values()]
    if firsts := [int(each[0]) for each in outside if len(each)]:
        words = f"first outside: step {min(firsts)}"
        axes.axvline(min(firsts), **draw.DASHED | {"linestyle": ":", "label": words})
    axes.set_yscale("log")
