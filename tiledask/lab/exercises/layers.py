"""Layers split over ranks, and run: Cannon's shifts, and sums."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import RuleError
from tiledask.lab.exercises.exercise import exercise, instance, none_wrong, on_ranks
from tiledask.lab.judging import Target
from tiledask.tile import layers as tile

__all__ = ["cannon", "fewest_sums"]

Values = dict[str, np.ndarray]


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max() <= 1e-10 * np.abs(b).max())


# -- Cannon ----------------------------------------------------------------------------------------


@exercise("cannon", instance(Callable))
def cannon(answer: Callable[..., Any]) -> list[Target]:
    """Write a function (row, column, a, b) -> a rank's block of C, from its blocks of A and B.

    ``row`` and ``column`` are its groups; its place in one is its coordinate along the other. It is
    run on 1 x 1, 2 x 2 and 3 x 3 ranks, with whole numbers; what it sends is counted."""
    (m, k, n), wrong, others, moved = (4, 3, 2), [], 0, 0.0
    for p in (1, 2, 3):
        rng = np.random.default_rng(p)
        a, b = (rng.integers(-4, 5, s).astype(float) for s in ((m * p, k * p), (k * p, n * p)))

        def program(rank: Any, a: np.ndarray = a, b: np.ndarray = b) -> np.ndarray:
            i, j = rank.coordinates
            mine = a[m * i : m * i + m, k * j : k * j + k], b[k * i : k * i + k, n * j : n * j + n]
            return np.asarray(answer(rank.group(1), rank.group(0), *(x.copy() for x in mine)))

        done = on_ranks(answer, program, p, p)
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


# -- the sums of a gated layer ---------------------------------------------------------------------

PLACES = (
    *("normed", "gate", "up", "activated", "y", "out"),
    *("dout", "dactivated", "dgate", "dup", "from_gate", "from_up", "dnormed"),
    *("dx_norm", "dw_norm", "dx"),
)
"""Places of a sum, in the order of the computation. dnormed = from_gate + from_up; dx_norm is the
norm's gradient for dnormed, dw_norm that of its weight; dx = dout + dx_norm."""
RANKS, TOKENS, HIDDEN, INNER = 4, 6, 8, 12
AXIS = {"gate": 1, "up": 1, "down": 0}
"""The axis of a weight that is cut; the norm's is on every rank."""
RESULTS = {"out": None, "dx": None, "dw_norm": None} | {f"dw_{n}": a for n, a in AXIS.items()}


def _layer(
    total: Callable[[str, np.ndarray], np.ndarray], x: np.ndarray, dout: np.ndarray, w: Values
) -> Values:
    """Every named value of a step with the weights at hand; ``total`` gives a value, or its sum
    over the ranks, by the name of its place."""
    at: Values = {}

    def here(place: str, value: np.ndarray) -> np.ndarray:
        at[place] = total(place, value)
        return at[place]

    normed, kept_norm = tile.rms_norm(x, w["norm"])
    normed = here("normed", normed)
    gate, up = here("gate", normed @ w["gate"]), here("up", normed @ w["up"])
    activated, kept = tile.swiglu(gate, up)
    activated = here("activated", activated)
    here("out", x + here("y", activated @ w["down"]))
    dout = here("dout", dout)
    dgate, dup = tile.swiglu_grad(here("dactivated", dout @ w["down"].T), kept)
    dgate, dup = here("dgate", dgate), here("dup", dup)
    both = here("from_gate", dgate @ w["gate"].T) + here("from_up", dup @ w["up"].T)
    dx_norm, dw_norm = tile.rms_norm_grad(here("dnormed", both), kept_norm, w["norm"])
    here("dx", dout + here("dx_norm", dx_norm))
    here("dw_norm", dw_norm)
    grads = {"dw_gate": normed.T @ dgate, "dw_up": normed.T @ dup, "dw_down": activated.T @ dout}
    return at | grads


@cache
def _given() -> tuple[np.ndarray, np.ndarray, Values]:
    """(x, dout, the weights)."""
    rng = np.random.default_rng(5)
    x, dout = rng.normal(size=(2, TOKENS, HIDDEN))
    gate, up = rng.normal(size=(2, HIDDEN, INNER))
    down = rng.normal(size=(INNER, HIDDEN))
    return x, dout, {"norm": 1 + 0.1 * x[0], "gate": gate, "up": up, "down": down}


@cache
def _on_four(chosen: tuple[str, ...]) -> Ranks:
    def program(rank: Any) -> Values:
        x, dout, w = _given()
        cut = {n: np.array_split(w[n], RANKS, axis)[rank.index] for n, axis in AXIS.items()}
        group = rank.group()
        return _layer(lambda at, v: group.all_reduce(v) if at in chosen else v, x, dout, w | cut)

    return run_threads(program, RANKS, timeout=240)


def _state(place: str, chosen: tuple[str, ...]) -> str | None:
    """What a rank has of the value that one device has there: "all", "its own columns"; "" for a
    partial sum, None for another value."""
    whole = _layer(lambda _, value: value, *_given())[place]
    parts = [at[place] for at in _on_four(chosen).results]
    if all(_close(part, whole) for part in parts):
        return "all"
    if _close(np.concatenate(parts, axis=-1), whole):
        return "its own columns"
    return "" if _close(np.sum(parts, axis=0), whole) else None


def _offence(chosen: tuple[str, ...]) -> str:
    """What is summed and is no partial sum, or a partial sum that is needed whole."""
    for place in chosen:
        if had := _state(place, tuple(p for p in chosen if p != place)):
            return f"{place} is no partial sum: each rank has {had} of it"
    needed = ("y", "dnormed", "dx_norm", "dw_norm")
    parts = [place for place in needed if _state(place, chosen) == ""]
    return f"{parts[0]} is a partial sum, and needed whole" if parts else ""


def _places(answer: Any) -> tuple[str, ...] | None:
    given = list(answer)
    ordered = tuple(place for place in PLACES if place in given)
    return ordered if len(ordered) == len(given) and not isinstance(answer, str) else None


@exercise("fewest-sums", _places)
def fewest_sums(chosen: tuple[str, ...]) -> list[Target]:
    """Name the places where partial sums are added up, so that out, dx and all gradients are right
    on four ranks."""
    done, wrong = _on_four(chosen), []
    right = _layer(lambda _, value: value, *_given())
    for name, axis in RESULTS.items():
        parts = np.array_split(right[name], RANKS, axis) if axis is not None else [right[name]] * 4
        pairs = zip(done.results, parts, strict=True)
        wrong += [name] * (not all(_close(at[name], part) for at, part in pairs))
    offence = _offence(chosen) or f"{', '.join(wrong)} are wrong"
    more = offence if wrong else "two sums whose results are added could be one"
    return [
        none_wrong("wrong results", [offence] * bool(wrong), len(wrong)),
        Target("collectives a step", 2, done.records.barriers.get(None, 0), 2, why=more),
    ]
