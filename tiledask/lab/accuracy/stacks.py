"""Steps of today's training programs (published/plan2.json), said to the planner and timed.

case  ->  Run: model, layout, cluster, recipe, framework  ->  estimate_step  ->  a row of its group
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.accuracy.exact import layout
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.lab.accuracy.time import StackRun, calibrated, unexplained, without
from tiledask.plan.fitting.fit import fits
from tiledask.plan.frameworks.megatron import OVERLAPPED
from tiledask.plan.inputs.hardware import ClusterSpec, load_cluster
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe, lora

__all__ = [
    "group_of",
    "memory_run",
    "rows_of",
    "run_of",
    "seconds_measured",
    "stacks",
]

MATRICES = ("query", "key", "value", "attention output", "mlp gate", "mlp up", "mlp down")
"""What adapters stand beside where a source does not say: all of a layer."""
FRAMEWORKS = {
    "mpt-": "llm-foundry",
    "nemo2407": "nemo-24.07",
    "simumax": "megatron-2025-fused-loss",
    "automodel": "automodel",
    "titan2506-70b-async": "torchtitan-async-tp",
    "titan": "torchtitan",
    "qwen7b-lora": "hf-lora",
    "megascale": "megatron-2021",
    "": "megatron-2025",
}
"""How a case's id begins -> the framework that ran; the last one is NVIDIA's."""
SIMUMAX = re.compile(r"tp(\d+)_pp(\d+)_dp(\d+)")


def seconds_measured(case: dict[str, Any]) -> float | None:
    """Seconds of the case's step; None where its source has none."""
    expected = case["expected"]
    if "measured_ms" in expected:
        return float(expected["measured_ms"] / 1e3)
    return expected.get("step_s")


def run_of(case: dict[str, Any]) -> StackRun:
    """The case in the planner's words. What no source says: flash attention everywhere, sequence
    parallelism wherever there is tensor parallelism. Gradients are in bf16 in NVIDIA's runs (two of
    its logs say what stays allocated: 4 bytes a weight and a share of 12) and else in fp32."""
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
    whole = i["dp"] * i.get("cp", 1) % i.get("ep", 1) == 0
    if i["tp"] > 1 and more and (not whole or case["id"].startswith("mbridge")):
        more["expert_tp"] = 1  # as all of Megatron-Bridge's configurations have it
    split = layout(
        i,
        sequence_parallel=i["tp"] > 1,
        flash_attention=True,
        partition=i.get("partition"),
        **more,
    )
    if case["id"].startswith("automodel"):  # not stated: the least that fits
        tried = (replace(split, recompute=each) for each in ("none", "full"))
        run = model, load_cluster(f"{i['gpus']}x{i['gpu']}"), _recipe(case), i["seq"]
        split = next((s for s in tried if _fits(s, *run)), split)
    gpu = "H100-500W" if case["id"].startswith("titan2506") else i["gpu"]
    return StackRun(model, split, f"{i['gpus']}x{gpu}", _recipe(case), i["seq"], _framework(case))


def memory_run(case: dict[str, Any]) -> StackRun:
    """The same for its bytes. NVIDIA's programs keep gradients in half precision: their logs show
    as allocated, between steps, 2 + 2 + 12/dp bytes a parameter. Megatron-Bridge fuses the loss,
    torchtitan compiles it in 2025; LitGPT's adapters stand beside query and value."""
    run, i, name = run_of(case), case["inputs"], case["id"]
    recipe = load_recipe(run.recipe)
    if name.startswith(("dgxc", "mbridge", "nemo2407")):
        states = (replace(s, bytes=2) if s.tensor == "gradients" else s for s in recipe.states)
        run = run._replace(recipe=replace(recipe, states=tuple(states)))
    if name.startswith("litgpt"):
        base = "qlora" if "qlora" in i else "lora"
        few = lora(i["lora_rank"], ("query", "value"), base)
        run = run._replace(recipe=few, framework="litgpt")
    fused = {"mbridge": "megatron-2025-fused-loss", "titan-h200": "torchtitan-fused-loss"}
    framework = next((fused[start] for start in fused if name.startswith(start)), run.framework)
    return run._replace(framework=framework)


