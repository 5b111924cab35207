"""Bytes and seconds that were measured, against the estimate: a group of rows for each source."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from tiledask.lab.accuracy.exact import gpt, layout
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.lab.accuracy.runs import RunRow, run_rows
from tiledask.plan.data import shipped_json
from tiledask.plan.fitting.overhead import default_overhead
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.timing.calibration import calibration_of, frameworks, holds, uncounted
from tiledask.plan.timing.step import estimate_step

__all__ = ["BLOOM", "TITAN", "calibrated", "left_out", "measured", "memory_errors", "rankings",
           "times", "unexplained", "verdicts"]  # fmt: skip

GIB = 2**30
BLOOM, TITAN = "BLOOM-176B log, step times", "torchtitan, seconds a step"
BLOOM_MEMORY, TITAN_MEMORY = "BLOOM-176B log, GB on A100", "torchtitan, GiB on H100"
WORKSPACE = 32 * 2**20
"""Bytes that PyTorch and Transformer Engine each give cuBLAS on Hopper and Blackwell."""
Half = "half"
"""Every second row set a constant."""


# -- bytes -----------------------------------------------------------------------------------------


class MemorySource(NamedTuple):
    """How a source's bytes are compared."""

    beside: Callable[[RunRow], int]
    """Bytes that devices show beside the ledger's."""
    fitted: bool | str
    """Whether its rows set constants; `Half`: every second one."""
    remark: str = ""
    mean: float = 0.04
    worst: float | None = 0.1


def _allocator(row: RunRow) -> int:
    """What is measured is what PyTorch's allocator reserves: neither context nor NCCL."""
    return holds(row.run.memory().recipe.framework).allocator_bytes


MEMORY: dict[str, MemorySource] = {
    BLOOM_MEMORY: MemorySource(
        lambda row: default_overhead(row.run.layout.devices).total, Half, worst=0.08
    ),
    TITAN_MEMORY: MemorySource(
        _allocator,
        Half,
        "Every second row set what the allocator wastes; what FSDP keeps for each logit was "
        "written down with all of them in view.",
    ),
    "torchtitan with FP8 and compiled loss, GB on H200": MemorySource(
        lambda row: holds("torchtitan-fused-loss").allocator_bytes, True
    ),
    "SimuMax's Megatron-Core, GB on B200": MemorySource(
        lambda row: 2 * WORKSPACE,
        False,
        "Counted, not fitted, with these rows in view: gradients in single precision, which is "
        "Megatron-Core's default, a fused SwiGLU, the buffers that it and Transformer Engine keep, "
        "and two workspaces of cuBLAS, PyTorch's and Transformer Engine's.",
    ),
    "NVIDIA's logs, GB on H100": MemorySource(
        lambda row: 0,
        True,
        "14 B a logit and 1 B of an input in FP8 are counted, and chosen on these rows. Gradients "
        "in half precision are what the same lines show between steps.",
    ),
    "Hugging Face with LoRA, GB on A100": MemorySource(
        lambda row: default_overhead(1, framework="hf-lora").total, True
    ),
    "LitGPT with LoRA, GB on A100": MemorySource(
        lambda row: 0,
        False,
        "3 B of each number of an adapter's input: counted, not fitted, with these rows in view.",
    ),
    "LitGPT, GB while it loads": MemorySource(
        lambda row: 0,
        False,
        "These hardly grow with the batch and are no less on two devices or in 4 bits: as much as "
        "the half-precision weights, 13.5 GB, and one more state dict take while the model is "
        "loaded, which is not modelled.",
        float("inf"),
        None,
    ),
}


@cache
def measured() -> tuple[PublishedSource, ...]:
    """Bytes that devices showed."""
    found = []
    for name, source in MEMORY.items():
        rows = []
        for at, row in enumerate(run_rows()[name]):
            unit = GIB if row.unit == "GiB" else 1e9
            ours = (row.run.memory().peak + source.beside(row)) / unit
            fitted = at % 2 == 0 if source.fitted == Half else bool(source.fitted)
            rows.append(
                PublishedRow(
                    row.case, row.quantity, row.measured, ours, row.unit, calibration=fitted
                )
            )
        goal = {"mean": source.mean, "worst": source.worst}
        found.append(PublishedSource.of(name, rows, remark=source.remark, **goal))
    return tuple(found)


