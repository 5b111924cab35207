"""Write the rule of a dynamic loss scale: two trainings in fp16 have to survive it, and learn.

(scale, good, finite) -> (scale, good)     begun at 2^44: gradients overflow at first
                                           begun at 1:    gradients are rounded to 0 at first
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, DivergedError, RuleError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.reading import function
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import BLUE, INK, ORANGE, RED, canvas, styled
from tiledask.lab.precision.small import Small, SmallRun, train
from tiledask.tile.optimizers import SGD, LossScale

__all__ = ["scale_rule"]

Rule = Callable[[float, int, bool], tuple[float, int]]
BEGUN = {"begun at 2^44": 2.0**44, "begun at 1": 1.0}
STEPS, LAST = 48, 8
SMALLER = 2.0**-22
"""By what the network's gradients are smaller than usual."""
NETWORK = Small(hidden=8, inner=16, blocks=1)


@dataclass(frozen=True)
class _Asked(LossScale):
    """A scale that asks a function what comes next."""

    rule: Rule = field(default=lambda scale, good, finite: (scale, good), compare=False)

    def after(self, finite: bool) -> LossScale:
        name = getattr(self.rule, "__name__", "the function")
        try:
            scale, good = self.rule(self.scale, self.good, finite)
            scale, good = float(scale), int(good)
        except Exception as error:  # whatever an answer raises
            raise RuleError(
                f"{name}(scale, good, finite) returns two numbers, the next scale and good; for "
                f"({self.scale:g}, {self.good}, {finite}) it gave {type(error).__name__}: {error}"
            ) from error
        try:
            return replace(self, scale=scale, good=good, skipped=self.skipped + (not finite))
        except ConfigError as error:
            raise RuleError(f"{name}(scale, good, finite): {error}") from None


def scale_rule(left_out: int = 14, loss: float = 1.55) -> Exercise:
    """Write a function (scale, good, finite) that says the scale of the next step's loss.

    ``good`` is whatever the function returned beside the last scale, 0 at first; ``finite`` says
    whether all gradients were. A step that was not finite is left out. A small network, whose
    gradients are 2^22 times smaller than usual, is trained in fp16 for 48 steps from two scales.

    >>> scale_rule().check(lambda scale, good, finite: scale).legal  # and good?
    False
    """

    def measure(answer: Any) -> list[Target]:
        runs = _runs(answer)
        skipped = sum(run.skipped for run in runs.values())
        each = ", ".join(f"{run.skipped} {name}" for name, run in runs.items())
        return [
            Target("steps left out in both runs", left_out, skipped, None, where=each),
            *(
                Target(
                    f"loss of the last {LAST} steps, {name}",
                    loss,
                    _end(run),
                    None,
                    where=_scale_of(run, missed=not _end(run) <= loss),
                )
                for name, run in runs.items()
            ),
        ]

    def figure(answer: Any) -> draw.Figure:
        if answer is None:
            title = "Scales that stay as they are (not attempted)"
            return _scales(_runs(_fixed), title, loss)
        return _scales(_runs(answer), "Your scales", loss, judged=True)

    return Exercise(
        name="the rule of a loss scale",
        question=(
            f"After each step you are told the scale, a number of your own (good, 0 at first), and "
            f"whether all gradients were finite; return the next two. A small network, whose "
            f"gradients are 2^22 times smaller than usual, trains in fp16 for {STEPS} steps, once "
            f"from 2^44, where everything overflows, once from 1, where everything is 0. Leave out "
            f"at most {left_out} steps in both together, and end with a loss of at most {loss:g} "
            f"in both."
        ),
        form="a function such as def after(scale, good, finite): return scale, good",
        hints=(
            "After an overflow the scale was too large; after many steps without one it may be too "
            "small.",
            "Every overflow costs a step, so come down by a factor that ends it soon, and go up "
            "again rarely enough. Count in good the steps since the last overflow.",
            "From 1 the scale must come to about 2^9, or more, by the end: that says how often, at "
            "least, it has to double. Try a few numbers of steps for good.",
        ),
        measured=measure,
        drawn=figure,
        read=function,
    )


def _scale_of(run: SmallRun, missed: bool) -> str:
    """Where the scale went, and what that means for a loss that was ``missed``."""
    low, high = (np.log2(float(scale)) for scale in (min(run.scales), max(run.scales)))
    end = np.log2(float(run.scales[-1]))
    said = f"its scale lies between 2^{low:.0f} and 2^{high:.0f} and ends at 2^{end:.0f}"
    if run.skipped > len(run.losses) // 2:
        return f"{said}, too large for most steps"
    return f"{said}, too small for too long" if missed and (high < 20 or end <= low + 8) else said


def _fixed(scale: float, good: int, finite: bool) -> tuple[float, int]:
    return scale, good


def _runs(rule: Rule) -> dict[str, SmallRun]:
    return {name: _run(rule, begun) for name, begun in BEGUN.items()}


def _run(rule: Rule, begun: float) -> SmallRun:
    scale = _Asked(begun, floor=2.0**-24, rule=rule)
    try:
        return train(
            "float16", STEPS, rule=SGD(0.1), small=NETWORK, batch=16, times=SMALLER, scale=scale
        )
    except DivergedError as error:
        raise RuleError(str(error)) from error


def _end(run: SmallRun) -> float:
    """The loss at the end; infinite if it is no number."""
    end = float(np.mean(run.losses[-LAST:]))
    return round(end, 3) if np.isfinite(end) else float("inf")


@styled
def _scales(
    runs: dict[str, SmallRun], title: str, loss: float, judged: bool = False
) -> draw.Figure:
    """The scale of every step of both runs, and their losses; framed, if ``judged``, where the
    last ones are above ``loss``."""
    figure = canvas(3.6, title)
    left, right = figure.subplots(1, 2)
    for (name, run), colour in zip(runs.items(), (ORANGE, BLUE), strict=True):
        words = f"{name}: {run.skipped} of {len(run.losses)} left out"
        powers, steps = np.log2(run.scales), range(len(run.scales))
        draw.curve(left, steps, powers, colour, 1.8, drawstyle="steps-post", label=words)
        words = f"{name}: ends at {_end(run):g}"
        draw.curve(right, range(len(run.losses)), run.losses, colour, label=words)
        last = np.asarray(run.losses[-LAST:], float)
        if judged and not _end(run) <= loss and np.isfinite(last).all():
            low, high = last.min() - 0.06, last.max() + 0.06
            draw.mark_box(right, (len(run.losses) - LAST - 1, low, LAST, high - low), name)
    draw.limit_line(right, y=loss, color=RED, linewidth=1, label=f"target: at most {loss:g}")
    left.set_title("scale of the loss")
    draw.ticks_as(left.yaxis, lambda power: f"$2^{{{power:g}}}$")
    right.set_title("loss")
    for axes in (left, right):
        axes.set_xlabel("step")
        draw.grid(axes)
        axes.spines[["left", "bottom"]].set_color(INK)
        draw.legend_under(axes, low=-0.22)
    return figure
