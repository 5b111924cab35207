"""Trainings and a pipeline on GPU workers: the host's losses, tokens a second, idle time.

LeNet, GPT     a few steps in float64 on one rank and on two, each way of splitting: the losses of
               the same training in NumPy
large GPT      in bfloat16: seconds a step, tokens a second, a share of the device's peak
pipeline       real stages forward and backward: the loss, and the idle share as measured and
               without overhead; stages that only take their time: the idle share as simulated
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from tiledask.lab.bench.tiles.device import described
from tiledask.lab.gpu.part import GpuPart, Notes
from tiledask.lab.gpu.parts.sizes import shrink
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.table import Grid
from tiledask.plan.units import format_seconds

__all__ = ["PARTS", "run"]

_LIMIT = 1e-9
"""Relative difference of float64 losses after some steps, in sums of another order."""
_SHAPES = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))
_WAYS = ({}, {"data parallel": 2}, {"network": 2}, {"layerwise": 2}, {"space": 2})
_STEPS = 10
"""Of the training whose speed is measured."""
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
    _stages(notes, cluster, arrays)
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


def _stages(notes: Notes, cluster: Any, arrays: str) -> None:
    """Real stages on two workers: the loss of the host, and where the time went."""
    import tiledask as td
    from tiledask.distributed.pipelines.stages import stack

    less = shrink(arrays)
    width, tokens = max(64, 2048 // less), max(64, 8192 // less)
    key = f"1f1b of 2 stages, {tokens} tokens of {width}"
    if not _begun(notes, key, ranks=2):
        return
    shape = {"width": width, "hidden": 4 * width, "seed": 1}
    rng = np.random.default_rng(0)
    batch, target = (rng.standard_normal((tokens, width), np.float32) for _ in range(2))
    schedule = td.schedule("1f1b", 2, 4)
    with notes.failing(key):
        for _ in range(2):  # the first one loads kernels and connects
            ran = td.run_schedule(
                schedule,
                stack((0, 2, 4), **shape),
                batch,
                target=target,
                cluster=cluster,
                engine="loop",
                timeout=80.0,
            )
        (whole,) = stack((0, 4), **shape)
        y, _ = whole.forward(whole.init("numpy"), batch[: tokens // 4])
        error = float(np.linalg.norm(ran.outputs[: tokens // 4] - y) / np.linalg.norm(y))
        limit, moved = 1e-4, ran.traffic
        facts = {
            "error": error,
            "limit": limit,
            "seconds": ran.timeline.makespan,
            "idle, measured": ran.timeline.bubble_fraction,
            "idle without overhead": ran.replayed.bubble_fraction,
            "bytes moved, predicted": moved.predicted.total,
            "bytes moved": moved.measured and moved.measured.total,
            "overhead per action, seconds": ran.timeline.overhead_per_action,
        }
        wrong = "" if error <= limit else f"outputs {error:.2g} from the host's"
        notes.judge(key, wrong, **facts)


def _idle(notes: Notes, cluster: Any) -> None:
    """Actions that last as long as they are told: the idle share is the schedule's."""
    from tiledask.lab.bench.idle import cases, measure

    for name, workers, microbatches in _CASES:
        key = f"idle of {name}, {workers} workers, {microbatches} micro-batches"
        if workers != cluster.slots or not _begun(notes, key, 60.0, ranks=workers):
            continue
        (case,) = cases([name], [workers], [microbatches])
        with notes.failing(key):
            measure(case, cluster, "loop")  # connections are made once
            found = measure(case, cluster, "loop", rounds=3)
            found.pop("overheads")
            notes.add(key, "timed", **found)


# -- for the page --------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> list[Grid]:
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
    idle = [
        (
            row["key"],
            *(
                f"{row[name]:.1f}"
                for name in ("simulated idle %", "simulated with delays %", "measured idle %")
            ),
        )
        if "measured idle %" in row
        else (
            row["key"],
            f"{100 * row['idle without overhead']:.1f}",
            "-",
            f"{100 * row['idle, measured']:.1f}",
        )
        for row in rows
        if "measured idle %" in row or "idle, measured" in row
    ]
    return [
        Grid(("training", "", "losses off the host's", "time"), compared, "Trainings"),
        Grid(("training", "a step", "tokens/s", "TFLOP/s", "of peak"), large, "Speed"),
        Grid(
            ("pipeline", "idle %, simulated or replayed", "with the mean overhead", "measured"),
            idle,
            "Idle time",
        ),
    ]


def figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """Idle shares, simulated and measured."""
    idle = [row for row in rows if "measured idle %" in row]
    if not idle:
        return None
    from tiledask.lab.gpu.parts.bars import bars  # loads matplotlib

    values = {what: [row[f"{what} idle %"] for row in idle] for what in ("simulated", "measured")}
    return bars(
        [f"{r['schedule']}, {r['devices']} workers" for r in idle],
        values,
        "% of device-time idle",
        "Idle time on GPU workers",
    )


PARTS = (
    GpuPart(
        "train",
        "GPT and LeNet trained, a pipeline run, idle time against its prediction.",
        4.0,
        1.0,
        ("cupy", "distributed", "dask_cuda"),
        run,
        tables,
        figure,
    ),
)
