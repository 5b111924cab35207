"""Implementations of one product take turns: checked, then timed in rounds on the same numbers.

set 0 | set 1 | ...     A, B and a place for C each: more bytes together than L2 holds
round 1                 each implementation, in an order drawn anew: a burst over the sets in turn
round 2 ...             so that a slow moment, or a warm device, slows all of them
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tiledask.lab.gpu.contest.clock import Burst, ContestClock, Run
from tiledask.tile.backend import accumulator, as_dtype, namespace

__all__ = ["LIMITS", "Gemm", "Implementation", "Set", "contest", "error_of", "ratio", "reference"]


@dataclass(frozen=True)
class Gemm:
    """A product [m, k] x [k, n] that implementations are compared on."""

    m: int
    n: int
    k: int
    precision: str
    """"bf16", "fp16", "fp32", "tf32" (float32 in memory) or "fp64": a key of LIMITS."""
    orders: str = "CC"
    """How A and B lie: "C" by rows, "F" by columns. The result lies by rows."""

    @property
    def dtype(self) -> np.dtype:
        names = {"bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
        return as_dtype(names.get(self.precision, "float32"))

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Bytes of A, B and C."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * self.dtype.itemsize

    @property
    def limit(self) -> float:
        """The largest relative error of a right result."""
        return LIMITS[self.precision](self.k)

    def __str__(self) -> str:
        lies = {"C": "rows", "F": "columns"}
        how = ", ".join(f"{x} by {lies[o]}" for x, o in zip("AB", self.orders, strict=True))
        cubed = self.m == self.n == self.k
        size = f"{self.m} cubed" if cubed else f"{self.m} x {self.n} x {self.k}"
        return f"{self.precision} {size}" + (f", {how}" if self.orders != "CC" else "")


LIMITS: dict[str, Callable[[int], float]] = {
    "bf16": lambda k: 2.0**-8,
    "fp16": lambda k: 2.0**-11,
    "tf32": lambda k: 2.0**-9,
    "fp32": lambda k: 4 * 2.0**-24 * k**0.5,
    "fp64": lambda k: 4 * 2.0**-53 * k**0.5,
}
"""Precision -> the largest ||out - reference|| / ||reference|| of a right result for a given k.

