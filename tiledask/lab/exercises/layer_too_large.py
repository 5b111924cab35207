"""A layer larger than a device: which strategies survive, worked out and run at 1:10,000.

26 GB of weights on devices of 24 GB: every strategy that leaves the layer in one piece fails, and
of those that cut it the optimizer decides.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tiledask.distributed.ranks.threads import run_threads
from tiledask.lab.exercises.exercise import exercise, none_wrong
from tiledask.lab.judging import Target
from tiledask.plan.whole import is_whole
from tiledask.tile.memory.pool import Pool, Refused

__all__ = [
    "LEVELS",
    "STRATEGIES",
    "TOKENS",
    "attempt",
    "gives",
    "layer_too_large",
    "small_layer",
    "survived",
]

LEVELS = {"forward": 1, "sgd": 2, "momentum": 3, "adam": 4}
"""Arrays as large as the weights: these, their gradient, and what the optimizer keeps, in fp32."""
STRATEGIES = ("copies", "smaller batches", "a layer each", "columns", "rows")
"""Data parallelism; the same with gradients accumulated over parts of a batch; each layer on a
device of its own; the layer's matrix by columns; by rows."""
INPUTS, OUTPUTS, TOKENS, CAP = 1000, 650, 8, 2_400_000
"""The matrix at 1:10,000, 2.6 MB in float32, and the bytes of a device."""
RANKS = "ranks for adam"


def _levels(answer: Any) -> dict[str, Any] | None:
    if not isinstance(answer, Mapping) or set(answer) != {*STRATEGIES, RANKS}:
        return None
    known = all(answer[strategy] in (None, *LEVELS) for strategy in STRATEGIES)
    return dict(answer) if known and is_whole(answer[RANKS], 1, 64) else None


@exercise("layer-too-large", read=_levels)
def layer_too_large(given: dict[str, Any], ranks: int = 4) -> list[Target]:
    """Say how far each strategy comes with 26 GB of weights on devices of 24 GB: the heaviest step
    with which it works, or None if not even the forward pass does; and the fewest devices on which
    the layer trains with Adam, by columns. All is run, on devices that refuse the byte too many."""
    wrong, mine = {}, given[RANKS]
    for strategy in STRATEGIES:
        level, runs = given[strategy], survived(strategy, ranks)
        if level != runs and (level is None or (runs and LEVELS[level] < LEVELS[runs])):
            wrong[strategy] = f"'{strategy}' comes further than '{level}': there is still room"
        elif level != runs:
            each = 26 / ranks if strategy in ("columns", "rows") else 26
            held = f"{LEVELS[level]} x {each:g} GB on a device of 24"
            wrong[strategy] = f"'{strategy}' with '{level}' is refused: {held}"
    fewest = next(n for n in range(1, 64) if _run("columns", "adam", n))
    refused = int(not _run("columns", "adam", mine))
    too_few = f"on {mine} devices Adam by columns is refused: each would hold {104 / mine:.3g} GB"
    named = f" ({', '.join(wrong)})" if wrong else ""
    return [
        none_wrong(f"judged wrongly{named}", list(wrong.values())),
        none_wrong("runs with Adam that were refused", [too_few] * refused),
        Target(RANKS, fewest, mine, fewest, least=True),
    ]


def survived(strategy: str, ranks: int) -> str | None:
    """The heaviest of LEVELS with which ``strategy`` runs through on ``ranks`` devices; or None.

    >>> survived("copies", 2), survived("columns", 2)
    (None, 'forward')
    """
    return next((level for level in reversed(LEVELS) if _run(strategy, level, ranks)), None)


@lru_cache(maxsize=256)
def _run(strategy: str, level: str, ranks: int) -> bool:
    """Whether a step of ``strategy`` finds room on every rank; its y is compared with the whole."""
    x, w = small_layer(INPUTS, OUTPUTS)
    ran = run_threads(attempt, ranks, strategy, level, x, w, CAP, timeout=240).results
    outs = [out for out, _ in ran]
    if any(out is None for out in outs):
        return False
    assert gives(strategy, outs, x @ w), f"{strategy} does not give the product"
    return True


def small_layer(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """(x of TOKENS tokens, w) in float32: whole numbers, so that sums are exact."""
    rng = np.random.default_rng(2)
    x, w = (rng.integers(-2, 3, n).astype("float32") for n in ((TOKENS, inputs), (inputs, outputs)))
    return x, w


def attempt(
    rank: Any, strategy: str, level: str, x: np.ndarray, w: np.ndarray, capacity: int
) -> tuple[np.ndarray | None, int]:
    """(what ``strategy`` makes of y on this rank, the most bytes held); None for y if memory was
    refused, with the bytes that would have been held.

    A step's arrays: a part of w, what the ``level`` keeps beside it, and a part of y.
    """
    pool, ranks, r = Pool(capacity), rank.group().size, rank.index
    try:
        # (what a rank holds of w, what it multiplies of x)
        if strategy == "columns":
            part, mine = np.array_split(w, ranks, 1)[r], x
        elif strategy == "rows":
            part, mine = np.array_split(w, ranks, 0)[r], np.array_split(x, ranks, 1)[r]
        else:
            tokens = {"copies": -(-len(x) // ranks), "smaller batches": 1}.get(strategy, len(x))
            part, mine = w, x[:tokens]
        held = [pool.put("weights", part)]
        held += [pool.empty("states", part.shape, part.dtype) for _ in range(LEVELS[level] - 1)]
        out = pool.put("y", mine @ held[0])
    except Refused as refused:
        return None, refused.needed
    return out, pool.peak


def gives(strategy: str, outs: Sequence[np.ndarray], y: np.ndarray) -> bool:
    """Whether the ranks' parts make up ``y``, or the part of it that the strategy makes."""
    joined: dict[str, Callable[[Any], Any]] = {"columns": np.hstack, "rows": sum}
    got = joined.get(strategy, lambda each: each[0])(outs)
    return np.array_equal(got, y[: len(got)])
