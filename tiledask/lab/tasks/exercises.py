"""The notebooks' exercises: judges that run an answer, or work out what it is worth.

cannon       shifts of blocks
faulty_run   which of six trainings is not what the others are, by a mistake in its settings

Their words are in data/exercises.json. No answer is stored; the best possible is found by trying.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import tiledask as td
from tiledask.errors import ConfigError, RuleError, short
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.tasks.result import Target
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.data import shipped_json
from tiledask.tile.optimizers import Adam, AdamW, Rule

__all__ = ["cannon", "faulty_run"]


def _words(name: str) -> dict[str, Any]:
    """The fields of a JudgedTask that the file has; its stars are saved under the title."""
    words = shipped_json("exercises.json")[name]
    return {**words, "name": words["title"], "hints": tuple(words["hints"])}


def _no_answer(name: str, given: Any) -> ConfigError:
    return ConfigError(f"an answer is {_words(name)['form']}; got {short(given)}")


def _none_wrong(name: str, wrong: Sequence[str]) -> Target:
    """The target that nothing is wrong: how much is, and in words what is first."""
    return Target(name, 0, len(wrong), 0, why="".join(wrong[:1]))


# -- Cannon's product by shifts alone ------------------------------------------------------------


def cannon(seed: int = 0) -> JudgedTask:
    """The exercise of the notebook on panels."""
    return JudgedTask(**_words("cannon"), judge=_judge_cannon)


def _judge_cannon(answer: Any) -> list[Target]:
    if not callable(answer):
        raise _no_answer("cannon", answer)
    (m, k, n), wrong, others, moved = (4, 3, 2), [], 0, 0.0
    for p in (1, 2, 3):
        rng = np.random.default_rng(p)
        a, b = (rng.integers(-4, 5, s).astype(float) for s in ((m * p, k * p), (k * p, n * p)))

        def program(rank: Any, a: np.ndarray = a, b: np.ndarray = b) -> np.ndarray:
            i, j = rank.coordinates
            mine = a[m * i : m * i + m, k * j : k * j + k], b[k * i : k * i + k, n * j : n * j + n]
            return np.asarray(answer(rank.group(1), rank.group(0), *(x.copy() for x in mine)))

        try:
            done = td.run_threads(program, (p, p), timeout=10.0)  # longer: it was left alone
        except RuleError:
            raise
        except Exception as error:
            name, why = getattr(answer, "__name__", "the function"), f"{error}".partition("\n")[0]
            kind = type(error).__name__
            raise RuleError(f"{name} raised {kind} on {p} x {p} ranks: {why}") from error
        for (i, j), found in zip(np.ndindex(p, p), done.results, strict=True):
            if found.shape != (m, n):
                raise RuleError(f"a block of C has {[m, n]} numbers, got {[*found.shape]} back")
            if not np.array_equal(found, (a @ b)[m * i : m * i + m, n * j : n * j + n]):
                wrong.append(f"rank ({i}, {j}) of {p} x {p} has another block than C's")
        others += sum(record.kind not in ("send", "recv") for record in done.records)
        # a block of A and one of B, of different sizes, move together: count in both
        moved = 2 * sum(record.sent for record in done.records) / (8 * (m * k + k * n))
    return [
        _none_wrong("wrong blocks of C", wrong),
        Target("calls that are no shift", 0, others, 0),
        # of A and of B, two rows of three in the skew, then all nine twice
        Target("blocks moved on 3 x 3", 2 * (3 * 2 + 2 * 9), moved),
    ]


# -- a faulty run ----------------------------------------------------------------------------------

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
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    how: dict[str, Any] = {"rule": rule, "dtype": dtype, "progress": False, "timeout": 240}
    return td.train(model, text, shape, steps=steps, batch=8, **how).losses


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
    return td.plots.curves(lines, log="", xlabel="step", ylabel="loss (nats)", title=title)


def faulty_run(seed: int = 0) -> FaultyRun:
    """The exercise of the notebook on faults; ``seed`` deals the letters, and draws the fault."""
    runs, bad, _ = _drawn(seed)

    def judge(answer: Any) -> list[Target]:
        if not isinstance(answer, str) or answer not in runs:
            raise _no_answer("faulty-run", answer)
        wrong = answer != bad
        sound = (
            f"{answer} is sound: run again in float64 it lies no further from one device than "
            f"round-off explains; {runs[answer].dtype} alone is no fault"
        )
        return [
            _none_wrong("sound runs accused", [sound] * wrong),
            Target("faulty runs at large", 0, int(wrong), 0),
        ]

    about = {"inputs": {"seed": seed}, "figure": partial(_seven, seed)}
    return FaultyRun(**_words("faulty-run") | about, judge=judge)
