"""Put the two all-reduces of a split feed-forward layer into its code; it is run and compared.

x --f-- @ w1 -- GELU -- @ w2 --g-- y       f: nothing forward, all_reduce dx backward
                                           g: all_reduce y forward, nothing backward
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from tiledask.errors import RuleError
from tiledask.lab.exercises.on_ranks import run_on_ranks
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.reading import function
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import GREEN, PALE, RED, YELLOW, canvas, styled
from tiledask.tile import layers as tile

__all__ = ["f_and_g"]

Layer = Callable[..., Any]
TOKENS, HIDDEN, INNER, RANKS = (2, 12), 32, 127, (1, 3, 4)
AXES = {"y": None, "dx": None, "dW1": 1, "dW2": 0}
"""What a layer returns, and the axis along which ranks have parts of it; None: all of it."""
MOST = 2 * 2 * 3 * TOKENS[0] * TOKENS[1] * HIDDEN * 8 // 4
"""Bytes that each of 4 ranks sends in two all-reduces of an array such as x, in float64."""
RIGHT, PARTIAL, UNKNOWN = "right", "a partial sum", "?"


def f_and_g() -> Exercise:
    """Write a function (group, x, dy, w1, w2) -> (y, dx, dW1, dW2) of a rank's columns of w1 and
    rows of w2: a feed-forward layer there and back.

    It is run on 1, 3 and 4 ranks, which do not divide the middle; its results are compared with
    those of one device, and what a rank sends is counted.
    """

    def measure(answer: Layer) -> list[Target]:
        wrong, sent = [], 0
        for ranks in RANKS:
            states, sent = _run(answer, ranks)
            wrong += [f"{n} is {s} on {ranks} ranks" for n, s in states.items() if s != RIGHT]
        return [
            Target("wrong results", 0, len(wrong), 0, remarks=wrong[:1]),
            Target("bytes that each of 4 ranks sends", MOST, sent, None),
        ]

    def figure(answer: Any) -> draw.Figure:
        if answer is None:
            return _table({ranks: dict.fromkeys(AXES, UNKNOWN) for ranks in RANKS}, "not attempted")
        return _table({ranks: _run(answer, ranks)[0] for ranks in RANKS}, "of your layer")

    return Exercise(
        name="f and g",
        question=(
            f"Put the sums over ranks into a feed-forward layer, there and back, as a function of "
            f"group, x, dy, w1 and w2, which returns y, dx, dW1 and dW2. It is run on 1, 3 and 4 "
            f"ranks: 0 results may be wrong, and each of 4 ranks may send at most {MOST:,} bytes."
        ),
        form=(
            "a function such as def layer(group, x, dy, w1, w2): ..., which returns four arrays, "
            "for example answer = layer"
        ),
        hints=(
            "Ask of each value which of three it is: the same on every rank, this rank's columns, "
            "or a partial sum. draw says it of the four results of any function, so of bare too.",
            "What a rank makes of its own rows of w2 has the terms of these rows alone. And all "
            "ranks used x whole, each for columns of its own: what does that say of dx?",
            "group.all_reduce(value) is the sum of what all ranks bring. One belongs into the way "
            "there, one into the way back; dy needs none, for every rank has all of it.",
        ),
        measured=measure,
        drawn=figure,
        read=function,
    )


@lru_cache(maxsize=1)
def _given() -> tuple[np.ndarray, ...]:
    """(x, dy, w1, w2, and of one device y, dx, dW1, dW2)."""
    rng = np.random.default_rng(5)
    x, dy = rng.normal(size=(2, *TOKENS, HIDDEN))
    w1, w2 = rng.normal(size=(HIDDEN, INNER)), rng.normal(size=(INNER, HIDDEN))
    y, kept = tile.mlp(x, weights := {"w_1": w1, "w_2": w2})
    dx, grads = tile.mlp_grad(dy, kept, weights)
    return x, dy, w1, w2, y, dx, grads["w_1"], grads["w_2"]


def _run(answer: Layer, ranks: int) -> tuple[dict[str, str], int]:
    """(what each result is, the bytes that the busiest rank sends)."""
    x, dy, w1, w2, *right = _given()
    cut1, cut2 = np.array_split(w1, ranks, 1), np.array_split(w2, ranks, 0)

    def program(rank: Any) -> list[np.ndarray]:
        mine = cut1[rank.index].copy(), cut2[rank.index].copy()
        return [np.asarray(r, float) for r in answer(rank.group(), x.copy(), dy.copy(), *mine)]

    done = run_on_ranks(answer, program, ranks, takes="(group, x, dy, w1, w2)")
    sent = max(sum(r.sent for r in done.records.where(rank=rank)) for rank in range(ranks))
    if any(len(results) != len(AXES) for results in done.results):
        raise RuleError(f"a layer returns y, dx, dW1 and dW2; got {len(done.results[0])} back")
    states = {}
    for i, (what, axis) in enumerate(AXES.items()):
        blocks, whole = [results[i] for results in done.results], right[i]
        wanted = [whole] * ranks if axis is None else np.array_split(whole, ranks, axis)
        for block, other in zip(blocks, wanted, strict=True):
            if block.shape != other.shape:
                raise RuleError(f"{what} has {[*other.shape]} numbers, got {[*block.shape]} back")
        states[what] = _state(blocks, wanted, axis is None)
    return states, sent


def _state(blocks: list[np.ndarray], wanted: list[np.ndarray], alike: bool) -> str:
    """RIGHT, PARTIAL, how many times too large, or neither."""

    def close(found: list[np.ndarray], right: list[np.ndarray], times: float = 1.0) -> bool:
        return all(np.allclose(f, times * r, 1e-9, 1e-9) for f, r in zip(found, right, strict=True))

    if close(blocks, wanted):
        return RIGHT
    if alike and close([np.sum(blocks, axis=0)], wanted[:1]):
        return PARTIAL
    times = float(np.vdot(wanted[0], blocks[0]) / np.vdot(wanted[0], wanted[0]))
    return f"{times:.4g} x right" if close(blocks, wanted, times) else "no multiple of it"


@styled
def _table(states: dict[int, dict[str, str]], note: str) -> draw.Figure:
    """A box for each result on so many ranks, by what it is there; what is wrong is framed."""
    figure = canvas(0.9 + 0.4 * len(states), f"What the ranks have ({note})")
    axes = figure.subplots()
    for y, (ranks, found) in enumerate(states.items()):
        for x, (what, state) in enumerate(found.items()):
            box = (x - 0.46, y - 0.36, 0.92, 0.72)
            colour = {RIGHT: GREEN, PARTIAL: YELLOW, UNKNOWN: PALE}.get(state, RED)
            draw.box(axes, box, colour)
            draw.text_in(axes, box, state, colour, 8.5)
            if state not in (RIGHT, UNKNOWN):
                draw.mark_box(axes, box, f"{what}, {ranks}")
    draw.cells(axes, [*AXES], [f"{ranks} rank{'s' * (ranks > 1)}" for ranks in states])
    axes.xaxis.tick_top()
    return figure
