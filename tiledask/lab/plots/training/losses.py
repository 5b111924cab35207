"""Losses of trainings over one another, and how far apart they are: on a log axis, below."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import GREY, PALETTE, YELLOW, canvas, styled

__all__ = ["loss_curve", "losses"]

_LINE = 0.19
"""Inches of a line of a legend."""
_FEW = 40
"""Steps up to which a mark may be larger than a point."""
_CLOSE = 0.03
"""Runs that are nearer than this lie on one line: their losses are drawn half as high."""
_MARKS = "o", "x", "s", "^", "D", "v"
_DASHES = ("-", (0, (5, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)))


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
    curves = {name: _curve(run) for name, run in runs.items()}
    if not curves or not any(len(y) for _, y in curves.values()):
        raise ConfigError(
            f"losses draws 1 run or more with 1 step or more, got {len(curves)} runs with "
            f"{sum(len(y) for _, y in curves.values())} steps; pass {{'one rank': trained}}"
        )
    several = len(curves) > 1
    # beside each panel as many lines of its legend as there are
    panel = max(2.4, 0.6 + _LINE * (2 * (len(curves) - 1) + 2 * (dtype is not None)))
    off = _off(curves)
    close = several and all((each < _CLOSE).all() for _, each in off.values())
    above = max(panel / 2, 0.3 + _LINE * len(curves)) if close else panel
    figure = canvas(0.8 + above + panel if several else 3.4, title or "Loss")
    axes = draw.stacked_axes(figure, [above, panel] if several else [1], sharex=True)
    last = max(int(x[-1]) for x, _ in curves.values() if len(x))
    for n, (name, (x, y)) in enumerate(curves.items()):
        dashes, wide = _DASHES[n % len(_DASHES)], several and n == 0
        loss_curve(axes[0], x, y, name, PALETTE[n % len(PALETTE)], dashes, wide)
    if len(controls):
        _band(axes, curves, [_curve(run)[1] for run in controls])
    axes[0].set_ylabel("loss (nats)")
    _legend(axes[0])
    axes[-1].set(xlabel="step", xlim=(-0.02 * max(1, last), 1.02 * max(1, last)))
    draw.whole_ticks(axes[-1].xaxis)
    if several:
        drawn = _differences(axes[1], off)
        if dtype is not None:
            shapes = [getattr(run, "shape", (1,)) for run in runs.values()]
            depths = [run.model.layers for run in runs.values() if hasattr(run, "model")]
            ranks, layers = max(map(prod, shapes)), max(depths, default=1)
            _envelope(axes[1], last, off, dtype, ranks, layers)
        elif not drawn:
            axes[1].set_yticks([])
            middle = {"ha": "center", "va": "center", "transform": axes[1].transAxes}
            axes[1].text(0.5, 0.5, "no difference to be drawn", **middle)
        else:
            _a_decade(axes[1])
        axes[1].set_title(f"difference from {next(iter(curves))}, relative; none: equal to the bit")
        _legend(axes[1])
    return figure


def _legend(axes: "Axes") -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))  # beside: lines may be anywhere


def loss_curve(
    axes: "Axes",
    x: Sequence[int],
    y: Sequence[float],
    name: str,
    colour: str,
    dashes: Any = "-",
    wide: bool = False,
) -> None:
    """One line; a single step is a dot."""
    # the first is wide and pale, so that those that lie on it can be seen
    width, alpha = (5.0, 0.35) if wide else (1.6, None)
    look = {"linestyle": dashes, "alpha": alpha, "marker": "o" if len(x) == 1 else None}
    draw.curve(axes, x, y, colour, width, label=name, **look)


def _curve(run: Any) -> tuple[np.ndarray, np.ndarray]:
    """(numbers of the steps, losses)."""
    y = np.asarray(getattr(run, "losses", run), float)
    return np.arange(len(y)) + getattr(run, "first", 0), y


def _band(
    axes: Sequence["Axes"], curves: dict[str, tuple[np.ndarray, np.ndarray]], controls: list
) -> None:
    """What the controls do: their losses, and how far they are from the first run."""
    (x, y), *_ = curves.values()
    steps = min(len(y), *map(len, controls))
    losses = np.array([losses[:steps] for losses in controls])
    look = {"color": YELLOW, "alpha": 0.45, "linewidth": 0.8, "zorder": 1, "gid": "controls"}
    label = f"{len(controls)} controls"
    axes[0].fill_between(x[:steps], losses.min(0), losses.max(0), label=label, **look)
    if len(axes) > 1:
        off = _relative(losses, y[:steps])
        words = f"{label}, at most\n{off.max():.1e}"
        # from 0, which a logarithmic axis puts at its lower end: a control may be equal to the bit
        axes[1].fill_between(x[:steps], 0, off.max(0), label=words, **look)


def _relative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How far ``a`` is from ``b``, as a share of the larger; nan if that is not finite."""
    larger = np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore"):
        return np.abs(a - b) / np.where(larger == 0, 1.0, larger)


