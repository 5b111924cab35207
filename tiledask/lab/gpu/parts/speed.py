"""Speed of our kernels beside cuBLAS, torch and Triton, and beside their own bounds.

The contest of `make bench-tiles` (lab/bench/tiles): contenders take turns on the same numbers, in
rounds. A kernel that hangs or breaks the device is left out of all that follows.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tiledask.lab.bench.tiles.clock import ContestClock, Stopped, clock_for
from tiledask.lab.bench.tiles.device import clocks, device_of, facts_of
from tiledask.lab.bench.tiles.goals import goals, ladder, predictions
from tiledask.lab.bench.tiles.jobs import JOBS, TENSOR, Contest
from tiledask.lab.bench.tiles.rounds import Contender, Gemm, contest, ratio
from tiledask.lab.bench.tiles.trial import trial
from tiledask.lab.bench.tiles.ways import TORCH, TRITON, library, ways_of
from tiledask.lab.gpu.part import GpuPart, Notes
from tiledask.lab.gpu.parts.sizes import shrink
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.table import Grid
from tiledask.plan.units import format_seconds

__all__ = ["PARTS", "jobs", "race", "run"]

_ROUNDS = 15
_GOALS = {("bf16", "wgmma_ws_persistent"): "bf16", ("fp32", "sgemm_warptiled"): "fp32"}
"""(precision, kernel) of the goals that the page begins with, at 8192 cubed."""
_WIDE = tuple(
    Contest((Gemm(m, n, k, "bf16"),), ("wgmma_ws_persistent", TORCH, TRITON))
    for m, n, k in ((65536, 1024, 4096), (1024, 65536, 4096), (1024, 1024, 65536), (1024,) * 3)
)
"""Tall, wide, long, and with fewer tiles than a GPU has multiprocessors."""


def jobs(arrays: str = "cupy") -> list[Contest]:
    """The products of `make bench-tiles` and some more, as large as this device should have."""
    if arrays == "numpy":
        return [job for job in JOBS[arrays] if not job.workers]
    known = [job for job in JOBS[arrays] if not job.workers]
    more = [*known[:2], *(j for j in known[2:] if j.works[0].precision == "fp32"), *known[2:]]
    less = shrink(arrays)
    small = (
        replace(
            job,
            works=tuple(
                replace(w, m=max(w.m // less, 64), n=max(w.n // less, 64), k=max(w.k // less, 64))
                for w in job.works
            ),
        )
        for job in (*more, Contest((Gemm(8192, 8192, 8192, "fp16"),), TENSOR), *_WIDE)
    )
    return list(dict.fromkeys(small))


def run(notes: Notes, arrays: str = "cupy") -> None:
    """Each product a row per contender, with the seconds of every round."""
    wanted = jobs(arrays)
    if notes.begin("the device"):
        facts = facts_of(arrays)
        bounds = predictions(wanted[0].works[0].n, device_of(facts), arrays)
        steps = ladder([], bounds, wanted[0].works[0].n, arrays)
        notes.add("the device", "timed", device=facts, ladder=steps, arrays=arrays, seconds=0.0)
    # our kernels at small sizes, in a process of its own: whoever fails is refused for good
    ours = [
        (name, work.precision)
        for job in wanted
        for work in job.works
        for name in job.names
        if name not in (TORCH, TRITON)
    ]
    if arrays == "cupy" and notes.begin("trial", seconds=300):
        found = trial(list(dict.fromkeys(ours)), arrays, patience=45.0, say=notes.say)
        notes.add("trial", "right", refused=[" in ".join(pair) for pair in found])
        for (name, precision), why in found.items():
            _refuse(notes, name, precision, f"in a trial: {why}")
    clock = clock_for(arrays)
    works = [(job, work) for job in wanted for work in job.works]
    for number, (job, work) in enumerate(works):
        if notes.has(str(work)):
            continue
        rest, left = notes.left() - 20, len(works) - number
        if rest < 5:
            notes.add(f"{work}: not begun", "skipped", why="there was no time for it")
        else:
            ways = ways_of(work, job.names, arrays)
            race(notes, work, ways, clock, min(rest, 2 * rest / left), number)


def _refuse(notes: Notes, name: str, precision: str, why: str) -> None:
    notes.add(
        f"refused: {name} in {precision}", "failed", why=why, kernel=name, precision=precision
    )


def race(
    notes: Notes,
    work: Gemm,
    ways: Sequence[Contender],
    clock: ContestClock,
    seconds: float,
    seed: int,
    what: str = "",
) -> list[dict[str, Any]]:
    """A row per contender for ``work``, all of them noted; none if it could not be measured.

    ``what`` tells contests of one product apart. A device that does not answer any more is a
    Stopped, after a note of whose turn it was.
    """
    key, shape = f"{work}{what and f', {what}'}", [work.m, work.n, work.k]
    facts = {"precision": work.precision, "orders": work.orders, "shape": shape}
    if not notes.begin(key, seconds=seconds + 60, **facts):
        return []
    notes.say(f"{key}, up to {seconds:.0f} s")
    ways = [_allowed(notes, work, way) for way in ways]
    before, begun = clocks(clock.arrays), time.monotonic()
    try:
        clock.release()
        found = contest(work, ways, clock, begun + seconds, _ROUNDS, seed)
    except Stopped as error:
        for way in ways:
            if f"{way.name}, {work}" in str(error):
                _refuse(notes, way.name, work.precision, str(error))
        notes.begin(key, seconds=10, **facts)  # an orderly end may wait for the device
        raise
    except Exception as error:  # no room, or a library's own kind of failure
        clock.still_alive(key, error)
        notes.add(key, "failed", why=f"{type(error).__name__}: {error}")
        return []
    notes.add(
        key,
        "timed",
        clocks_before=before,
        clocks_after=clocks(clock.arrays),
        seconds=time.monotonic() - begun,
    )
    base = next((r for r in found if r["way"] == library(clock.arrays)), None)
    said = [_said(row, base) | {"shape": shape} for row in found]
    for row in said:
        notes.add(f"{key}: {row['way']}", **row)
    return said


def _allowed(notes: Notes, work: Gemm, way: Contender) -> Contender:
    if way.why_not or not notes.has(f"refused: {way.name} in {work.precision}"):
        return way
    return Contender(way.name, way.prepare, "it was refused before: see its row")


def _said(row: dict[str, Any], base: dict[str, Any] | None) -> dict[str, Any]:
    """The row of a contender as it is noted."""
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


def tables(rows: Sequence[dict[str, Any]]) -> list[Grid]:
    """The products side by side; the ladder and its bounds; goals."""
    arrays = next((row["arrays"] for row in rows if "arrays" in row), "cupy")
    raced = [row for row in rows if "way" in row]
    unit, scale = ("GFLOP/s", 1e3) if arrays == "numpy" else ("TFLOP/s", 1.0)
    cells = [
        (
            row["work"],
            row["way"],
            format_seconds(row["median"]),
            f"{row['TFLOP/s'] * scale:.4g}",
            f"{row['ratio']:.3f}" if "ratio" in row else "-",
            f"{row['lower quartile']:.3f} to {row['upper quartile']:.3f}"
            if "ratio" in row
            else "-",
            str(row["rounds"]),
        )
        if row["state"] == "timed"
        else (row["work"], row["way"], row["state"], "", "", "", "")
        for row in raced
        if row["state"] != "skipped"
    ]
    head = ("product", "", "time", unit, f"speed / {library(arrays)}", "quartiles", "rounds")
    found = [Grid(head, cells, "Contenders in turn, medians", left=(0, 1))]
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
        found.append(Grid(head, say, f"The ladder at {steps[0]['n']} cubed", left=(0, 2)))
    met = [
        (
            g["work"],
            g["speed"],
            f"{g['reached']:.3f}",
            f"{g['wanted']:.2f}",
            "yes" if g["met"] else "no",
        )
        for g in goals(raced, [], _ladder(rows))
    ]
    head = ("product", "ratio", "reached", "wanted", "met")
    return [*found, Grid(head, met, "Goals", left=(0, 1))]


def _ladder(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps that were predicted, with what was measured since."""
    head = next((row for row in rows if "ladder" in row), None)
    if head is None:
        return []
    n, arrays = head["ladder"][0]["n"], head["arrays"]
    return ladder(
        [r for r in rows if "way" in r],
        predictions(n, device_of(head["device"]), arrays),
        n,
        arrays,
    )


def _flops(speed: float | None, scale: float) -> str:
    return f"{speed / 1e12 * scale:.4g}" if speed else "-"


def figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """The ladder under its roofline; None where nothing is known of the device."""
    from tiledask.lab.bench.tiles.shown import figure as ladder_figure

    head = next((row for row in rows if "ladder" in row), None)
    return head and ladder_figure({"device": head["device"], "ladder": _ladder(rows)})


PARTS = (
    GpuPart(
        "speed",
        "Our kernels beside cuBLAS, torch and Triton, and the ladder beside its bounds.",
        6.0,
        1.0,
        ("cupy",),
        run,
        tables,
        figure,
    ),
)
