"""Trainings and a pipeline on GPU workers: the host's losses, tokens a second, idle time.

LeNet, GPT     a few steps in float64 on one rank and on two, each way of splitting: the losses of
               the same training in NumPy
large GPT      in bfloat16: seconds a step, tokens a second, a share of the device's peak
pipeline       stages that only take their time: the idle share, simulated and measured
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from tiledask.lab.gpu.contest.device import described
from tiledask.lab.gpu.part import GpuPart, Notes, PartTable
from tiledask.lab.gpu.parts.sizes import shrink
from tiledask.plan.units import format_seconds

__all__ = ["PARTS", "run"]

_LIMIT = 1e-9
"""Relative difference of float64 losses after some steps, in sums of another order."""
_SHAPES = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))
_WAYS = ({}, {"data parallel": 2}, {"network": 2}, {"layerwise": 2}, {"space": 2})
_STEPS = 10
"""Of the training whose speed is measured."""
_FORWARD = 0.02
"""Seconds of a forward of the pipelines whose idle time is measured."""
_CASES = (("gpipe", 2, 8), ("1f1b", 2, 8), ("1f1b", 4, 8), ("zb-h1", 4, 8))
"""(schedule, workers, micro-batches)."""


def run(notes: Notes, arrays: str = "cupy") -> None:
    """Each training and each run a row; on as few workers as it needs, which share a GPU if there
    is no other."""
    import tiledask as td

    device = "cuda" if arrays == "cupy" else "cpu"
    for workers, each in ((1, _alone), (2, _on_two), (4, _on_four)):
        if notes.late(f"on {workers} workers", 40):
            continue
        patience = min(120.0, notes.left() - 10)
        with td.start_cluster(
            workers=workers, device=device, quiet=True, timeout=patience
        ) as cluster:
            each(notes, cluster, arrays)


def _alone(notes: Notes, cluster: Any, arrays: str) -> None:
    _lenet(notes, cluster, _WAYS[0])
    _gpt(notes, cluster, _SHAPES[0])
    _large(notes, cluster, arrays)


def _on_two(notes: Notes, cluster: Any, arrays: str) -> None:
    for shape in _SHAPES[1:]:
        _gpt(notes, cluster, shape)
    for ways in _WAYS[1:]:
        _lenet(notes, cluster, ways)
    _idle(notes, cluster)


def _on_four(notes: Notes, cluster: Any, arrays: str) -> None:
    _idle(notes, cluster)


def _begun(notes: Notes, key: str, seconds: float = 90.0, **facts: Any) -> bool:
    """Whether to do it now; what there is no time for is said."""
    if notes.has(key) or notes.late(key, 15, **facts):
        return False
    notes.say(key)
    return notes.begin(key, seconds=min(seconds, notes.left()) + 15, **facts)


def _compared(notes: Notes, key: str, here: Callable[[], Any], host: Callable[[], Any]) -> None:
    """A row for a training: its losses beside the host's."""
    with notes.failing(key):
        begun = time.monotonic()
        got, took = here().losses, time.monotonic() - begun
        wanted = host().losses
        off = float(np.max(abs(got / wanted - 1)))
        wrong = f"losses {got.tolist()}, on the host {wanted.tolist()}" if off > _LIMIT else ""
        notes.judge(key, wrong, error=off, limit=_LIMIT, seconds=took, losses=got.tolist())


def _lenet(notes: Notes, cluster: Any, ways: dict[str, int]) -> None:
    import tiledask as td
    from tiledask.tile.optimizers import SGD

    ranks = 2 if ways else 1
    key = f"LeNet, {', '.join(ways) or 'one rank'}, {ranks} worker{'s' * (ranks > 1)}"
    if not _begun(notes, key, ranks=ranks):
        return
    how = {"steps": 4, "batch": 32, "rule": SGD(0.1, momentum=0.9), "dtype": "float64"}
    digits, mesh = td.load_images("digits"), td.Mesh(cluster, (ranks,))
    _compared(
        notes,
        key,
        lambda: td.train_lenet(digits, ways, mesh, timeout=80.0, **how),
        lambda: td.train_lenet(digits, {}, **how),
    )


def _gpt(notes: Notes, cluster: Any, shape: tuple[int, int, int]) -> None:
    import tiledask as td
    from tiledask.tile.optimizers import SGD

    key = f"GPT, dp {shape[0]}, tp {shape[1]}, pp {shape[2]}"
    if not _begun(notes, key, ranks=int(np.prod(shape))):
        return
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=64, layers=4, heads=4, sequence=32)
    how = {
        "steps": 4,
        "batch": 8,
        "microbatches": 2,
        "rule": SGD(0.1, momentum=0.9),
        "dtype": "float64",
        "progress": False,
        "timeout": 80.0,
    }
    _compared(
        notes,
        key,
        lambda: td.train(model, text, td.Mesh(cluster, shape), **how),
        lambda: td.train(model, text, (1, 1, 1), **how),
    )