Rounding C to a half costs about 0.4 of its unit roundoff, 2^-9 or 2^-12; rounding A and B to the
11 bits of TF32, or cutting them off, up to 1.2 of 2^-10; a sum of k random terms in float32 about
the square root of k times 2^-24. TF32 in place of float32 is a hundred times over the limit.
"""


class Set(NamedTuple):
    """Operands of one product, and where its result goes."""

    a: Any
    b: Any
    out: Any


@dataclass(frozen=True)
class Implementation:
    """Gets ready for the sets of one work, and gives what computes set number i into its ``out``,
    on a GPU without waiting for it."""

    name: str
    prepare: Callable[[Gemm, Sequence[Set]], Run]
    why_not: str = ""
    """Why it cannot take part here, in a sentence; empty if it can."""


# -- numbers and what is right -------------------------------------------------------------------


def draw(work: Gemm, count: int, arrays: str, seed: int) -> list[Set]:
    """``count`` sets of standard normal numbers: zeros would be faster than anything real."""
    xp = namespace(arrays)
    rng = xp.random.default_rng(seed)

    def operand(rows: int, columns: int, order: str) -> Any:
        shape = (rows, columns) if order == "C" else (columns, rows)
        wide = rng.standard_normal(shape, dtype=accumulator(work.dtype))
        array = wide.astype(work.dtype, copy=False)
        return array if order == "C" else array.T

    return [
        Set(
            operand(work.m, work.k, work.orders[0]),
            operand(work.k, work.n, work.orders[1]),
            xp.empty((work.m, work.n), work.dtype),
        )
        for _ in range(count)
    ]


class Reference(NamedTuple):
    """Rows of a product, in float64."""

    rows: np.ndarray
    """Their numbers."""
    values: Any


_STRIDE, _MOST = 128, 128
"""A row is drawn out of each so many, so that no row of tiles goes unseen; and at most so many."""
_COLUMNS = 2048


def reference(a: Any, b: Any, arrays: str, seed: int) -> Reference:
    """A random sample of the rows of a @ b, from float64 copies of the operands."""
    xp, rng = namespace(arrays), np.random.default_rng(seed)
    m, n = a.shape[0], b.shape[1]
    starts = np.arange(0, m, max(_STRIDE, -(-m // _MOST)))
    widths = np.minimum(np.diff(starts, append=m), m)
    rows = starts + rng.integers(0, widths)
    wide = _wide(_taken(a, rows, xp))
    values = xp.empty((len(rows), n), np.float64)
    for j in range(0, n, _COLUMNS):
        values[:, j : j + _COLUMNS] = wide @ _wide(b[:, j : j + _COLUMNS])
    return Reference(rows, values)


def error_of(out: Any, found: Reference, arrays: str) -> float:
    """||out - reference|| / ||reference|| over the rows of the reference.

    NaN or infinite if any element of ``out`` is, in whatever row: it was poisoned before.
    """
    xp = namespace(arrays)
    step = max(1, 2**24 // out.shape[1])
    for i in range(0, out.shape[0], step):
        whole = out[i : i + step].astype(accumulator(out.dtype), copy=False)
        if not bool(xp.isfinite(whole).all()):
            return float("nan")
    rows = _wide(_taken(out, found.rows, xp))
    return float(xp.linalg.norm(rows - found.values) / xp.linalg.norm(found.values))


def poison(x: Any) -> None:
    """NaN everywhere: all bits set are one, in every type of float."""
    x.view(np.uint8)[...] = 0xFF


def _taken(x: Any, rows: np.ndarray, xp: Any) -> Any:
    """Rows of ``x``; picked as integers, which every array library knows for halves too."""
    bits = x.view(f"u{x.itemsize}")
    return bits[xp.asarray(rows)].view(x.dtype)


def _wide(x: Any) -> Any:
    return x.astype(accumulator(x.dtype), copy=False).astype(np.float64)


# -- the contest ---------------------------------------------------------------------------------


def contest(
    work: Gemm,
    ways: Sequence[Implementation],
    clock: ContestClock,
    until: float,
    rounds: int,
    seed: int,
) -> list[dict[str, Any]]:
    """A row per way: its state, and if that is "timed" the seconds of its bursts.

    States: "timed"; "skipped" (it cannot run here), "failed", "wrong" and "left out" (no time),
    each with the reason as "why". No round begins after ``until`` (of time.monotonic) but the
    first. Raises what broke the device, if anything did.
    """
    rows = {way.name: _row(work, way) for way in ways}
    usable = [way for way in ways if not way.why_not]
    sets = draw(work, clock.sets_of(work.bytes), clock.arrays, seed)
    right = [reference(s.a, s.b, clock.arrays, seed + i) for i, s in enumerate(sets)]
    runs: dict[str, Run] = {}
    for way in usable:
        if time.monotonic() > until:
            rows[way.name] |= {"state": "left out", "why": "its part of the time was over"}
            continue
        rows[way.name] |= _ready(work, way, sets, right, clock, runs)
    plans = {name: clock.warm(run, len(sets)) for name, run in runs.items()}
    rng = np.random.default_rng(seed)
    done = 0
    while runs and done < rounds and (not done or time.monotonic() < until):
        for name in rng.permutation(list(runs)).tolist():
            took = clock.burst(runs[name], plans[name])
            rows[name]["all seconds"].append(took.seconds)
            rows[name]["all launches"].append(took.launch)
        done += 1
    return [_finished(work, row, plans.get(row["way"])) for row in rows.values()]


def _row(work: Gemm, way: Implementation) -> dict[str, Any]:
    return {
        "work": str(work),
        "way": way.name,
        "m": work.m,
        "n": work.n,
        "k": work.k,
        "dtype": work.dtype.name,
        "precision": work.precision,
        "orders": work.orders,
        "state": "skipped" if way.why_not else "timed",
        "why": way.why_not,
        "all seconds": [],
        "all launches": [],
    }


def _ready(
    work: Gemm,
    way: Implementation,
    sets: list[Set],
    right: list[Reference],
    clock: ContestClock,
    runs: dict[str, Run],
) -> dict[str, Any]:
    """What its row says of a way that was asked for a first product of each set."""
    try:
        run = way.prepare(work, sets)
        errors = []
        for i, (s, found) in enumerate(zip(sets, right, strict=True)):
            poison(s.out)
            run(i)
            clock.wait()
            errors.append(error_of(s.out, found, clock.arrays))
    except Exception as error:  # libraries and drivers raise all sorts of things
        clock.wait()  # raises again where the device is of no use any more
        words = " ".join(str(error).split())
        why = words if len(words) < 300 else f"{words[:300]} ..."
        return {"state": "failed", "why": f"{type(error).__name__}: {why}"}
    worst = max(errors, key=lambda e: (e != e, e))
    said = {"error": worst, "error limit": work.limit}
    if not worst <= work.limit:
        what = (
            f"a relative error of {worst:.2g}" if worst == worst else "elements that are no number"
        )
        return said | {"state": "wrong", "why": f"{what}, at most {work.limit:.2g} is right"}
    runs[way.name] = run
    return said


def _finished(work: Gemm, row: dict[str, Any], plan: Burst | None) -> dict[str, Any]:
    taken, launches = row["all seconds"], row.pop("all launches")
    if plan is None or not taken:
        return row
    return row | {
        "rounds": len(taken),
        "products in a burst": plan.products,
        "sets": plan.sets,
        "min": min(taken),
        "median": median(taken),
        "max": max(taken),
        "TFLOP/s": work.flops / median(taken) / 1e12,
        "launch": median(launches),
    }


def ratio(row: dict[str, Any], base: dict[str, Any]) -> dict[str, float]:
    """How much faster ``row`` is than ``base``: the ratio of the medians, and of round by round
    the least, the quartiles and the largest."""
    each = [b / x for b, x in zip(base["all seconds"], row["all seconds"], strict=True)]
    low, high = np.quantile(each, (0.25, 0.75))
    return {
        "ratio": base["median"] / row["median"],
        "least": min(each),
        "lower quartile": float(low),
        "upper quartile": float(high),
        "largest": max(each),
    }
