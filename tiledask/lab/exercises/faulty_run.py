"""Six losses of one training, under six layouts and formats; one run has a fault. Which?

    A  dp 2           bfloat16  \\
    B  dp 2, tp 2     float32    +--  losses, and the single device's beside them
    ...                         /     exercise.again("A"): the same run once more, in float64

All six lie within what their formats' round-off explains. In float64 that shrinks, a fault not.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.training import GPT, train
from tiledask.lab.exercises.exercise import Exercise, exercise, none_wrong
from tiledask.lab.judging import Target
from tiledask.lab.plots.curves import losses as draw_losses
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.precision import GRADES, verdicts
from tiledask.tile.datasets import load_text
from tiledask.tile.optimizers import Adam, AdamW, Rule

__all__ = ["FaultyRun", "faulty_run"]

RULE = Adam(3e-3)
FAULTS = (AdamW(RULE.rate), Adam(RULE.rate, tiny=1e-6))
"""Rules that one run has by mistake: a decay that nobody asked for; a number that stands in
another framework's defaults. Both start small."""
SETTINGS = (
    ((2, 2, 1), "float32"),
    ((1, 2, 2), "float32"),
    ((1, 1, 2), "float16"),
    ((2, 1, 1), "bfloat16"),
    ((1, 2, 1), "bfloat16"),
    ((1, 1, 2), "bfloat16"),
)
"""(dp, tp, pp) and format of each run; one in bfloat16 gets the fault."""
STEPS, JUDGED = 8, 3
"""Steps of a run; those in float64 that a verdict needs: step 1 has no update behind it."""


class _Run(NamedTuple):
    shape: tuple[int, int, int]
    dtype: str
    rule: Rule

    def __repr__(self) -> str:
        """Without the rule: it is what the exercise asks for."""
        return f"Run(shape={self.shape}, dtype={self.dtype!r})"


@lru_cache(maxsize=8)
def _drawn(seed: int) -> dict[str, _Run]:
    """The six runs by letter: ``seed`` draws the fault and who has it."""
    rng = np.random.default_rng(seed)
    halves = [i for i, (_, dtype) in enumerate(SETTINGS) if dtype == "bfloat16"]
    bad, fault = rng.choice(halves), FAULTS[rng.integers(len(FAULTS))]
    rules = [fault if i == bad else RULE for i in range(len(SETTINGS))]
    drawn = [_Run(*setting, rule) for setting, rule in zip(SETTINGS, rules, strict=True)]
    return {name: drawn[i] for name, i in zip("ABCDEF", rng.permutation(len(drawn)), strict=True)}


class FaultyRun(Exercise):
    """An exercise with runs that can be looked at, and run again."""

    @property
    def runs(self) -> Mapping[str, _Run]:
        """Layout and format of each, by letter."""
        return _drawn(self.given["seed"])

    def again(self, name: str, dtype: str = "float64", steps: int = JUDGED) -> np.ndarray:
        """Relative differences [steps] of a run and one device, both run again in ``dtype``."""
        run = self.runs[name]
        mine = _losses(run.shape, dtype, run.rule, steps)
        apart: np.ndarray = np.abs(mine / _losses((1, 1, 1), dtype, RULE, steps) - 1)
        return apart


@lru_cache(maxsize=64)
def _losses(shape: tuple[int, int, int], dtype: str, rule: Rule, steps: int) -> np.ndarray:
    text = load_text("tales")
    model = GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    how: dict[str, Any] = {"rule": rule, "dtype": dtype, "progress": False, "timeout": 240}
    done = train(model, text, shape, steps=steps, batch=8, **how)
    done.losses.flags.writeable = False
    return done.losses


def _seven(answer: str | None, seed: int) -> Figure:
    shown = {"one device, float32": _losses((1, 1, 1), "float32", RULE, STEPS)}
    for name, run in _drawn(seed).items():
        shown[f"{name}, {run.dtype}{' (yours)' * (name == answer)}"] = _losses(*run, STEPS)
    return draw_losses(shown, title="One training, seven times")


@exercise(
    "faulty-run",
    read=lambda answer: answer if isinstance(answer, str) and answer in [*"ABCDEF"] else None,
    draw=_seven,
    kind=FaultyRun,
)
def faulty_run(answer: str, seed: int = 0) -> list[Target]:
    """Say which of six runs, "A" to "F", is not the training that the others are. All six are run
    again in float64, and compared with one device."""
    runs, wrong = _drawn(seed), set()
    for name, run in runs.items():
        alone = _losses((1, 1, 1), "float64", RULE, JUDGED)
        mine = _losses(run.shape, "float64", run.rule, JUDGED)
        both = alone.tolist(), mine.tolist()
        said = verdicts(*both, "float64", max(2, prod(run.shape)), 2)
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
