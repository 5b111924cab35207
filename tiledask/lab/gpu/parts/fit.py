"""Does it fit: claims of the planner, run on the device at 1:10 and 1:1, beside what was held.

states        a real decoder's weights, gradients and optimizer states, and one optimizer step
activations   a decoder like GPT-2: a whole training step, in one stage, with recomputation, and in
              two stages that share the device
refused       the same with half of the memory that it needs: nothing may fit then

Measured is what our arrays held, to the byte, and what CuPy's pool of the worker grew by, which
has what kernels allocate for themselves too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiledask.lab.gpu.part import GpuPart, Notes, PartTable
from tiledask.lab.gpu.parts.sizes import memory_of_device, shown, shrink
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_model, models
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe, state_bytes
from tiledask.plan.units import format_seconds

__all__ = ["PARTS", "Claimed", "claims", "run"]

RECIPE = "mixed-adam-16"
_SHARE = 0.6
"""Of the device's memory, that a claim may take."""
_DRAWN = 24 * 10**9
"""Bytes of states, at most: their numbers are drawn on the host."""
_GPT2 = ("gpt2-xl", "gpt2-large", "gpt2-medium", "gpt2")
_SCALES = (10, 1)


@dataclass(frozen=True)
class Claimed:
    """What is claimed, and the arguments of `tiledask.run_claim` that run it."""

    key: str
    what: Model | int
    layout: Layout
    scale: int
    sequence: int
    capacity: int
    """Bytes of the claim's device, at 1:1."""


def claims(memory: int, sequence: int = 1024) -> list[Claimed]:
    """What is run on a device of ``memory`` bytes, the most telling first.

    >>> [claim.key for claim in claims(80 * 10**9)][:2]
    ['states of qwen2.5-14b at 1:10', 'states of olmo-2-1b at 1:1']
    """
    room, found = _SHARE * memory, []
    for scale in _SCALES:
        if name := _largest(int(min(room, _DRAWN) * scale)):
            parameters = load_model(name).parameters
            found.append(
                Claimed(
                    f"states of {name} at 1:{scale}",
                    parameters,
                    Layout(),
                    scale,
                    sequence,
                    int(memory * scale),
                )
            )
    for model in _decoders(room, sequence):
        for how, layout in (
            ("", Layout(microbatches=2)),
            (", recomputed", Layout(microbatches=2, recompute="full")),
            (", 2 stages", Layout(pp=2, microbatches=4)),
        ):
            peak = estimate_memory(model, layout, RECIPE, sequence).peak
            if layout.pp * peak <= room:
                found.append(
                    Claimed(
                        f"a step of {model.name}{how}",
                        model,
                        layout,
                        1,
                        sequence,
                        memory // layout.pp,
                    )
                )
    whole = next((claim for claim in found if claim.scale == 10), None)
    if whole:
        half = sum(state_bytes(whole.what, load_recipe(RECIPE), 0, 1).values()) // 2
        found.append(replace(whole, key=f"{whole.key}, refused", capacity=half))
    return found


def _largest(room: int) -> str:
    """The largest decoder shipped whose states take ``room`` bytes or less; "" if none does."""
    each = sum(state_bytes(1, load_recipe(RECIPE), 0, 1).values())
    sizes = {name: load_model(name).parameters for name in models()}
    fitting = [name for name, n in sizes.items() if n * each <= room]
    return max(fitting, key=sizes.__getitem__, default="")


def _decoders(room: float, sequence: int) -> Iterator[Model]:
    """The largest GPT-2 of which a step takes ``room`` bytes or less, and about a tenth of it.

    Without dropout, as `run_claim` executes them.
    """
    known = [replace(load_model(name), dropout=False) for name in _GPT2]
    small = Model(
        hidden=256, layers=4, heads=4, ffn=1024, vocab=5056, learned_pos=1024, name="gpt2 at 1:28"
    )
    fitting = [
        model
        for model in (*known, small)
        if estimate_memory(model, Layout(microbatches=2), RECIPE, sequence).peak <= room
    ]
    yield from fitting[:1]
    for model in fitting[1:]:
        if model.parameters <= fitting[0].parameters / 8:
            yield model
            return


def run(notes: Notes, arrays: str = "cupy") -> None:
    """A row per claim: right where both verdicts are the same and the peaks agree."""
    import tiledask as td

    memory = memory_of_device(arrays) if arrays == "cupy" else 10**9
    wanted = [c for c in claims(memory, max(64, 1024 // shrink(arrays))) if not notes.has(c.key)]
    device = "cuda" if arrays == "cupy" else "cpu"
    for workers in (1, 2):
        here = [claim for claim in wanted if claim.layout.pp == workers]
        if not here:
            continue
        if [claim for claim in here if notes.late(claim.key, 45)]:
            continue
        shared = workers if arrays == "cupy" else None
        with td.start_cluster(
            workers=workers,
            device=device,
            per_gpu=shared,
            quiet=True,
            timeout=min(120.0, notes.left()),
        ) as cluster:
            for claim in here:
                _one(notes, claim, cluster)


def _one(notes: Notes, claim: Claimed, cluster: Any) -> None:
    from tiledask.distributed.cluster.counters import counting
    from tiledask.distributed.memory.claims import run_claim

    if notes.late(claim.key, 20):
        return
    patience = min(120.0, notes.left() - 10)
    name = claim.what.name if isinstance(claim.what, Model) else f"{claim.what:,} parameters"
    notes.begin(
        claim.key,
        seconds=patience + 30,
        model=name,
        scale=claim.scale,
        layout=str(claim.layout),
        recipe=RECIPE,
        sequence=claim.sequence,
    )
    notes.say(claim.key)
    with notes.failing(claim.key):
        with counting(cluster, patience) as counted:
            ran = run_claim(
                claim.what,
                claim.layout,
                claim.capacity,
                cluster,
                recipe=RECIPE,
                sequence=claim.sequence,
                scale=claim.scale,
                timeout=patience,
            )
        predicted, measured = ran.predicted, ran.measured
        facts = {
            "seconds": ran.seconds,
            "capacity bytes": ran.case.capacity,
            "peak bytes, predicted": predicted.peak,
            "peak bytes": measured.peak,
            "pool bytes": max(counted.growth, default=None),
            "ratio": ran.ratio,
            "verdict, predicted": ran.predicted_verdict,
            "verdict": ran.executed_verdict,
            "bytes by tensor, predicted": predicted.by_tensor(predicted.binding[0]),
            "bytes by tensor": measured.by_tensor(measured.binding[0]),
        }
        notes.judge(claim.key, "" if ran.agrees else str(ran), **facts)


_BYTES = ("capacity bytes", "peak bytes, predicted", "peak bytes", "pool bytes")

# -- for the page --------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> list[PartTable]:
    """A row per claim: predicted, held, the pool's growth, and both verdicts."""
    cells = [
        (
            row["key"],
            *(shown(row.get(name)) for name in _BYTES),
            f"{row['verdict, predicted']}, {row['verdict']}" if "verdict" in row else row["state"],
            format_seconds(row["seconds"]) if "seconds" in row else "-",
        )
        for row in rows
    ]
    head = ("claim", "memory", "predicted", "held", "pool grew", "predicted, run", "time")
    return [PartTable(head, cells, "Does it fit?", left=(0, 5))]


PARTS = (
    GpuPart(
        "fit",
        "Claims of the planner about memory, run on the device at 1:10 and 1:1.",
        3.0,
        ("cupy", "distributed", "dask_cuda"),
        run,
        tables,
    ),
)
