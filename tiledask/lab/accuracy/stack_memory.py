"""Bytes of today's programs (published/plan2.json), and whether what ran is said to fit."""

import re
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.accuracy.memory import measured, titan_framework
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.lab.accuracy.stacks import memory_run, seconds_measured
from tiledask.plan.fitting.fit import fits
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.fitting.overhead import default_overhead
from tiledask.plan.timing.calibration import holds

__all__ = ["errors_kept", "ran", "stacks_measured"]

GIB = 2**30
WORKSPACE = 32 * 2**20
"""Bytes that PyTorch and Transformer Engine each give cuBLAS on Hopper and Blackwell."""
BYTES = {"measured_alloc_gib": GIB, "max_allocated_gb": 10**9, "mem_gib": GIB, "peak_gb": 10**9}
"""What a case of published/plan2.json calls the bytes it measured, and its unit."""


def _today(name: str, start: str, fitted: bool, more: int = 0, **words: Any) -> PublishedSource:
    """The rows of published/plan2.json whose ids begin with ``start``, beside the estimate and
    ``more`` bytes of overhead."""
    rows = []
    for case in published("plan2").values():
        key = next((key for key in BYTES if key in case["expected"]), None)
        if re.match(start, case["id"]) and key:
            run = memory_run(case)
            held = estimate_memory(*run[:2], *run[3:]).peak + more
            shown = case["expected"][key] * BYTES[key] / 1e9
            rows.append(PublishedRow(case["id"], "peak", shown, held / 1e9, "GB", None, fitted))
    return PublishedSource.of(name, rows, **{"mean": 0.04, "worst": 0.1, **words})


def stacks_measured() -> list[PublishedSource]:
    """Bytes that devices showed under today's programs."""
    hf = default_overhead(1, framework="hf-lora").total
    return [
        _today(
            "torchtitan with FP8 and compiled loss, GB on H200",
            "titan-h200",
            True,
            holds("torchtitan-fused-loss").allocator_bytes,
        ),
        _today(
            "SimuMax's Megatron-Core, GB on B200",
            "simumax",
            False,
            2 * WORKSPACE,
            remark="Counted, not fitted, with these rows in view: gradients in single precision, "
            "which is Megatron-Core's default, a fused SwiGLU, the buffers that it and Transformer "
            "Engine keep, and two workspaces of cuBLAS, PyTorch's and Transformer Engine's.",
        ),
        _today(
            "NVIDIA's logs, GB on H100",
            "dgxc.*memory",
            True,
            remark="14 B a logit and 1 B of an input in FP8 are counted, and chosen on these rows. "
            "Gradients in half precision are what the same lines show between steps.",
        ),
        _today("Hugging Face with LoRA, GB on A100", "qwen7b-lora", True, hf),
        _today(
            "LitGPT with LoRA, GB on A100",
            "litgpt-lora-7b-1gpu",
            False,
            remark="3 B of each number of an adapter's input: counted, not fitted, with these rows "
            "in view.",
        ),
        _today(
            "LitGPT, GB while it loads",
            "litgpt-(lora-7b-2gpu|qlora)",
            False,
            mean=float("inf"),
            worst=None,
            remark="These hardly grow with the batch and are no less on two devices or in 4 bits: "
            "as much as the half-precision weights, 13.5 GB, and one more state dict take while "
            "the model is loaded, which is not modelled.",
        ),
    ]


def errors_kept() -> dict[str, list[float]]:
    """Measured over estimated bytes by framework, each that differs once: what
    data/calibration/memory_errors.json keeps for ``Fit.chance``."""
    found: dict[str, set[float]] = {}
    bloom, titans = measured()
    for group in (bloom, titans, *stacks_measured()):
        for row in group.rows if group.mean != float("inf") else ():
            framework = "megatron-deepspeed" if group is bloom else titan_framework(row.case)
            if group not in (bloom, titans):
                framework = memory_run(published("plan2")[row.case]).framework or ""
            found.setdefault(framework, set()).add(round(row.published / row.ours, 3))
    return {framework: sorted(ratios) for framework, ratios in sorted(found.items())}


def ran() -> PublishedSource:
    """Timed runs of published/plan2.json, which ran (1), the one that ran out of memory (0), and
    what ``fits`` says of each."""
    rows, unsaid = [], []
    for case in published("plan2").values():
        happened = int(case["expected"].get("fits", seconds_measured(case) is not None))
        if seconds_measured(case) is None and "fits" not in case["expected"]:
            continue
        try:
            run = memory_run(case)
            fit = fits(*run[:5], framework=run.framework)
        except ConfigError:
            unsaid.append(case["id"])
            continue
        said, note = int(fit.verdict != "no"), fit.verdict
        rows.append(PublishedRow(case["id"], "fits", happened, said, allowed=0, note=note))
    said_not = f"Cannot be said: {', '.join(unsaid)}. " if unsaid else ""
    return PublishedSource.of(
        "today's programs, verdicts of runs that ran",
        rows,
        remark=f"1: ran. {said_not}The wrong one has as many bytes of states and activations by "
        "arithmetic as the device has, and its source does not say what is recomputed.",
    )
