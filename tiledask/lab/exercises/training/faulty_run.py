"""Six losses of one training, under six layouts and formats; one run has a fault. Which?

    A  dp 2           bfloat16  \\
    B  dp 2, tp 2     float32    +--  losses, and the single device's beside them
    ...                         /     exercise.again("A"): the same run once more, in float64

All six lie within what their formats' round-off explains. In float64 that shrinks, a fault not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tiledask.distributed.training import GPT, train
from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.training.losses import losses as draw_losses
from tiledask.lab.precision import GRADES, verdicts
from tiledask.tile.datasets import load_text
from tiledask.tile.optimizers import Adam, AdamW, Rule

if TYPE_CHECKING:
    import pandas as pd

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
STEPS, BATCH = 8, 8
JUDGED = 3
"""Steps in float64 that a verdict is based on: step 1 has no update behind it."""


class _Run(NamedTuple):
    shape: tuple[int, int, int]
    dtype: str
    rule: Rule

    def __repr__(self) -> str:
        """Without the rule: it is what the exercise asks for."""
        return f"Run(shape={self.shape}, dtype={self.dtype!r})"


@dataclass(frozen=True, kw_only=True)
class FaultyRun(Exercise):
    """An exercise with runs that can be looked at, and run again."""

    runs: Mapping[str, _Run] = field(repr=False)

    @property
    def table(self) -> "pd.DataFrame":
        """A row per run: its layout, its format, its verdict by `acceptable` after each step, the
        worst of all."""
        with needed_for("a frame"):
            import pandas as pd

        rows = [
            (name, *run.shape, run.dtype, _verdict(run, run.dtype, STEPS, "float32"))
            for name, run in self.runs.items()
        ]
        names = ["run", "dp", "tp", "pp", "format", "verdict in its format"]
        return pd.DataFrame(rows, columns=names).set_index("run")

    def losses(self, name: str) -> np.ndarray:
        """Losses of a run, [8] float64."""
        return _losses(*self._run(name)[:2], self._run(name).rule, STEPS)

    def again(self, name: str, dtype: str = "float64", steps: int = JUDGED) -> np.ndarray:
        """Relative differences [steps] of a run and one device, both run again in ``dtype``."""
        run = self._run(name)
        mine = _losses(run.shape, dtype, run.rule, steps)
        return np.abs(mine / _losses((1, 1, 1), dtype, RULE, steps) - 1)

    def _run(self, name: str) -> _Run:
        if name not in self.runs:
            raise ConfigError(f"runs are called {', '.join(self.runs)}; got {name!r}")
        return self.runs[name]


def faulty_run(seed: int = 0) -> FaultyRun:
    """Say which of six runs, "A" to "F", is not the training that the others are.

    ``seed`` draws the fault and who has it. All six are run again in float64, and judged by
    `tiledask.lab.precision.acceptable` against one device.

    >>> exercise = faulty_run(seed=0)
    >>> {name: run.dtype for name, run in exercise.runs.items()}["A"]
    'bfloat16'
    """
    rng = np.random.default_rng(seed)
    halves = [i for i, (_, dtype) in enumerate(SETTINGS) if dtype == "bfloat16"]
    bad, fault = rng.choice(halves), FAULTS[rng.integers(len(FAULTS))]
    rules = [fault if i == bad else RULE for i in range(len(SETTINGS))]
    drawn = [_Run(*setting, rule) for setting, rule in zip(SETTINGS, rules, strict=True)]
    order = rng.permutation(len(drawn))
    runs = {name: drawn[i] for name, i in zip("ABCDEF", order, strict=True)}

    def measure(answer: str) -> list[Target]:
        wrong = {
            name
            for name, run in runs.items()
            if _verdict(run, "float64", JUDGED, "float64") != "round-off"
        }
        run = runs[answer]
        sound = (
            f"{answer} is sound: run again in float64 it lies no further from one device than "
            f"round-off explains; {run.dtype} alone is no fault"
        )
        return [
            Target("sound runs accused", 0, int(answer not in wrong), 0, remarks=(sound,)),
            Target("faulty runs at large", 0, len(wrong - {answer}), 0),
        ]

    def figure(answer: Any) -> Figure:
        shown = {"one device, float32": _losses((1, 1, 1), "float32", RULE, STEPS)}
        for name, run in runs.items():
            yours = " (yours)" if name == answer else ""
            shown[f"{name}, {run.dtype}{yours}"] = _losses(*run, STEPS)
        return draw_losses(shown, title="One training, seven times")

    return FaultyRun(
        name="which run is faulty",
        form="the letter of a run, 'A' to 'F', for example 'B'",
        hints=(
            "Round-off shrinks with a longer format. What about a mistake in the settings?",
            "Look at exercise.table: in which formats could a small mistake hide?",
            "Run those again with exercise.again(name, 'float64') and compare what comes back with "
            "that of a run that you trust.",
        ),
        measured=measure,
        drawn=figure,
        read=lambda answer: answer if isinstance(answer, str) and answer in runs else None,
        runs=runs,
    )


@lru_cache(maxsize=64)
def _losses(shape: tuple[int, int, int], dtype: str, rule: Rule, steps: int) -> np.ndarray:
    text = load_text("tales")
    model = GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    done = train(
        model,
        text,
        shape,
        steps=steps,
        batch=BATCH,
        rule=rule,
        dtype=dtype,
        progress=False,
        timeout=240,
    )
    done.losses.flags.writeable = False
    return done.losses


def _verdict(run: _Run, dtype: str, steps: int, alone: str) -> str:
    """The worst grade of a run in ``dtype`` against one device in the format ``alone``."""
    both = _losses((1, 1, 1), alone, RULE, steps), _losses(run.shape, dtype, run.rule, steps)
    said = verdicts(*both, dtype, max(2, prod(run.shape)), 2)
    return max((each.grade for each in said), key=GRADES.index)
