"""Trainings: the rule of a loss scale, and which of six runs is faulty."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.training import GPT, train
from tiledask.errors import DivergedError, RuleError
from tiledask.lab import plots
from tiledask.lab.exercises.exercise import Exercise, calling, exercise, instance, none_wrong
from tiledask.lab.judging import Target
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.precision import GRADES, verdicts
from tiledask.lab.precision.small import Small, SmallRun
from tiledask.lab.precision.small import train as train_small
from tiledask.tile.datasets import load_text
from tiledask.tile.optimizers import SGD, Adam, AdamW, LossScale, Rule

__all__ = ["faulty_run", "scale_rule"]

Shape = tuple[int, int, int]
"""Ranks of (dp, tp, pp)."""

# -- a loss scale ----------------------------------------------------------------------------------

ScaleRule = Callable[[float, int, bool], tuple[float, int]]


@dataclass(frozen=True)
class _AskedScale(LossScale):
    """A scale that asks a function what comes next."""

    rule: ScaleRule = field(default=lambda scale, good, finite: (scale, good), compare=False)

    def after(self, finite: bool) -> LossScale:
        with calling(self.rule, f"or gave no two numbers for {self.scale, self.good, finite}"):
            scale, good = self.rule(self.scale, self.good, finite)
            done = self.skipped + (not finite)
            return replace(self, scale=float(scale), good=int(good), skipped=done)


def _scaled(rule: ScaleRule, start: float) -> SmallRun:
    """A small network, whose gradients are 2^22 times smaller than usual, in fp16."""
    scale, small = _AskedScale(start, floor=2.0**-24, rule=rule), Small(8, inner=16, blocks=1)
    how: dict[str, Any] = {"rule": SGD(0.1), "small": small, "batch": 16, "times": 2.0**-22}
    try:
        return train_small("float16", 48, scale=scale, **how)
    except DivergedError as error:
        raise RuleError(str(error)) from error


@exercise("scale-rule", instance(Callable))
def scale_rule(rule: ScaleRule) -> list[Target]:
    """Write a function (scale, good, finite) that says the scale of the next step's loss.

    ``good`` is whatever the function returned beside the last scale, 0 at first; ``finite`` says
    whether all gradients were. A step that was not finite is left out."""
    runs = {"from 2^44": _scaled(rule, 2.0**44), "from 1": _scaled(rule, 1.0)}
    each = ", ".join(f"{run.skipped} {name}" for name, run in runs.items())
    targets = [Target("steps left out", 14, sum(run.skipped for run in runs.values()), why=each)]
    for name, run in runs.items():
        end = float(np.mean(run.losses[-8:]))
        end = round(end, 3) if np.isfinite(end) else float("inf")
        low, high = (np.log2(float(pick(run.scales))) for pick in (min, max))
        where = f"its scale lies between 2^{low:.0f} and 2^{high:.0f}"
        targets.append(Target(f"loss of the last 8 steps, {name}", 1.55, end, why=where))
    return targets


# -- a faulty run ----------------------------------------------------------------------------------


class RunShape(NamedTuple):
    """Ranks of (dp, tp, pp), and the format."""

    shape: Shape
    dtype: str


RULE = Adam(3e-3)
FAULTS = (AdamW(RULE.rate), Adam(RULE.rate, tiny=1e-6))
"""Rules that one run has by mistake: a decay that nobody asked for; a number that stands in
another framework's defaults. Both start small."""
HALF = "bfloat16"
"""The format in which one run gets the fault."""
RUNS = tuple(
    RunShape(shape, dtype)
    for dtype, shapes in {
        "float32": ((2, 2, 1), (1, 2, 2)),
        "float16": ((1, 1, 2),),
        HALF: ((2, 1, 1), (1, 2, 1), (1, 1, 2)),
    }.items()
    for shape in shapes
)
STEPS, JUDGED = 8, 3
"""Steps of a run; those in float64 that a verdict needs: step 1 has no update behind it."""


@cache
def _drawn(seed: int) -> tuple[dict[str, RunShape], str, Rule]:
    """(the six runs by letter, which one has the fault, its rule)."""
    rng = np.random.default_rng(seed)
    halves = [i for i, run in enumerate(RUNS) if run.dtype == HALF]
    bad, fault = rng.choice(halves), FAULTS[rng.integers(len(FAULTS))]
    at = dict(zip("ABCDEF", map(int, rng.permutation(len(RUNS))), strict=True))
    return {name: RUNS[i] for name, i in at.items()}, "ABCDEF"[[*at.values()].index(bad)], fault


@cache
def _losses(shape: Shape, dtype: str, rule: Rule, steps: int) -> np.ndarray:
    text = load_text("tales")
    model = GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    how: dict[str, Any] = {"rule": rule, "dtype": dtype, "progress": False, "timeout": 240}
    return train(model, text, shape, steps=steps, batch=8, **how).losses


def _pair(seed: int, name: str, dtype: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(losses of a run, those of one device)."""
    runs, bad, fault = _drawn(seed)
    mine = _losses(runs[name].shape, dtype, fault if name == bad else RULE, steps)
    return mine, _losses((1, 1, 1), dtype, RULE, steps)


class FaultyRun(Exercise):
    """An exercise with runs that can be looked at, and run again."""

    @property
    def runs(self) -> Mapping[str, RunShape]:
        """Layout and format of each, by letter."""
        return _drawn(self.given["seed"])[0]

    def again(self, name: str, dtype: str = "float64", steps: int = JUDGED) -> np.ndarray:
        """Relative differences [steps] of a run and one device, both run again in ``dtype``."""
        mine, alone = _pair(self.given["seed"], name, dtype, steps)
        apart: np.ndarray = np.abs(mine / alone - 1)
        return apart


def _seven(answer: str | None, seed: int) -> Figure:
    runs = _drawn(seed)[0].items()
    shown = {f"{name}, {run.dtype}": _pair(seed, name, run.dtype, STEPS)[0] for name, run in runs}
    shown["one device, float32"] = _losses((1, 1, 1), "float32", RULE, STEPS)
    lines = {name: dict(enumerate(losses.tolist())) for name, losses in shown.items()}
    title = "One training, seven times"
    return plots.curves(lines, log="", xlabel="step", ylabel="loss (nats)", title=title)


@exercise("faulty-run", lambda a: a if a in [*"ABCDEF"] else None, _seven, FaultyRun)
def faulty_run(answer: str, seed: int = 0) -> list[Target]:
    """Say which of six runs, "A" to "F", is not the training that the others are. All six are run
    again in float64, and compared with one device."""
    runs, wrong = _drawn(seed)[0], set()
    for name, run in runs.items():
        mine, alone = (losses.tolist() for losses in _pair(seed, name, "float64", JUDGED))
        said = verdicts(alone, mine, "float64", max(2, prod(run.shape)), 2)
        if max((each.grade for each in said), key=GRADES.index) != "round-off":
            wrong.add(name)
    sound = (
        f"{answer} is sound: run again in float64 it lies no further from one device than "
        f"round-off explains; {runs[answer].dtype} alone is no fault"
    )
    return [
        none_wrong("sound runs accused", [sound] * (answer not in wrong)),
        Target("faulty runs at large", 0, len(wrong - {answer}), 0),
    ]
