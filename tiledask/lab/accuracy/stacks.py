"""Steps of today's training programs (published/plan2.json), said to the planner and timed.

case  ->  Run: model, layout, cluster, recipe, framework  ->  estimate_step  ->  a row of its group
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.lab.accuracy.exact import layout
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, lora
from tiledask.plan.timing.step import StepEstimate, estimate_step

__all__ = ["StackRun", "run_of", "stacks"]

SIMUMAX = re.compile(r"tp(\d+)_pp(\d+)_dp(\d+)")


class StackRun(NamedTuple):
    """What ``estimate_step`` is asked about a case."""

    model: Model
    layout: Layout
    cluster: str
    recipe: str | Recipe
    sequence: int

    def step(self) -> StepEstimate:
        return estimate_step(*self)


def seconds_measured(case: dict[str, Any]) -> float | None:
    """Seconds of the case's step; None where its source has none."""
    expected = case["expected"]
    if "measured_ms" in expected:
        return float(expected["measured_ms"] / 1e3)
    return expected.get("step_s")


def run_of(case: dict[str, Any]) -> StackRun:
    """The case in the planner's words. What no source says: flash attention everywhere, sequence
    parallelism wherever there is tensor parallelism, fp32 gradients in Megatron's programs."""
    i = dict(case["inputs"])
    if "case" in i:  # SimuMax: a name for everything
        tp, pp, dp = map(int, SIMUMAX.search(_tp_first(i["case"])).groups())  # type: ignore[union-attr]
        m = int(re.search(r"mbc(\d+)", i["case"])[1])  # type: ignore[index]
        cut = re.search(r"_l(\d+)", i["case"])
        name = "llama-3.1-" + re.match(r"llama3_(\d+b)", i["case"])[1]  # type: ignore[index]
        i |= {"tp": tp, "pp": pp, "dp": dp, "global_batch": m * dp, "model": name}
        i |= {"layers": int(cut[1])} if cut else {}
    model = load_model(i["model"]) if "model" in i else Model(**i["fields"])
    if "layers" in i:
        model = replace(model, layers=i["layers"])
    i["recompute"] = i["recompute"].split()[0]  # "none (not stated per row)"
    more = {"ep": i["ep"]} if i.get("ep", 1) > 1 else {}
    split = layout(
        i,
        sequence_parallel=i["tp"] > 1,
        flash_attention=True,
        partition=i.get("partition"),
        **more,
    )
    return StackRun(model, split, f"{i['gpus']}x{i['gpu']}", _recipe(i), i["seq"])


def _tp_first(name: str) -> str:
    """SimuMax writes the layers before or after the layout."""
    return re.sub(r"_l\d+", "", name)


def _recipe(i: dict[str, Any]) -> str | Recipe:
    if i.get("lora"):
        return lora(i.get("lora_rank", 16))
    return "fsdp-adam" if i.get("software") == "fsdp" else "mixed-adam-18"


def _mixture(case: dict[str, Any]) -> bool:
    i = case["inputs"]
    named = i.get("model", "") + i.get("case", "")
    return bool(i.get("fields", {}).get("experts")) or any(
        word in named for word in ("deepseek", "qwen3-30b", "qwen3-235b", "mixtral", "moe")
    )


def _group(case: dict[str, Any]) -> str:
    """Device and program of a case: what shares its constants."""
    name, i = case["id"], case["inputs"]
    gpu, fp8 = i["gpu"], i.get("precision") == "fp8"
    if _mixture(case):
        return "mixtures"
    if name.startswith("mpt-"):
        return f"llm-foundry MPT, {gpu}"
    if name.startswith("megascale"):
        return "MegaScale's Megatron-LM (recalled), A100-80GB"
    if name.startswith("qwen7b-lora"):
        return "Hugging Face with LoRA, A100-80GB"
    if name.startswith("titan2506"):
        return "torchtitan, H100 of 500 W"
    if name.startswith(("automodel", "titan")):
        return "AutoModel and torchtitan, H100 and H200"
    if name.startswith("simumax"):
        return f"SimuMax's Megatron-Core, {gpu}"
    return f"NVIDIA's Megatron-Core, {gpu} {'FP8' if fp8 else 'BF16'}"


def rows_of(
    cases: Iterable[dict[str, Any]],
) -> tuple[dict[str, list[PublishedRow]], dict[str, str]]:
    """(rows of each group, why by the id of a case that cannot be said)."""
    groups: dict[str, list[PublishedRow]] = {}
    unsaid: dict[str, str] = {}
    for case in cases:
        measured = seconds_measured(case)
        if measured is None:
            continue
        rows = groups.setdefault(_group(case), [])
        try:
            ours = run_of(case).step().total
        except ConfigError as error:
            unsaid[case["id"]] = str(error)
            continue
        rows.append(PublishedRow(case["id"], "step", measured, ours, "s"))
    return groups, unsaid


@cache
def stacks() -> tuple[PublishedSource, ...]:
    """The rows of published/plan2.json by device and program; the remark has what is not said."""
    groups, unsaid = rows_of(published("plan2").values())
    words = {name: list(_words(rows, unsaid, name)) for name, rows in groups.items()}
    return tuple(
        PublishedSource.of(name, rows, mean=float("inf"), remark=" ".join(words[name]))
        for name, rows in sorted(groups.items())
        if rows
    )


def _words(rows: list[PublishedRow], unsaid: dict[str, str], group: str) -> Iterator[str]:
    for case in published("plan2").values():
        if case["id"] in unsaid and _group(case) == group:
            yield f"Cannot be said: {case['id']}: {unsaid[case['id']]}."
