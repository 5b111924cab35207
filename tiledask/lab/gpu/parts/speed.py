"""Speed of our kernels beside cuBLAS and torch, and beside their own bounds.

Implementations take turns on the same numbers, in rounds (lab/gpu/contest).
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tiledask.errors import KernelError
from tiledask.lab.gpu.contest.clock import ContestClock, clock_for
from tiledask.lab.gpu.contest.device import device_of, facts_of
from tiledask.lab.gpu.contest.ladder import ladder, predictions
from tiledask.lab.gpu.contest.rounds import Gemm, Implementation, contest, draw, ratio
from tiledask.lab.gpu.contest.ways import TORCH, library, ways_of
from tiledask.lab.gpu.part import GpuPart, Notes, PartTable
from tiledask.lab.gpu.parts.sizes import shrink
from tiledask.plan.units import format_seconds

__all__ = ["PARTS", "jobs", "race", "run"]

_ROUNDS = 15
_GOALS = {("bf16", "wgmma_ws_persistent"): "bf16", ("fp32", "sgemm_warptiled"): "fp32"}
"""(precision, kernel) of the goals that the page begins with, at 8192 cubed."""


class Contest(NamedTuple):
    """A product, and the implementations beside the library: kernels, "torch"."""

    work: Gemm
    names: tuple[str, ...]


def _cubed(n: int, precision: str, *names: str, orders: str = "CC") -> Contest:
    return Contest(Gemm(n, n, n, precision, orders), names)


_TENSOR = ("wgmma_ws_persistent", "mma_multistage", TORCH)
_HOPPER = ("wgmma_ws_persistent", TORCH)
JOBS: dict[str, tuple[Contest, ...]] = {
    "cupy": (
        _cubed(4096, "bf16", *_TENSOR),
        _cubed(8192, "bf16", *_TENSOR),
        _cubed(4096, "fp32", "sgemm_warptiled", "smem_tiled", TORCH),
        _cubed(8192, "fp32", "sgemm_warptiled", TORCH),
        _cubed(4096, "tf32", "mma_multistage", TORCH),
        _cubed(16384, "bf16", *_HOPPER),
        Contest(Gemm(4096, 16384, 4096, "bf16"), _HOPPER),
        Contest(Gemm(1024, 1024, 16384, "bf16"), _HOPPER),
        *(_cubed(8192, "bf16", *_TENSOR, orders=orders) for orders in ("CF", "FC", "FF")),
        _cubed(8192, "tf32", "mma_multistage", TORCH),
        _cubed(8192, "fp16", *_TENSOR),
        # tall, wide, long, and with fewer tiles than a GPU has multiprocessors
        Contest(Gemm(65536, 1024, 4096, "bf16"), _HOPPER),
        Contest(Gemm(1024, 65536, 4096, "bf16"), _HOPPER),
        Contest(Gemm(1024, 1024, 65536, "bf16"), _HOPPER),
        _cubed(1024, "bf16", *_HOPPER),
    ),
    "numpy": (
        _cubed(512, "fp32", "tiled", "blas"),
        Contest(Gemm(384, 1024, 256, "fp32"), ("tiled", "blas")),
        _cubed(512, "fp32", "tiled", "blas", orders="CF"),
    ),
}
"""What is measured, the most important first."""


def jobs(arrays: str = "cupy") -> list[Contest]:
    """The products, as large as this device should have."""
    if arrays == "numpy":
        return list(JOBS[arrays])
    less = shrink(arrays)

    def smaller(w: Gemm) -> Gemm:
        m, n, k = (max(x // less, 64) for x in (w.m, w.n, w.k))
        return replace(w, m=m, n=n, k=k)

    return list(dict.fromkeys(job._replace(work=smaller(job.work)) for job in JOBS[arrays]))


def run(notes: Notes, arrays: str = "cupy") -> None:
    """Each product a row per implementation, with the seconds of every round."""
    wanted = jobs(arrays)
    if notes.begin("the device"):
        facts, n = facts_of(arrays), wanted[0].work.n
        steps = ladder([], predictions(n, device_of(facts), arrays), n, arrays)
        notes.add("the device", "timed", device=facts, ladder=steps, arrays=arrays, seconds=0.0)
    clock = clock_for(arrays)
    for number, (work, names) in enumerate(wanted):
        if notes.has(str(work)):
            continue
        rest, left = notes.left() - 20, len(wanted) - number
        if rest < 5:
            notes.add(f"{work}: not begun", "skipped", why="there was no time for it")
        else:
            seconds = min(rest, 2 * rest / left)
            race(notes, work, ways_of(work, names, arrays), clock, seconds, number)


def race(
    notes: Notes,
    work: Gemm,
    ways: Sequence[Implementation],
    clock: ContestClock,
    seconds: float,
    seed: int,
) -> None:
    """A row per implementation of ``work``."""
    key, shape = str(work), [work.m, work.n, work.k]
    facts = {"precision": work.precision, "orders": work.orders, "shape": shape}
    # whoever hangs or breaks the device does so here, and takes no part behind it
    names = {way.name: f"{key}: {way.name}, tried" for way in ways if not way.why_not}
    ways = [way for way in ways if notes.before.get(names.get(way.name, "")) != "failed"]
    one = draw(work, 1, clock.arrays, seed)
    for way in (way for way in ways if not way.why_not):
        tried = names[way.name]
        if notes.begin(tried, **facts, kernel=way.name):
            with notes.failing(tried, KernelError, MemoryError):
                way.prepare(work, one)(0)
                clock.wait()
                notes.add(tried, "right")
    del one
    notes.begin(key, seconds=seconds + 60, **facts)
    notes.say(f"{key}, up to {seconds:.0f} s")
    begun = time.monotonic()
    try:
        clock.release()
        found = contest(work, ways, clock, begun + seconds, _ROUNDS, seed)
    except Exception as error:  # no room, or a library's own kind of failure
        clock.wait()  # raises again where the device is of no use any more
        notes.add(key, "failed", why=f"{type(error).__name__}: {error}")
        return
    notes.add(key, "timed", seconds=time.monotonic() - begun)
    base = next((r for r in found if r["way"] == library(clock.arrays)), None)
    for row in found:
        notes.add(f"{key}: {row['way']}", **_said(row, base), shape=shape)


def _said(row: dict[str, Any], base: dict[str, Any] | None) -> dict[str, Any]:
    """The row of an implementation as it is noted."""
    noted = dict(row) | {"kernel": row["way"]}
    if row["state"] == "left out":
        noted["state"] = "skipped"
    if noted["state"] != "timed":
        return noted
    noted["seconds"] = row["median"]
    if base is not None and base["state"] == "timed":
        noted |= ratio(row, base)
        name = _GOALS.get((row["precision"], row["way"]))
        if name and row["m"] == row["n"] == row["k"] == 8192 and row["orders"] == "CC":
            noted |= {"goal": name, "reached": noted["ratio"]}
    return noted


# -- for the page --------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> list[PartTable]:
    """The products side by side; the ladder and its bounds."""
    arrays = next((row["arrays"] for row in rows if "arrays" in row), "cupy")
    unit, scale = ("GFLOP/s", 1e3) if arrays == "numpy" else ("TFLOP/s", 1.0)
    cells = [
        (
            row["work"],
            row["way"],
            format_seconds(row["median"]),
            f"{row['TFLOP/s'] * scale:.4g}",
            *(f"{row[name]:.3f}" if name in row else "-" for name in ("ratio", *_QUARTILES)),
            str(row["rounds"]),
        )
        if row["state"] == "timed"
        else (row["work"], row["way"], row["state"], "", "", "", "", "")
        for row in rows
        if "way" in row and row["state"] != "skipped"
    ]
    head = ("product", "", "time", unit, f"speed / {library(arrays)}", *_QUARTILES, "rounds")
    found = [PartTable(head, cells, "In turn, medians", left=(0, 1))]
    if steps := _ladder(rows):
        head = ("kernel", f"at most, {unit}", "bound by", f"measured, {unit}", "of it")
        say = [
            (
                f"{s['kernel']}, {s['precision']}",
                _flops(s["predicted"], scale),
                s["bound by"] or "-",
                _flops(s["measured"], scale),
                f"{100 * s['measured'] / s['predicted']:.0f} %"
                if s["measured"] and s["predicted"]
                else "-",
            )
            for s in steps
        ]
        found.append(PartTable(head, say, f"The ladder at {steps[0]['n']} cubed", left=(0, 2)))
    return found


_QUARTILES = "lower quartile", "upper quartile"


def _ladder(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps that were predicted, with what was measured since."""
    head = next((row for row in rows if "ladder" in row), None)
    if head is None:
        return []
    n, arrays = head["ladder"][0]["n"], head["arrays"]
    bounds = predictions(n, device_of(head["device"]), arrays)
    return ladder([row for row in rows if "way" in row], bounds, n, arrays)


def _flops(speed: float | None, scale: float) -> str:
    return f"{speed / 1e12 * scale:.4g}" if speed else "-"


PARTS = (
    GpuPart(
        "speed",
        "Our kernels beside cuBLAS and torch, and the ladder beside its bounds.",
        6.0,
        ("cupy",),
        run,
        tables,
    ),
)
