"""Which of six trainings is not what the others are, by a mistake in its settings."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.training import GPT, train
from tiledask.lab import plots
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.tasks.exercises.exercise import exercise, none_wrong
from tiledask.lab.tasks.result import Target
from tiledask.lab.tasks.task import JudgedTask
from tiledask.tile.datasets import load_text
from tiledask.tile.optimizers import Adam, AdamW, Rule

__all__ = ["faulty_run"]

Shape = tuple[int, int, int]
"""Ranks of (dp, tp, pp)."""


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
RUNS = (
    RunShape((2, 2, 1), "float32"),
    RunShape((1, 2, 2), "float32"),
    RunShape((1, 1, 2), "float16"),
    RunShape((2, 1, 1), HALF),
    RunShape((1, 2, 1), HALF),
    RunShape((1, 1, 2), HALF),
)
STEPS = 8


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


def _run(seed: int, name: str, dtype: str, steps: int) -> np.ndarray:
    """The losses of a run."""
    runs, bad, fault = _drawn(seed)
    return _losses(runs[name].shape, dtype, fault if name == bad else RULE, steps)


class FaultyRun(JudgedTask):
    """An exercise with runs that can be looked at, and run again."""

    @property
    def runs(self) -> Mapping[str, RunShape]:
        """Layout and format of each, by letter."""
        return _drawn(self.inputs["seed"])[0]

    def again(self, name: str, dtype: str = "float64", steps: int = 3) -> np.ndarray:
        """Relative differences [steps] of a run and one device, both run again in ``dtype``."""
        mine = _run(self.inputs["seed"], name, dtype, steps)
        apart: np.ndarray = np.abs(mine / _losses((1, 1, 1), dtype, RULE, steps) - 1)
        return apart


def _seven(seed: int, answer: Any, title: str) -> Figure:
    runs = _drawn(seed)[0].items()
    shown = {f"{name}, {run.dtype}": _run(seed, name, run.dtype, STEPS) for name, run in runs}
    shown["one device, float32"] = _losses((1, 1, 1), "float32", RULE, STEPS)
    lines = {name: dict(enumerate(losses.tolist())) for name, losses in shown.items()}
    return plots.curves(lines, log="", xlabel="step", ylabel="loss (nats)", title=title)


def faulty_run(seed: int = 0) -> FaultyRun:
    """The exercise of the notebook on faults; ``seed`` deals the letters, and draws the fault."""
    runs, bad, _ = _drawn(seed)

    def judge(answer: str) -> list[Target]:
        wrong = answer != bad
        sound = (
            f"{answer} is sound: run again in float64 it lies no further from one device than "
            f"round-off explains; {runs[answer].dtype} alone is no fault"
        )
        return [
            none_wrong("sound runs accused", [sound] * wrong),
            Target("faulty runs at large", 0, int(wrong), 0),
        ]

    def is_run(answer: Any) -> bool:
        return isinstance(answer, str) and answer in runs

    figure, about = partial(_seven, seed), {"seed": seed}
    return exercise("faulty-run", FaultyRun, is_run, judge, inputs=about, figure=figure)
