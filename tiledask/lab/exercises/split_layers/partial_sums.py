"""Place the sums of a gated layer over ranks, so that all is right with the fewest; run, counted.

    x --norm-- normed --w_gate-- gate -.
                  '----w_up----- up ---(silu, times)-- activated --w_down-- y --(+ x)-- out

Every rank has its columns of w_gate and w_up and its rows of w_down. Wherever a value has a name,
an all_reduce may stand; forgotten ones and ones too many both run through, with wrong numbers.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import GREEN, INK, RED, SKY, YELLOW, canvas, styled
from tiledask.tile import layers as tile

__all__ = ["BACKWARD", "FORWARD", "fewest_sums"]

FORWARD = ("normed", "gate", "up", "activated", "y", "out")
BACKWARD = (
    "dout",
    "dactivated",
    "dgate",
    "dup",
    "from_gate",
    "from_up",
    "dnormed",
    "dx_norm",
    "dw_norm",
    "dx",
)
"""Places of a sum, in the order of the computation. dnormed = from_gate + from_up; dx_norm is the
norm's gradient for dnormed, dw_norm that of its weight; dx = dout + dx_norm."""
TOKENS, HIDDEN, INNER = 6, 8, 12
TOLERANCE = 1e-10

Sum = Callable[[str, np.ndarray], np.ndarray]
"""(place, value) -> the value, or its sum over the ranks if the answer has the place."""
Values = dict[str, np.ndarray]
STATES = {
    "whole": GREEN,
    "a part": SKY,
    "a partial sum": YELLOW,
    "wrong": RED,
}
"""What the ranks have of a value, and its colour."""


def fewest_sums(ranks: int = 4) -> Exercise:
    """Name the places where partial sums are added up, so that out, dx and all gradients are right.

    The answer is a list of names out of FORWARD and BACKWARD. It is run on ``ranks`` ranks; the
    fewest sums with which nothing is wrong are found by running every choice of 0, 1, 2, ...
    """

    least = _least(ranks)

    def measure(chosen: tuple[str, ...]) -> list[Target]:
        wrong, done = _wrong(chosen, ranks), _run(chosen, ranks)
        name = f"wrong results ({', '.join(wrong)})" if wrong else "wrong results"
        _, offence = _offence(chosen, ranks) or ("", "")
        return [
            Target(name, 0, len(wrong), 0, remarks=(offence,)),
            Target(
                "collectives a step",
                least,
                done.records.barriers.get(None, 0),
                least,
                where=offence if not wrong else "",
            ),
        ]

    def figure(answer: Any) -> draw.Figure:
        chosen = answer or ()
        note = " (not attempted: no sums)" if answer is None else f", {len(chosen)} summed"
        place, _ = _offence(chosen, ranks) or ("", "") if answer is not None else ("", "")
        title = f"What {ranks} ranks have of each value{note}"
        return _chain(_states(chosen, ranks), chosen, title, place)

    return Exercise(
        name="the fewest sums",
        form=(
            f"a list of places, each once, for example ['gate', 'up']; forward there are "
            f"{', '.join(FORWARD)}, backward {', '.join(BACKWARD)}"
        ),
        hints=(
            "draw shows what the ranks have of each value. Which results are partial sums, or "
            "wrong, without any sum?",
            "What every rank has whole must not be summed, and what is a part of the columns must "
            "not either: it is the next product that makes partial sums of it.",
            "A sum of partial sums is a partial sum: where two of them meet one all-reduce behind "
            "does for both. Behind the norm it takes two again, of dx_norm and of dw_norm.",
        ),
        measured=measure,
        drawn=figure,
        read=_places,
    )


def _places(answer: Any) -> tuple[str, ...] | None:
    known = FORWARD + BACKWARD
    listed = isinstance(answer, Iterable) and not isinstance(answer, str)
    given = list(answer) if listed else [answer]
    if not listed or any(place not in known for place in given) or len(set(given)) < len(given):
        return None
    return tuple(place for place in known if place in given)


# -- the layer ------------------------------------------------------------------------------------


def _layer(total: Sum, x: np.ndarray, dout: np.ndarray, w: Values) -> tuple[Values, Values]:
    """(every named value, every result) of a step with the weights at hand."""
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
    x, dout, gate, up, down = (
        rng.normal(size=shape)
        for shape in (*[(TOKENS, HIDDEN)] * 2, *[(HIDDEN, INNER)] * 2, (INNER, HIDDEN))
    )
    return x, dout, {"norm": 1 + 0.1 * x[0], "gate": gate, "up": up, "down": down}


@lru_cache(maxsize=1)
def _expected() -> Values:
    """The results on one device, by its own layers."""
    x, dout, w = _given()
    weights = {f"w_{name}": w[name] for name in ("gate", "up", "down")}
    normed, kept_norm = tile.rms_norm(x, w["norm"])
    y, kept = tile.swiglu_mlp(normed, weights)
    dnormed, grads = tile.swiglu_mlp_grad(dout, kept, weights)
    dx, dw_norm = tile.rms_norm_grad(dnormed, kept_norm, w["norm"])
    grads = {f"d{name}": grad for name, grad in grads.items()}
    return {"out": x + y, "dx": dout + dx, "dw_norm": dw_norm, **grads}


# -- over ranks -----------------------------------------------------------------------------------

AXIS = {"gate": 1, "up": 1, "down": 0}
"""The axis of a weight that is cut; the norm's is on every rank."""