def memory_errors() -> dict[str, list[float]]:
    """Measured over estimated bytes by framework, each that differs once: what
    data/calibration/memory_errors.json has for ``Fit.chance``."""
    found: dict[str, set[float]] = {}
    for group in measured():
        for row, of in zip(group.rows, run_rows()[group.name], strict=True):
            if group.mean != float("inf"):
                framework = of.run.memory().recipe.framework
                found.setdefault(framework, set()).add(round(row.published / row.ours, 3))
    return {framework: sorted(ratios) for framework, ratios in sorted(found.items())}


VERDICTS = {
    "BLOOM-176B log, verdicts": "The row that is wrong needs by arithmetic as much as the 203 B "
    "row, which ran in 67 GB; why it ran out of memory is not explained.",
    "today's programs, verdicts of runs that ran": "The wrong one has as many bytes of states and "
    "activations by arithmetic as the device has, and its source does not say what is recomputed.",
}


@cache
def verdicts() -> tuple[PublishedSource, ...]:
    """Runs that ran (1) or ran out of memory (0), and what ``fits`` says of each."""
    found = []
    for name, remark in VERDICTS.items():
        rows = []
        for row in run_rows()[name]:
            verdict = row.run.verdict
            note = f"{'ran' if row.measured else 'out of memory'}; {verdict}"
            said = int(verdict != "no")
            rows.append(PublishedRow(row.case, "fits", row.measured, said, allowed=0, note=note))
        found.append(PublishedSource.of(name, rows, remark=f"1: ran. {remark}"))
    return tuple(found)


# -- seconds ---------------------------------------------------------------------------------------

GOALS = {
    BLOOM: (0.035, 0.12),
    TITAN: (0.035, 0.12),
    "SC21": (0.05, 0.12),
    "Korthikanti": (0.05, 0.12),
    "Llama 3": (0.05, 0.12),
    "Megatron-Core": (0.05, 0.12),
    "MT-NLG": (0.05, 0.12),
    "NVIDIA's Megatron-Core, H100 BF16": (0.035, 0.12),
    "NVIDIA's": (0.06, 0.15),
    "SimuMax's": (0.06, 0.15),
    "llm-foundry": (0.035, 0.12),
    "mixtures": (0.10, 0.25),
}
"""How a group's name begins -> the mean and the worst error to be reached; others are reported."""
NO_GOAL = "SC21 Table 2, ZeRO-3", "not explained"
REMARKS = {
    "SC21 Table 2, ZeRO-3": "DeepSpeed of 2021: each device gathers through its own adapter, "
    "matrix by matrix, and hides the one that it fetches ahead. Nothing but its other collectives "
    "was fitted.",
    "Korthikanti Table 5": "Two of the four are published to two and three digits.",
    "Korthikanti Table 4": "One layer on eight devices, none beside it.",
    "Llama 3 Table 4": "Eight chunks a stage and FLOP of a causal mask are our reading of the "
    "paper. The times are of layouts that the ledger finds no room for (102 GB of 80 on 16,384 "
    "GPUs, 91 with FSDP's sharded gradients, zero=2): not counted is "
    f"{uncounted('llama-3')}.",
    "Megatron-Core on H100": "The source gives neither micro-batch nor chunks: the fastest that "
    "fit are taken.",
    "MT-NLG": "Ran Megatron-DeepSpeed, with the shares that BLOOM's log gave; with Megatron-LM's, "
    "of SC21, it would be 21 % too fast.",
    BLOOM: "Four constants: what a transfer between stages of DeepSpeed's engine takes beside its "
    "bytes (11 ms), what gradients reach of 4 adapters of 100 Gb/s a node, passes over memory that "
    "are not fused, and what products lose whose sizes 32 does not divide (the first rows' heads "
    "are 150 wide, their slices 1800). Which terms there are was chosen with all rows in view, so "
    "the check rows check the constants, not the form; MT-NLG's set none.",
    TITAN: "PyTorch on an H100 of 96 GB with 2.4 TB/s and 500 W, some rows in FP8, which its "
    "tensor parallelism gathers in 8 bits; as many micro-batches as stages. Pieces of keys that "
    "come round its ring are worked on at 0.74 of the core's share; Llama 3's were not. The form "
    "was chosen with all rows in view. titan-8b-cp2 contradicts cp 4 and 8 and stands apart; with "
    "it the mean is 3.2 %, the worst 21 %.",
}


