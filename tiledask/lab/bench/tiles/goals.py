"""Findings of the bench of tiles: goals, the ladder step by step, what is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledask.lab.bench.tiles.rounds import ratio
from tiledask.lab.bench.tiles.two_level import ALONE
from tiledask.lab.bench.tiles.ways import AGAIN
from tiledask.plan.inputs.hardware import Device
from tiledask.tile.choice import Prediction, config_of, predict

__all__ = [
    "GOALS",
    "LADDER",
    "TWO_LEVEL",
    "Goal",
    "goals",
    "ladder",
    "missing",
    "noise",
    "predictions",
]


Row = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """How fast a contender is to be, beside another that does the same products."""

    ours: str
    theirs: str
    precision: str
    wanted: float
    """The ratio of their median to ours, at least."""
    stretch: bool = False


GOALS = (
    Goal("wgmma_ws_persistent", "cuBLAS", "bf16", 1.00),
    Goal("wgmma_ws_persistent", "cuBLAS", "bf16", 1.05, stretch=True),
    Goal("wgmma_ws_persistent", "torch", "bf16", 1.00),
    Goal("wgmma_ws_persistent", "Triton", "bf16", 1.00),
    Goal("sgemm_warptiled", "cuBLAS", "fp32", 0.95),
    Goal("blas", "numpy.matmul", "fp32", 0.95),
)
TENFOLD, TWO_LEVEL = 10.0, 0.95
"""mma_multistage over smem_tiled; the two-level product with one worker over the library alone."""

LADDER = {
    "cupy": (
        ("smem_tiled", "fp32"),
        ("sgemm_warptiled", "fp32"),
        ("mma_multistage", "tf32"),
        ("mma_multistage", "bf16"),
        ("wgmma_ws_persistent", "bf16"),
    ),
    "numpy": (("tiled", "fp32"), ("blas", "fp32")),
}
"""(kernel, precision), each a step above the one before."""


def goals(rows: Sequence[Row], two: Sequence[Row], steps: Sequence[Row]) -> list[Row]:
    """What was to be reached, and what was; only what was measured.

    "noise" is how far the library was from itself, measured twice in the same rounds.
    """
    found: list[tuple[str, str, float, float, float | str]] = []
    for goal in GOALS:
        for base in _timed(rows, goal.theirs, goal.precision):
            for mine in _timed(rows, goal.ours, goal.precision, base["work"]):
                what = f"{goal.ours} / {goal.theirs}" + ", stretch" * goal.stretch
                reached = ratio(mine, base)["ratio"]
                found.append((base["work"], what, reached, goal.wanted, noise(rows, base["work"])))
    speeds = {(s["kernel"], s["precision"]): s["measured"] for s in steps if s["measured"]}
    for precision in ("tf32", "bf16"):
        pair = [speeds.get(key) for key in (("mma_multistage", precision), ("smem_tiled", "fp32"))]
        if all(pair):
            what = f"mma_multistage / smem_tiled, {precision} / fp32"
            found.append((f"ladder, {steps[0]['n']} cubed", what, pair[0] / pair[1], TENFOLD, ""))
    for row in two:
        if row["state"] == "timed" and row["workers"] == 1:
            reached = row[f"{ALONE}, median"] / row["median"]
            found.append((row["work"], "one worker / the library alone", reached, TWO_LEVEL, ""))
    return [
        {
            "work": work,
            "speed": what,
            "reached": reached,
            "wanted": wanted,
            "noise": unsure,
            "met": reached >= wanted,
        }
        for work, what, reached, wanted, unsure in found
    ]


def noise(rows: Sequence[Row], work: str) -> float | str:
    """|ratio - 1| of the library and itself in the rounds of ``work``; "" if it was not timed."""
    found = {row["way"]: row for row in rows if row["work"] == work and row["state"] == "timed"}
    for name, row in found.items():
        if name.endswith(AGAIN) and name.removesuffix(AGAIN) in found:
            return abs(ratio(row, found[name.removesuffix(AGAIN)])["ratio"] - 1)
    return ""


def _timed(rows: Sequence[Row], way: str, precision: str, work: str = "") -> list[Row]:
    """Rows of products whose operands are stored by rows."""
    return [
        row
        for row in rows
        if row["state"] == "timed"
        and row["way"] == way
        and row["precision"] == precision
        and row["orders"] == "CC"
        and row["work"] == (work or row["work"])
    ]


def predictions(n: int, device: Device | None, arrays: str) -> dict[tuple[str, str], Prediction]:
    """(kernel, precision) -> the bound of a product of n cubed, for what ``device`` can run."""
    if device is None:
        return {}
    found = {}
    for kernel, precision in LADDER[arrays]:
        config = config_of(kernel, "bfloat16" if precision == "bf16" else "float32")
        try:
            found[kernel, precision] = predict(n, n, n, config, device)
        except ValueError:  # the device cannot run it; the contest says why
            continue
    return found


def ladder(
    rows: Sequence[Row], bounds: Mapping[tuple[str, str], Prediction], n: int, arrays: str
) -> list[Row]:
    """A step per kernel: FLOP/s at most as predicted, and measured, and what it gains on the one
    before. None where something was not predicted, or not measured."""
    steps: list[Row] = []
    for kernel, precision in LADDER[arrays]:
        bound = bounds.get((kernel, precision))
        here = [r for r in _timed(rows, kernel, precision) if r["m"] == r["n"] == r["k"] == n]
        step = {
            "kernel": kernel,
            "precision": precision,
            "n": n,
            "predicted": bound and bound.flops_per_second,
            "bound by": bound and bound.binding,
            "measured": here[0]["TFLOP/s"] * 1e12 if here else None,
        }
        for what in ("predicted", "measured"):
            before = steps[-1][what] if steps else None
            step[f"gain {what}"] = step[what] / before if step[what] and before else None
        steps.append(step)
    return steps


def missing(rows: Sequence[Row]) -> list[str]:
    """What was not measured and why, each reason once."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["state"] != "timed":
            what = f"{row['way']}: {row['state']}, {row['why']}"
            reasons.setdefault(what, []).append(row["work"])
    return [f"{what} ({_works(works)})" for what, works in reasons.items()]


def _works(works: list[str]) -> str:
    return "; ".join(works) if len(works) < 3 else f"{len(works)} products"
