"""Cannon's product, to be written for a rank by shifts alone."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import RuleError
from tiledask.lab.tasks.exercises.exercise import exercise, none_wrong
from tiledask.lab.tasks.result import Target
from tiledask.lab.tasks.task import JudgedTask

__all__ = ["cannon"]


def cannon(seed: int = 0) -> JudgedTask:
    """The exercise of the notebook on panels."""
    return exercise("cannon", JudgedTask, callable, _judge)


def _judge(answer: Callable[..., Any]) -> list[Target]:
    (m, k, n), wrong, others, moved = (4, 3, 2), [], 0, 0.0
    for p in (1, 2, 3):
        rng = np.random.default_rng(p)
        a, b = (rng.integers(-4, 5, s).astype(float) for s in ((m * p, k * p), (k * p, n * p)))

        def program(rank: Any, a: np.ndarray = a, b: np.ndarray = b) -> np.ndarray:
            i, j = rank.coordinates
            mine = a[m * i : m * i + m, k * j : k * j + k], b[k * i : k * i + k, n * j : n * j + n]
            return np.asarray(answer(rank.group(1), rank.group(0), *(x.copy() for x in mine)))

        try:
            done = run_threads(program, (p, p), timeout=10.0)  # longer: it was left alone
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
        none_wrong("wrong blocks of C", wrong[:1], len(wrong)),
        Target("calls that are no shift", 0, others, 0),
        # of A and of B, two rows of three in the skew, then all nine twice
        Target("blocks moved on 3 x 3", 2 * (3 * 2 + 2 * 9), moved),
    ]