def _fits(split: Layout, model: Model, cluster: ClusterSpec, *more: Any) -> bool:
    return fits(model, split, cluster, *more).verdict != "no"


def _tp_first(name: str) -> str:
    """SimuMax writes the layers before or after the layout."""
    return re.sub(r"_l\d+", "", name)


def _recipe(case: dict[str, Any]) -> str | Recipe:
    i = case["inputs"]
    if i.get("lora"):
        return lora(i.get("lora_rank", 16), MATRICES)
    nvidia = case["id"].startswith(("dgxc", "nemo", "mbridge"))
    name = "fsdp-adam" if i.get("software") == "fsdp" else f"mixed-adam-{16 if nvidia else 18}"
    base = load_recipe(name)
    if i.get("mixed") == "PURE":  # gradients are reduced in half precision
        states = (replace(s, bytes=2) if s.tensor == "gradients" else s for s in base.states)
        base = replace(base, states=tuple(states))
    return replace(base, product_bytes=1) if i.get("precision") == "fp8" else base


def _framework(case: dict[str, Any]) -> str:
    """Whose program a case ran, by its source; of Megatron-Bridge's mixtures that cross nodes also
    by what its configurations of that release send tokens with."""
    name, i = case["id"], case["inputs"]
    node = load_cluster(f"{i['gpus']}x{i['gpu']}").devices_per_node
    if name.startswith("mbridge") and i.get("ep", 1) > node:
        of_2026 = re.match(r"mbridge-\w+-26", name) and "deepseek" in name
        return "megatron-bridge-2026" if of_2026 else OVERLAPPED
    return next(framework for start, framework in FRAMEWORKS.items() if name.startswith(start))


def _mixture(case: dict[str, Any]) -> bool:
    i = case["inputs"]
    named = i.get("model", "") + i.get("case", "")
    return bool(i.get("fields", {}).get("experts")) or any(
        word in named for word in ("deepseek", "qwen3-30b", "qwen3-235b", "mixtral", "moe")
    )


def group_of(case: dict[str, Any]) -> str:
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
        why = unexplained().get(case["id"], "")
        rows = groups.setdefault(group_of(case) + ", not explained" * bool(why), [])
        try:
            run = run_of(case)
            ours, note = run.step().total, why or run.refused
        except ConfigError as error:
            unsaid[case["id"]] = str(error)
            continue
        fitted = case["id"] in calibrated()
        row = PublishedRow(case["id"], "step", measured, ours, "s", None, fitted, note)
        rows.append(row)
    return groups, unsaid


@cache
def stacks() -> tuple[PublishedSource, ...]:
    """The rows of published/plan2.json by device and program; the remark has what is not said."""
    groups, unsaid = rows_of(published("plan2").values())
    words = {name: list(_words(rows, unsaid, name)) for name, rows in groups.items()}
    return tuple(
        PublishedSource.of(name, rows, remark=" ".join(words[name]), **_goal(name))
        for name, rows in sorted(groups.items())
        if rows
    )


GOALS = {
    "NVIDIA's Megatron-Core, H100 BF16": (0.035, 0.12),
    "NVIDIA's": (0.06, 0.15),
    "SimuMax's": (0.06, 0.15),
    "llm-foundry": (0.035, 0.12),
    "mixtures": (0.10, 0.25),
}
"""How a group's name begins -> the mean and the worst error to be reached."""


def _goal(name: str) -> dict[str, float]:
    goal = next((goal for start, goal in GOALS.items() if name.startswith(start)), None)
    goal = None if name.endswith("not explained") else goal
    return {"mean": float("inf")} if goal is None else {"mean": goal[0], "worst": goal[1]}


def _words(rows: list[PublishedRow], unsaid: dict[str, str], group: str) -> Iterator[str]:
    yield from filter(None, [without(group).strip()])
    for case in published("plan2").values():
        if case["id"] in unsaid and group_of(case) == group:
            yield f"Cannot be said: {case['id']}: {unsaid[case['id']]}."