@lru_cache(maxsize=512)
def _run(chosen: tuple[str, ...], ranks: int) -> Ranks:
    def program(rank: Any) -> tuple[Values, Values]:
        x, dout, whole = _given()
        cut = {n: np.array_split(whole[n], ranks, a)[rank.index] for n, a in AXIS.items()}

        def total(place: str, value: np.ndarray) -> np.ndarray:
            return rank.group().all_reduce(value) if place in chosen else value

        return _layer(total, x, dout, {**whole, **cut})

    return run_threads(program, ranks, timeout=240)


def _wrong(chosen: tuple[str, ...], ranks: int) -> list[str]:
    """Names of results that are not those of one device."""
    wrong, results = [], [result for _, result in _run(chosen, ranks).results]
    for name, value in _expected().items():
        axis = AXIS.get(name.removeprefix("dw_"))
        parts = [value] * ranks if axis is None else np.array_split(value, ranks, axis)
        if not all(_close(r[name], part) for r, part in zip(results, parts, strict=True)):
            wrong.append(name)
    return wrong


@lru_cache(maxsize=8)
def _least(ranks: int) -> int:
    """The fewest sums with which nothing is wrong."""
    places = FORWARD + BACKWARD
    return next(
        count
        for count in range(len(places) + 1)
        if any(not _wrong(chosen, ranks) for chosen in combinations(places, count))
    )


def _offence(chosen: tuple[str, ...], ranks: int) -> tuple[str, str] | None:
    """(place, what is wrong there), the first in the order of the computation; None if all is
    right with the fewest sums."""
    wrong = _wrong(chosen, ranks)
    for place in chosen:
        fewer = tuple(p for p in chosen if p != place)
        had = _states(fewer, ranks)[place]
        if had in ("whole", "a part") and (wrong or had == "whole"):
            many = "all" if had == "whole" else "its own columns"
            too = f": summed, {ranks} times too much" if had == "whole" else ""
            return place, f"{place} is no partial sum: each rank has {many} of it{too}"
        if not wrong and not _wrong(fewer, ranks):
            return place, f"nothing needs the sum of {place}"
    parts = [place for place in _PAIRS[0] if place in chosen]
    if wrong and len(parts) == 1:
        (other,) = set(_PAIRS[0]) - set(parts)
        return other, f"{parts[0]} is summed and {other} is not, and the two are added"
    if wrong:
        states = _states(chosen, ranks)
        for place in states:
            if place == "dnormed" and set(_PAIRS[1]) & set(chosen):
                continue  # summed behind the norm
            if states[place] == "a partial sum" and place in _NEEDED:
                return place, f"{place} is a partial sum, {_NEEDED[place]}"
        return wrong[0], f"{wrong[0]} is wrong"
    if len(chosen) > _least(ranks):
        near = next((pair for pair in _PAIRS if set(pair) <= set(chosen)), chosen[-2:])
        return near[0], f"{' and '.join(near)} are summed one by one, and one sum would do for both"
    return None


_NEEDED = {
    "y": "and out, which adds x to it once, needs all of it",
    "dnormed": "so dx_norm and dw_norm are partial sums, too",
    "dx_norm": "and dx, which adds dout to it once, needs all of it",
    "dw_norm": "and the norm's weight, which every rank has, needs all of it",
}
"""Values that the layer makes partial sums of -> what follows."""
_PAIRS = (("from_gate", "from_up"), ("dx_norm", "dw_norm"))
"""Sums of one value in two parts."""


def _states(chosen: tuple[str, ...], ranks: int) -> dict[str, str]:
    """Place -> what the ranks have of the value that one device has there."""
    alone, _ = _layer(lambda _, value: value, *_given())
    held = [at for at, _ in _run(chosen, ranks).results]
    return {place: _state([at[place] for at in held], alone[place]) for place in alone}


def _state(blocks: list[np.ndarray], whole: np.ndarray) -> str:
    if all(_close(block, whole) for block in blocks):
        return "whole"
    if _close(np.concatenate(blocks, axis=-1), whole):
        return "a part"
    return "a partial sum" if _close(sum(blocks), whole) else "wrong"


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max() <= TOLERANCE * np.abs(b).max())


@styled
def _chain(
    states: dict[str, str], chosen: tuple[str, ...], title: str, offence: str = ""
) -> draw.Figure:
    """Boxes in the order of the computation, by what the ranks have after the sum, if any; the
    place of the first offence in a frame."""
    figure = canvas(2.6, title)
    axes = figure.subplots()
    for y, (way, places) in enumerate((("forward", FORWARD), ("backward", BACKWARD))):
        axes.text(-0.15, y, way, ha="right", va="center")
        for x, place in enumerate(places):
            colour, here = STATES[states[place]], place in chosen
            at, edge = (x, y - 0.275, 0.9, 0.55), {"edgecolor": INK if here else "none"}
            draw.box(axes, at, colour, linewidth=2, gid=f"{place}: {states[place]}", **edge)
            if place == offence:
                draw.mark_box(axes, (x - 0.04, y - 0.36, 0.98, 0.72), place)
            words = f"sum of\n{place}" if here else place
            draw.text_in(axes, at, words, colour, fontweight="bold" if here else "normal")
    axes.set(xlim=(-1.0, len(BACKWARD)), ylim=(1.5, -0.5))
    axes.set_axis_off()
    entries = [draw.patch_entry(name, colour) for name, colour in STATES.items()]
    draw.legend(figure, entries, len(STATES))
    return figure
