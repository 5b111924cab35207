"""A layer larger than a device: which strategies survive, worked out and run at 1:10,000.

26 GB of weights on devices of 24 GB: every strategy that leaves the layer in one piece fails, and
of those that cut it the optimizer decides.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.style import BLUE, GREY, ORANGE, PINK, RED, SKY, canvas, styled
from tiledask.tile.memory.pool import Pool, Refused

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LEVELS", "STRATEGIES", "layer_too_large", "survived"]

LEVELS = {"forward": 1, "sgd": 2, "momentum": 3, "adam": 4}
"""Arrays as large as the weights: these, their gradient, and what the optimizer keeps, in fp32."""
STRATEGIES = ("copies", "smaller batches", "a layer each", "columns", "rows")
"""Data parallelism; the same with gradients accumulated over parts of a batch; each layer on a
device of its own; the layer's matrix by columns; by rows."""
INPUTS, OUTPUTS, TOKENS, CAP = 1000, 650, 8, 2_400_000
"""The matrix at 1:10,000, 2.6 MB in float32, and the bytes of a device."""


def layer_too_large(ranks: int = 4) -> Exercise:
    """Say how far each strategy comes with 26 GB of weights on ``ranks`` devices of 24 GB.

    The answer is a dict: each of STRATEGIES -> the heaviest of LEVELS with which it works, or None
    if not even the forward pass does; and "ranks for adam" -> the fewest devices on which the
    layer trains with Adam, by columns. All of it is run, on devices that refuse the byte too many.
    """

    def measure(answer: Any) -> list[Target]:
        given = _answer(answer)
        wrong = [s for s in STRATEGIES if given[s] != survived(s, ranks)]
        name = f"judged wrongly ({', '.join(wrong)})" if wrong else "judged wrongly"
        fewest = next(n for n in range(1, 64) if _run("columns", "adam", n))
        refused = 0 if _run("columns", "adam", given["ranks for adam"]) else 1
        return [
            Target(name, 0, len(wrong), 0),
            Target("runs with Adam that were refused", 0, refused, 0),
            Target("ranks for adam", fewest, given["ranks for adam"], fewest, least=True),
        ]

    def figure(answer: Any) -> "Figure":
        given = None if answer is None else _answer(answer)
        return _bars(ranks, given)

    return Exercise(name="a layer too large", measured=measure, drawn=figure)


def _answer(answer: Any) -> dict[str, Any]:
    names = {*STRATEGIES, "ranks for adam"}
    if not isinstance(answer, Mapping) or set(answer) != names:
        raise ConfigError(
            f"an answer is a dict of {', '.join(map(repr, STRATEGIES))} and 'ranks for adam'; "
            f"got {answer!r}"
        )
    for strategy in STRATEGIES:
        if answer[strategy] not in (None, *LEVELS):
            raise ConfigError(
                f"{strategy!r} works with one of {', '.join(map(repr, LEVELS))}, or None if not "
                f"even the forward pass does; got {answer[strategy]!r}"
            )
    ranks = answer["ranks for adam"]
    if type(ranks) is not int or not 1 <= ranks <= 64:
        raise ConfigError(f"'ranks for adam' is a number from 1 to 64, got {ranks!r}")
    return dict(answer)


def survived(strategy: str, ranks: int) -> str | None:
    """The heaviest of LEVELS with which ``strategy`` runs through on ``ranks`` devices; or None.

    >>> survived("copies", 2), survived("columns", 2)
    (None, 'forward')
    """
    return next((level for level in reversed(LEVELS) if _run(strategy, level, ranks)), None)


@lru_cache(maxsize=1)
def _given() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, w, y): whole numbers, so that sums are exact; y is worked out where there is room."""
    rng = np.random.default_rng(2)
    x, w = (rng.integers(-2, 3, n).astype("float32") for n in ((TOKENS, INPUTS), (INPUTS, OUTPUTS)))
    return x, w, x @ w


@lru_cache(maxsize=256)
def _run(strategy: str, level: str, ranks: int) -> bool:
    """Whether a step of ``strategy`` finds room on every rank; its y is compared with the whole."""
    x, w, y = _given()

    def program(rank: Any) -> np.ndarray | None:
        pool, r = Pool(CAP), rank.index
        try:
            # (what a rank holds of w, what it multiplies of x)
            if strategy == "columns":
                part, mine = np.array_split(w, ranks, 1)[r], x
            elif strategy == "rows":
                part, mine = np.array_split(w, ranks, 0)[r], np.array_split(x, ranks, 1)[r]
            else:
                tokens = {"copies": max(1, TOKENS // ranks), "smaller batches": 1}.get(
                    strategy, TOKENS
                )
                part, mine = w, x[:tokens]
            held = [pool.put("weights", part)]
            held += [pool.empty("states", part.shape, part.dtype) for _ in range(LEVELS[level] - 1)]
            out = pool.put("y", mine @ held[0])
        except Refused:
            return None
        return out

    outs = run_threads(program, ranks, timeout=60.0).results
    if any(out is None for out in outs):
        return False
    got = {"columns": np.hstack, "rows": sum}.get(strategy, lambda each: each[0])(outs)
    first = y[: len(got)]
    if not np.array_equal(got, first):
        raise AssertionError(f"{strategy} does not give the product")
    return True


@styled
def _bars(ranks: int, given: Mapping[str, Any] | None) -> "Figure":
    """GB of each strategy, array by array, beside the device's; the answers at the right."""
    note = "" if given else " (not attempted: weights alone)"
    figure = canvas(3.4, f"26 GB of weights on {ranks} devices of 24 GB: GB on a device{note}")
    axes = figure.subplots()
    parts = {"weights": BLUE, "gradient": SKY, "momentum, or m": ORANGE, "v": PINK}
    for row, strategy in enumerate(STRATEGIES):
        # of the matrix that a rank holds
        each = 26 * (1 / ranks if strategy in ("columns", "rows") else 1)
        for i, (name, colour) in enumerate(parts.items() if given else [("weights", BLUE)]):
            axes.barh(
                row,
                each,
                0.7,
                left=i * each,
                color=colour,
                edgecolor="white",
                label=None if row else name,
                gid=f"{strategy} {name}",
            )
        if given:
            words = f"you say: {given[strategy] or 'not at all'}"
            axes.annotate(words, (4 * each, row), (6, 0), textcoords="offset points", va="center")
    axes.axvline(24, color=RED, linestyle="--", linewidth=1.2, label="a device, 24 GB")
    axes.set_yticks(range(len(STRATEGIES)), STRATEGIES)
    axes.invert_yaxis()
    axes.set_xlim(0, 135 if given else 40)
    axes.set_xlabel("GB")
    axes.tick_params(axis="y", length=0, colors=GREY, labelcolor="black")
    figure.legend(loc="outside lower center", ncols=5)
    return figure
