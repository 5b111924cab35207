"""Place the sums of a gated layer over ranks, so that all is right with the fewest; run, counted.

    x --norm-- normed --w_gate-- gate -.
                  '----w_up----- up ---(silu, times)-- activated --w_down-- y --(+ x)-- out

Every rank has its columns of w_gate and w_up and its rows of w_down. Wherever a value has a name,
an all_reduce may stand; forgotten ones and ones too many both run through, with wrong numbers.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.lab.exercises.exercise import exercise, none_wrong
from tiledask.lab.judging import Target
from tiledask.tile import layers as tile

__all__ = ["PLACES", "fewest_sums"]

RANKS = 4
PLACES = (
    *("normed", "gate", "up", "activated", "y", "out"),
    *("dout", "dactivated", "dgate", "dup", "from_gate", "from_up", "dnormed"),
    *("dx_norm", "dw_norm", "dx"),
)
"""Places of a sum, in the order of the computation. dnormed = from_gate + from_up; dx_norm is the
norm's gradient for dnormed, dw_norm that of its weight; dx = dout + dx_norm."""
LEAST = 2
"""Sums, at least, with which nothing is wrong: of every choice of fewer something is."""
TOKENS, HIDDEN, INNER = 6, 8, 12
AXIS = {"gate": 1, "up": 1, "down": 0}
"""The axis of a weight that is cut; the norm's is on every rank."""
Values = dict[str, np.ndarray]


def _places(answer: Any) -> tuple[str, ...] | None:
    if not isinstance(answer, Iterable) or isinstance(answer, str):
        return None
    given = list(answer)
    known = all(place in PLACES for place in given) and len(set(given)) == len(given)
    return tuple(place for place in PLACES if place in given) if known else None


@exercise("fewest-sums", read=_places)
def fewest_sums(chosen: tuple[str, ...]) -> list[Target]:
    """Name the places where partial sums are added up, so that out, dx and all gradients are right
    on four ranks."""
    wrong, done = _wrong(chosen), _run(chosen)
    name = f"wrong results ({', '.join(wrong)})" if wrong else "wrong results"
    offence = _offence(chosen) or f"{', '.join(wrong)} are wrong"
    more = "two sums whose results are added could be one, or one is not needed"
    sums = done.records.barriers.get(None, 0)
    return [
        none_wrong(name, [offence] * bool(wrong), len(wrong)),
        Target("collectives a step", LEAST, sums, LEAST, where=offence if not wrong else more),
    ]


def _offence(chosen: tuple[str, ...]) -> str:
    """What is summed and is no partial sum, or a partial sum that is needed whole."""
    for place in chosen:
        had = _state(place, tuple(p for p in chosen if p != place))
        if had:
            return f"{place} is no partial sum: each rank has {had} of it"
    needed = ("y", "dnormed", "dx_norm", "dw_norm")
    parts = [place for place in needed if _state(place, chosen) == ""]
    return f"{parts[0]} is a partial sum, and needed whole" if parts else ""


def _state(place: str, chosen: tuple[str, ...]) -> str | None:
    """What a rank has of the value that one device has there: "all", "its own columns"; "" for a
    partial sum, None for another value."""
    whole = _layer(lambda _, value: value, *_given())[0][place]
    blocks = [at[place] for at, _ in _run(chosen).results]
    if all(_close(block, whole) for block in blocks):
        return "all"
    if _close(np.concatenate(blocks, axis=-1), whole):
        return "its own columns"
    return "" if _close(np.sum(blocks, axis=0), whole) else None


def _layer(
    total: Callable[[str, np.ndarray], np.ndarray], x: np.ndarray, dout: np.ndarray, w: Values
) -> tuple[Values, Values]:
    """(every named value, every result) of a step with the weights at hand; ``total`` gives a
    value, or its sum over the ranks, by the name of its place."""
    at: Values = {}

    def here(place: str, value: np.ndarray) -> np.ndarray:
        at[place] = total(place, value)
        return at[place]

    normed, kept_norm = tile.rms_norm(x, w["norm"])
    normed = here("normed", normed)
    gate, up = here("gate", normed @ w["gate"]), here("up", normed @ w["up"])
    activated, kept = tile.swiglu(gate, up)
    activated = here("activated", activated)
    out = here("out", x + here("y", activated @ w["down"]))
    dout = here("dout", dout)
    dgate, dup = tile.swiglu_grad(here("dactivated", dout @ w["down"].T), kept)
    dgate, dup = here("dgate", dgate), here("dup", dup)
    both = here("from_gate", dgate @ w["gate"].T) + here("from_up", dup @ w["up"].T)
    dx_norm, dw_norm = tile.rms_norm_grad(here("dnormed", both), kept_norm, w["norm"])
    dx_norm, dw_norm = here("dx_norm", dx_norm), here("dw_norm", dw_norm)
    grads = {"dw_gate": normed.T @ dgate, "dw_up": normed.T @ dup, "dw_down": activated.T @ dout}
    return at, {"out": out, "dx": here("dx", dout + dx_norm), "dw_norm": dw_norm, **grads}


@lru_cache(maxsize=1)
def _given() -> tuple[np.ndarray, np.ndarray, Values]:
    """(x, dout, the weights)."""
    rng = np.random.default_rng(5)
    x, dout = rng.normal(size=(2, TOKENS, HIDDEN))
    gate, up = rng.normal(size=(2, HIDDEN, INNER))
    down = rng.normal(size=(INNER, HIDDEN))
    return x, dout, {"norm": 1 + 0.1 * x[0], "gate": gate, "up": up, "down": down}


@lru_cache(maxsize=1)
def _expected() -> Values:
    """The results on one device, by its own layers."""
    x, dout, w = _given()
    weights = {f"w_{name}": w[name] for name in AXIS}
    normed, kept_norm = tile.rms_norm(x, w["norm"])
    y, kept = tile.swiglu_mlp(normed, weights)
    dnormed, grads = tile.swiglu_mlp_grad(dout, kept, weights)
    dx, dw_norm = tile.rms_norm_grad(dnormed, kept_norm, w["norm"])
    grads = {f"d{name}": grad for name, grad in grads.items()}
    return {"out": x + y, "dx": dout + dx, "dw_norm": dw_norm, **grads}


@lru_cache(maxsize=512)
def _run(chosen: tuple[str, ...]) -> Ranks:
    def program(rank: Any) -> tuple[Values, Values]:
        x, dout, whole = _given()
        cut = {n: np.array_split(whole[n], RANKS, a)[rank.index] for n, a in AXIS.items()}

        def total(place: str, value: np.ndarray) -> np.ndarray:
            return rank.group().all_reduce(value) if place in chosen else value

        return _layer(total, x, dout, {**whole, **cut})

    return run_threads(program, RANKS, timeout=240)


def _wrong(chosen: tuple[str, ...]) -> list[str]:
    """Names of results that are not those of one device."""
    wrong, results = [], [result for _, result in _run(chosen).results]
    for name, value in _expected().items():
        axis = AXIS.get(name.removeprefix("dw_"))
        parts = [value] * RANKS if axis is None else np.array_split(value, RANKS, axis)
        if not all(_close(r[name], part) for r, part in zip(results, parts, strict=True)):
            wrong.append(name)
    return wrong


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max() <= 1e-10 * np.abs(b).max())
