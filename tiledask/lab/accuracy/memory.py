"""Memory that devices showed, against the estimate: the BLOOM-176B log, torchtitan."""

from typing import Any

from tiledask.lab.accuracy.exact import gpt, layout
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.plan.fitting.fit import fits
from tiledask.plan.fitting.memory import MemoryEstimate, estimate_memory
from tiledask.plan.fitting.overhead import default_overhead
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.timing.calibration import holds

__all__ = ["bloom", "bloom_cases", "measured", "titan", "titan_framework", "verdicts"]

GIB = 2**30
HEADS = 96
"""Where the log's table does not state the heads, those of its other rows of this width."""


def bloom_cases(cases: dict[str, dict]) -> list[dict]:
    """The rows of the log, in its order."""
    return [
        case
        for name, case in cases.items()
        if name.startswith("bloom-") and case["kind"] == "measured_memory"
    ]


def bloom(case: dict[str, Any]) -> MemoryEstimate:
    """The estimate of a row. fp16 rows ran DeepSpeed's fp16 optimizer; bf16 rows accumulated
    gradients in single precision and counted embedding and head as a layer each. The model is
    BLOOM's as published, without dropout (the run's README speaks of Megatron's default, 0.1)."""
    i = case["inputs"]
    model = gpt({**i, "heads": i["heads"] or HEADS}, dropout=False, embedding_norm=True)
    partition = "items" if i["embedding_counts_as_pp_layer"] else None
    recipe = {2: "deepspeed-fp16-adam", 6: "deepspeed-bf16-adam"}[i["grad_bytes"]]
    return estimate_memory(model, layout(i, partition=partition), recipe, i["seq"])


def titan(case: dict[str, Any]) -> MemoryEstimate:
    """The estimate of a row: FSDP2, flash attention, sequence parallelism with tp; pipelines run
    as many micro-batches as stages, torchtitan's default of 2024 (pipelining_utils.py)."""
    i = case["inputs"]
    pp, tp = i.get("pp", 1), i.get("tp", 1)
    chunks = 2 if i.get("schedule") == "interleaved" else 1
    microbatches = pp
    split = layout(
        i,
        dp=i["fsdp"],
        microbatch=i["local_batch"] // microbatches,
        microbatches=microbatches,
        zero=3,
        sequence_parallel=tp > 1,
        flash_attention=True,
        interleave=chunks,
    )
    recipe = "fsdp-adam-pipeline" if pp > 1 else "fsdp-adam"
    model = load_model(i["model"].replace("llama3.1", "llama-3.1"))
    return estimate_memory(model, split, recipe, i["seq"], titan_framework(case["id"]))


def titan_framework(name: str) -> str:
    """Whose program a row of torchtitan's ran, by its id."""
    return {
        "titan-8b-fsdp8": "torchtitan-eager",
        "titan-8b-fsdp128": "torchtitan-eager",
        "titan-70b-2d-asynctp": "torchtitan-async-tp",
    }.get(name, "torchtitan")


def measured() -> list[PublishedSource]:
    """Bytes that devices showed."""
    cases = published()
    # every second row that ran set the allocator's share: Holds, plan/timing/calibration.py
    rows = []
    for case in bloom_cases(cases):
        if case["expected"]["fits"]:
            memory = bloom(case)
            shown = memory.peak + default_overhead(memory.layout.devices).total
            rows.append(
                PublishedRow(
                    case["id"],
                    "peak",
                    case["expected"]["peak_mem_gb"],
                    shown / 1e9,
                    "GB",
                    calibration=len(rows) % 2 == 0,
                )
            )
    # what is measured is what PyTorch's allocator reserves: neither context nor NCCL; FSDP's
    # buckets are rows of the ledger
    titans = []
    for name, case in cases.items():
        if name.startswith("titan-"):
            memory = titan(case)
            held = (memory.peak + holds(memory.recipe.framework).allocator_bytes) / GIB
            shown, fitted = case["expected"]["mem_gib"], len(titans) % 2 == 0
            titans.append(PublishedRow(name, "reserved", shown, held, "GiB", None, fitted))
    return [
        PublishedSource.of("BLOOM-176B log, GB on A100", rows, mean=0.04, worst=0.08),
        PublishedSource.of(
            "torchtitan, GiB on H100",
            titans,
            mean=0.04,
            worst=0.1,
            remark="Every second row set what the allocator wastes; what FSDP keeps for each logit "
            "was written down with all of them in view.",
        ),
    ]


def verdicts() -> PublishedSource:
    """Rows of the log that ran out of memory (0) or ran (1), and what ``fits`` says of each."""
    fleet = load_cluster("384xA100-80GB")
    rows = []
    for case in bloom_cases(published()):
        memory = bloom(case)
        fit = fits(memory.model, memory.layout, fleet, memory.recipe, memory.sequence)
        ran, said = int(case["expected"]["fits"]), int(fit.verdict != "no")
        note = f"{'ran' if ran else 'out of memory'}; {fit.verdict}"
        rows.append(PublishedRow(case["id"], "fits", ran, said, allowed=0, note=note))
    return PublishedSource.of(
        "BLOOM-176B log, verdicts",
        rows,
        remark="1: ran. The row that is wrong needs by arithmetic as much as the 203 B row, which "
        "ran in 67 GB; why it ran out of memory is not explained.",
    )