_Off = dict[str, tuple[np.ndarray, np.ndarray]]
"""Of each run but the first: steps that it has in common with that, how far apart they are."""


def _off(curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> _Off:
    (x, y), *_ = curves.values()
    found = {}
    for name, (other_x, other_y) in list(curves.items())[1:]:
        both, here, there = np.intersect1d(x, other_x, return_indices=True)
        found[name] = both, _relative(y[here], other_y[there])
    return found


def _differences(axes: "Axes", apart: _Off) -> bool:
    """Whether there are any."""
    drawn = False
    for n, (name, (both, off)) in enumerate(apart.items(), 1):
        some = np.isfinite(off) & (off > 0)
        # no lines: between two points there may be steps with no difference
        # open shapes, so that one is seen on another; dots where there are many
        few = len(both) <= _FEW
        shape = {"marker": _MARKS[(n - 1) % len(_MARKS)], "markersize": 7, "markeredgewidth": 1.6}
        look = {"fillstyle": "none", **shape} if few else {"marker": "o", "markersize": 3.5}
        look["label"] = f"{name}:\n{_words(off, len(both))}"
        draw.curve(axes, both[some], off[some], PALETTE[n % len(PALETTE)], 0, **look)
        drawn = drawn or bool(some.any())
    if drawn:
        axes.set_yscale("log")
    return drawn


def _a_decade(axes: "Axes") -> None:
    """Show a decade or more: two differences of one rounding are no slope."""
    low, high = axes.get_ylim()
    if low > 0 and high < 10 * low:
        middle = (low * high) ** 0.5
        axes.set_ylim(middle / 10**0.5, middle * 10**0.5)


def _words(off: np.ndarray, steps: int) -> str:
    if not steps:
        return "no step in common"
    wrong = int((~np.isfinite(off)).sum())
    if wrong:
        return f"not finite in {wrong} of {steps}"
    if not off.any():
        return "equal to the bit"
    return f"at most {off.max():.1e}"


def _envelope(axes: "Axes", last: int, apart: _Off, dtype: str, ranks: int, layers: int) -> None:
    from tiledask.lab.precision.drift import SAFETY, likely

    steps = np.arange(last + 1)
    chance = np.array([likely(int(n) + 1, dtype, ranks, layers) for n in steps])
    words = f"envelope, {SAFETY:g} x random walk\n({ranks} ranks, {layers} layers)"
    draw.curve(axes, steps, SAFETY * chance, GREY, 1.2, label=words)
    outside = [both[off > SAFETY * chance[both]] for both, off in apart.values()]
    if firsts := [int(each[0]) for each in outside if len(each)]:
        words = f"first outside: step {min(firsts)}"
        draw.limit_line(axes, min(firsts), linestyle=":", label=words)
    axes.set_yscale("log")