@cache
def calibrated() -> frozenset[str]:
    """Rows that the constants of a device were fitted to."""
    device, recipe = load_device("A100-80GB"), load_recipe("mixed-adam-16")
    return frozenset(
        case
        for name in frameworks()
        for case in calibration_of(device, recipe, framework=name).calibrated
    )


@cache
def unexplained() -> dict[str, str]:
    """Why a row contradicts others of its own source, by id: no model can be right on both."""
    found: dict[str, str] = shipped_json("published", "unexplained.json")
    return found


@cache
def left_out() -> dict[str, list[float]]:
    """(rows, mean, worst) of each group where a model's rows were left out of the fit that
    estimates them; as `refit.py` found it."""
    found: dict[str, list[float]] = shipped_json("calibration", "left_out.json")
    return found


@cache
def times() -> tuple[PublishedSource, ...]:
    """Seconds of a step or a layer, by source."""
    found = []
    for name, of in run_rows().items():
        if name in MEMORY or name in VERDICTS:
            continue
        rows = []
        for row in of:
            ours = row.run.seconds() * (1e3 if row.unit == "ms" else 1)
            note = unexplained().get(row.case, "")
            if not note and row.quantity != "layer, forward and backward":
                note = "its memory is refused" if row.run.verdict == "no" else ""
            fitted = row.key in calibrated()
            rows.append(
                PublishedRow(
                    row.case, row.quantity, row.measured, ours, row.unit, None, fitted, note
                )
            )
        goal = next((goal for start, goal in GOALS.items() if name.startswith(start)), None)
        if goal is None or any(words in name for words in NO_GOAL):
            goal = (float("inf"), None)
        remark = " ".join(filter(None, [REMARKS.get(name, ""), _without(name)]))
        found.append(PublishedSource.of(name, rows, mean=goal[0], worst=goal[1], remark=remark))
    return tuple(found)


def _without(group: str) -> str:
    """What a page says of a group's rows where their model was left out; nothing of others."""
    if group not in left_out():
        return ""
    count, mean, worst = left_out()[group]
    found = f"mean {100 * mean:.1f} %, worst {100 * worst:.1f} % ({count} rows)"
    return f"Each model estimated without its own rows: {found}."


def rankings() -> PublishedSource:
    """How much longer than the best measured layout the estimate's first choice takes."""
    rows = (_ranking(case) for case in published().values() if case["kind"] == "ranking")
    return PublishedSource.of(
        "vTrain: the measured time of the first choice over the best", rows, mean=0.02, worst=0.02
    )


def _ranking(case: dict[str, Any]) -> PublishedRow:
    i, best = case["inputs"], case["expected"]["best_ms"]
    model = gpt({**i, "vocab": 51200}, learned_pos=2048)
    cluster = f"{i['gpus']}xA100-80GB"

    def ours(c: dict[str, Any]) -> float:
        split = layout({**i, **c}, recompute="full")
        return estimate_step(model, split, cluster, "mixed-adam-16", i["seq"]).total

    pick = min(case["candidates"], key=ours)
    shown = f"dp {pick['dp']} x tp {pick['tp']} x pp {pick['pp']}, b {pick['micro_batch']}"
    note = f"{shown}, of {len(case['candidates'])}"
    return PublishedRow(case["id"], "first choice", best, pick["measured_ms"], "ms", note=note)
