"""Part 1: does a 200 B model fit on 40 GB GPUs? By arithmetic, then run at 1:1000.

full copy:   every device   [layer 1 ........ layer 24]            24/24 of the weights
split:       device 0 [1-2]   device 1 [3-4]   ...   device 11 [23-24]   2/24 each
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from distributed import Future

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.pipelines.stages import HalfFeedForward, first_that_fails, stack
from tiledask.lab import plots
from tiledask.lab.report import Section
from tiledask.lab.studies.replay import replay
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.fitting.fit import Fit, minimum_devices
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.units import format_bytes

__all__ = ["at_scale", "on_paper", "run_at_scale"]

MODEL, CLUSTER, DEVICES = "gpt-200b", "160xA100-40GB", 12
CAP = 40_000_000
"""Bytes of a worker: a 40 GB GPU at 1:1000."""
LAYERS = 24
SHAPE = {"width": 1024, "hidden": 4096, "seed": 200}
"""24 such layers have 201 million weights: 200 B at 1:1000."""
TOKENS = 8
ROUNDING = 1e-5
"""Relative difference that 24 layers of float32 sums in another order may show."""


def on_paper(section: Section) -> None:
    """The arithmetic: the set-up that fails, the smallest change that fits, by tensor class."""
    model, cluster = td.load_model(MODEL), td.load_cluster(CLUSTER)
    copies = td.fits(model, td.Layout(dp=cluster.devices), cluster)
    fix = copies.smallest_fix
    split = td.fits(model, fix.layout, cluster)
    # bytes of each tensor class on the fullest GPU of both set-ups, as a Markdown table
    a, b = (fit.memory.ledger.by_tensor(fit.memory.ledger.binding[0]) for fit in (copies, split))
    rows = [
        f"| {tensor} | {format_bytes(a.get(tensor, 0))} | {format_bytes(b.get(tensor, 0))} |"
        for tensor in dict.fromkeys((*a, *b))
        if a.get(tensor) or b.get(tensor)
    ]
    total = (
        f"| **all** | **{format_bytes(sum(a.values()))}** | **{format_bytes(sum(b.values()))}** |"
    )
    head = ["| fullest GPU, bytes of | full copy | split |", "|---|---:|---:|"]
    section.text(
        f"Training `{MODEL}`, {model.parameters:,} parameters, on {CLUSTER}.\n\n"
        f"**A full copy per GPU** (`dp={cluster.devices}`), *{copies.verdict}*: "
        f"{copies.reason}.\n\n"
        f"**The smallest change that fits**: {fix}. With one sequence in flight all stages but one "
        f"wait; notebook 01 works out the cure.\n\n" + "\n".join([*head, *rows, total])
    )
    section.table(Comparison("200 B parameters on 40 GB GPUs", _rows(copies, split)))
    section.figure(
        plots.memory_bars(
            {
                "full copy per GPU": copies.memory.ledger,
                f"tp {fix.layout.tp}, pp {fix.layout.pp}": split.memory.ledger,
            },
            copies.capacity,
            place="stage",
            overhead=split.overhead.total,
            title="A 200 B model on 40 GB GPUs: bytes per GPU by tensor class",
        ),
        "fit-200b",
        "Bytes per GPU at the fullest moment of a training step (mixed-precision Adam).",
    )


def _rows(copies: Fit, split: Fit) -> list[Claim]:
    flat, capacity = 200_000_000_000, copies.capacity
    allocations = [2 * n for n in copies.memory.model.item_parameters]
    embedding, layer, *_ = allocations
    return [
        Claim(
            "GPUs for fp16 weights alone, 200e9 x 2 B",
            minimum_devices(flat, "fp16-weights"),
            _filled(flat, 2, capacity),
            rule="equal",
            note="simulated: filled one after the other",
        ),
        Claim(
            "GPUs for training, 200e9 x 16 B",
            minimum_devices(flat, "mixed-adam-16"),
            _filled(flat, 16, capacity),
            rule="equal",
        ),
        Claim(
            "full copy: fp16 layer that no longer fits",
            1 + (capacity - embedding) // layer,
            replay(allocations, capacity).failed,
            rule="equal",
            note="simulated: embedding, then layer after layer, on 40 GB",
        ),
        Claim("full copy: bytes per GPU", copies.memory.peak, unit="bytes"),
        Claim("full copy: verdict", copies.verdict),
        Claim("split: bytes per GPU", split.memory.peak, unit="bytes"),
        Claim("split: bytes per GPU, with overhead", split.expected, unit="bytes"),
        Claim("split: verdict", split.verdict),
    ]


def _filled(parameters: int, each: int, capacity: int, step: int = 1_000_000) -> int:
    """Devices in use after filling one after the other, ``step`` parameters at a time."""
    device, held = 1, 0
    for _ in range(parameters // step):
        if held + step * each > capacity:
            device, held = device + 1, 0
        held += step * each
    return device


def at_scale(section: Section, start: Callable[..., Cluster]) -> None:
    """Whether it fits, at 1:1000 and run: caps of 40 MB, weights of two bytes."""
    with start(workers=DEVICES, memory_cap=CAP) as cluster:
        section.text(
            f"At 1:1000 and run: {DEVICES} workers that the system lets allocate "
            f"{format_bytes(CAP)} each, and {LAYERS} layers of two-byte weights. Every worker "
            f"first tries to hold the full copy, layer by layer; then each takes two layers and "
            f"a batch of {TOKENS} tokens flows through all of them."
        )
        comparison, ledgers = run_at_scale(cluster)
    section.table(comparison)
    section.figure(
        plots.memory_bars(
            ledgers, CAP, place="worker", title="1:1000: bytes per worker, predicted and measured"
        ),
        "fit-at-scale",
        "The split model on workers with a cap of 40 MB.",
    )


def run_at_scale(cluster: Any) -> tuple[Comparison, dict[str, Ledger]]:
    """(the table, the ledgers of the set-up that fits) on a cluster of capped workers."""
    whole = HalfFeedForward(tuple(range(LAYERS)), **SHAPE)
    parts = stack(range(0, LAYERS + 1, LAYERS // DEVICES), HalfFeedForward, **SHAPE)
    layer = whole.weight_bytes // LAYERS
    fits_layers = CAP // layer
    simulated = replay([layer] * LAYERS, CAP, whole.workspace_bytes).failed + 1
    failed = full_copies(cluster, whole)

    batch = np.random.default_rng(1).standard_normal((TOKENS, whole.width), np.float32)
    schedule = td.schedule("gpipe", DEVICES, 1, forward_only=True)
    run = td.run_schedule(schedule, parts, batch, cluster)
    reference, _ = whole.forward(whole.init("numpy"), batch)
    predicted = predicted_ledger(parts)
    measured = run.memory
    rows = [
        Claim("full copy: bytes per worker", whole.weight_bytes, unit="bytes"),
        Claim(
            "full copy: MemoryError at layer",
            fits_layers + 1,
            simulated,
            failed[0] if len(set(failed)) == 1 else tuple(failed),
            rule="equal",
            note="the first layer that no longer fits, the same on every worker",
        ),
        Claim(
            "full copy: workers that raise", DEVICES, None, sum(f > 0 for f in failed), rule="equal"
        ),
        Claim(
            "split: peak bytes per worker",
            CAP,
            replay([layer] * 2, CAP, parts[0].workspace_bytes).peak,
            measured.peak,
            unit="bytes",
            rule="at most",
            note="predicted: the cap; simulated: weights + workspace",
        ),
        Claim(
            "split: bytes against the ledger",
            predicted.peak,
            None,
            measured.peak,
            unit="bytes",
            rule=("ratio", 0.85, 1.15),
        ),
        Claim(
            "split: activations between workers",
            (DEVICES - 1) * batch.nbytes,
            run.traffic.predicted.total,
            run.traffic.measured.total,
            unit="bytes",
            rule="equal",
        ),
        Claim(
            "split: relative difference from one device",
            ROUNDING,
            None,
            relative_difference(run.outputs, reference),
            rule="at most",
            note="float32; one device sums with several threads",
        ),
    ]
    fullest = max(measured.rows, key=lambda row: row.bytes)
    return Comparison("The same question run at 1:1000", rows), {
        "predicted": predicted,
        "measured": Ledger.of([fullest]),
    }


def relative_difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference between ``a`` and ``b``, relative to the largest value of ``b``."""
    return float(np.abs(a - b).max() / np.abs(b).max())


def predicted_ledger(parts: list[HalfFeedForward]) -> Ledger:
    """Weights, float32 rows in use and activations of every worker."""
    rows = []
    for slot, part in enumerate(parts):
        activations = TOKENS * (3 * part.width + 2 * part.hidden) * 4
        rows += [
            Row(slot, "weights", ALWAYS, part.weight_bytes, "layers x 2 matrices x 2 bytes"),
            Row(slot, "workspace", "forward", part.workspace_bytes, "rows x columns x 4 bytes"),
            Row(slot, "activations", "forward", activations, "x, y and two hidden, float32"),
        ]
    return Ledger.of(rows)


def full_copies(cluster: Any, whole: HalfFeedForward) -> list[int]:
    """Per slot, the layer (from 1) at which holding all of them raised; 0 if none did."""
    tries: list[Future] = [
        cluster.submit(slot, first_that_fails, whole, cluster.backend, name="full_copy")
        for slot in range(cluster.slots)
    ]
    return cluster.gather(tries, "full copies on capped workers", cancel=True)