def _large(notes: Notes, cluster: Any, arrays: str) -> None:
    """The median of the last steps: the first ones load kernels."""
    import tiledask as td

    less = shrink(arrays)
    text, batch = td.load_text("tales"), 8 if less == 1 else 2
    model = td.GPT(
        text.vocabulary,
        hidden=max(64, 2048 // less),
        layers=12 if less == 1 else 2,
        heads=16,
        sequence=max(32, 1024 // less),
        gated=True,
    )
    key = f"GPT of {model.size:,} parameters, bfloat16"
    if not _begun(notes, key, 150.0, parameters=model.size, precision="bf16"):
        return

    steps: list[Any] = []
    with notes.failing(key):
        made = td.train(
            model,
            text,
            td.Mesh(cluster, (1, 1, 1)),
            steps=_STEPS,
            batch=batch,
            dtype="bfloat16",
            progress=steps.append,
            timeout=140.0,
        )
        step = median(each.seconds for each in steps[_STEPS // 2 :])
        tokens = batch * model.sequence
        flops = 6 * model.size * tokens / step
        known = described(arrays)
        peak = dict(known.peak_flops).get("bf16") if known else None
        facts = {
            "seconds": step,
            "tokens/s": tokens / step,
            "FLOP/s": flops,
            "share of peak": flops / peak if peak else None,
            "losses": made.losses.tolist(),
            "bytes held": made.held[0],
        }
        if np.isfinite(made.losses).all():
            notes.add(key, "timed", **facts)
        else:
            notes.add(key, "wrong", why="losses that are no number", **facts)


# -- pipelines -----------------------------------------------------------------------------------


def _idle(notes: Notes, cluster: Any) -> None:
    """Actions that last as long as they are told: the idle share is the schedule's."""
    import tiledask as td
    from tiledask.lab.sweep import schedule_on

    for name, workers, microbatches in _CASES:
        key = f"idle of {name}, {workers} workers, {microbatches} micro-batches"
        if workers != cluster.slots or not _begun(notes, key, 60.0, ranks=workers):
            continue
        schedule = schedule_on(name, workers, microbatches)
        paced = {"forward": _FORWARD, "backward": 2 * _FORWARD, "engine": "loop"}
        with notes.failing(key):
            # connections are made in the first one
            runs = [td.run_schedule(schedule, cluster=cluster, **paced) for _ in range(4)][1:]
            run = sorted(runs, key=lambda run: run.timeline.bubble_fraction)[1]
            notes.add(
                key,
                "timed",
                schedule=name,
                devices=workers,
                **{
                    "measured idle %": 100 * run.timeline.bubble_fraction,
                    "simulated idle %": 100 * run.simulated.bubble_fraction,
                    "overhead per action": run.timeline.overhead_per_action,
                },
            )


# -- for the page --------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> list[PartTable]:
    """Trainings beside the host; how fast the large one is; idle shares."""
    compared = [
        (
            row["key"],
            row["state"],
            f"{row['error']:.1e}" if "error" in row else "-",
            format_seconds(row["seconds"]) if "seconds" in row else "-",
        )
        for row in rows
        if "losses" in row and "tokens/s" not in row
    ]
    large = [
        (
            row["key"],
            format_seconds(row["seconds"]),
            f"{row['tokens/s']:,.0f}",
            f"{row['FLOP/s'] / 1e12:.4g}",
            f"{100 * row['share of peak']:.1f} %" if row["share of peak"] else "-",
        )
        for row in rows
        if "tokens/s" in row
    ]
    names = "simulated idle %", "measured idle %"
    idle = [
        (row["key"], *(f"{row[name]:.1f}" for name in names)) for row in rows if names[1] in row
    ]
    return [
        PartTable(("training", "", "losses off the host's", "time"), compared, "Trainings"),
        PartTable(("training", "a step", "tokens/s", "TFLOP/s", "of peak"), large, "Speed"),
        PartTable(("pipeline", *names), idle, "Idle time"),
    ]


PARTS = (
    GpuPart(
        "train",
        "GPT and LeNet trained, a pipeline run, idle time against its prediction.",
        4.0,
        ("cupy", "distributed", "dask_cuda"),
        run,
        tables,
    ),
)
