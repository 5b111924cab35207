"""Golden values of the planner: ledgers, texts of their formulas, verdicts, fixes, borders."""

from dataclasses import replace
from random import Random
from typing import Any

import tiledask as td
from golden.store import GoldenSet, digest

# -- what is given, as plain values ----------------------------------------------------------------


def model_of(given: Any) -> Any:
    return td.load_model(given) if isinstance(given, str) else td.Model(**given)


def layout_of(given: dict[str, Any]) -> Any:
    return td.Layout(**given)


def recipe_of(given: Any) -> Any:
    if isinstance(given, str):
        return td.load_recipe(given)
    made = td.lora(**given["lora"]) if "lora" in given else given["offload"]["recipe"]
    if "offload" not in given:
        return made
    states = given["offload"].get("states")
    return td.offload(made, states and tuple(states), to=given["offload"]["to"])


def case_of(given: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """(model, layout, cluster, recipe, sequence), and what else `fits` takes."""
    cluster = td.load_cluster(given["cluster"])
    named = {"framework": given["framework"]} if given.get("framework") else {}
    return (
        model_of(given["model"]),
        layout_of(given["layout"]),
        cluster,
        recipe_of(given["recipe"]),
        given["sequence"],
    ), named


def words(layout: Any) -> str:
    """The fields of a layout, or of one as JSON has it, that are not as usual."""
    found, usual = layout if isinstance(layout, dict) else vars(layout), vars(td.Layout())
    return " ".join(f"{name}={found[name]}" for name in usual if found[name] != usual[name])


# -- drawing ---------------------------------------------------------------------------------------

SHIPPED = [
    "gpt2",
    "gpt2-xl",
    "gpt-200b",
    "bloom-1b7",
    "bloom-176b",
    "llama-1-65b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3.1-8b",
    "llama-3.1-405b",
    "mistral-7b-v0.3",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "qwen1.5-moe-a2.7b",
    "qwen2.5-14b",
    "qwen3-30b-a3b",
    "pythia-1.4b",
    "olmo-2-13b",
    "smollm3-3b",
]
CARDS = [
    "A100-40GB",
    "A100-40GB",
    "A100-80GB",
    "A100-80GB",
    "H100",
    "H100",
    "H200",
    "B200",
    "A10",
    "L40S",
    "V100",
    "T4",
    "RTX4090",
    "MI300X",
    "GB200",
    "TPU-v4",
]
RECIPES = [
    "mixed-adam-16",
    "mixed-adam-16",
    "mixed-adam-18",
    "mixed-adam-20",
    "mixed-adam-8bit",
    "bf16-adam",
    "fp32-adam",
    "fp32-sgd",
    "fsdp-adam",
    "fsdp-adam-no-reshard",
    "mixed-momentum",
    "deepspeed-fp16-adam",
    "qlora",
    "lora",
    "fp16-weights",
    "int4-weights",
    "mixed-adam-18-fp8",
    "fsdp-adam-fp8",
]
FRAMEWORKS = [
    "automodel",
    "deepspeed-2021",
    "hf-lora",
    "litgpt",
    "llama-3",
    "llm-foundry",
    "megatron-2021",
    "megatron-2022",
    "megatron-2024",
    "megatron-2025",
    "megatron-2025-ep-overlap",
    "megatron-2025-fused-loss",
    "megatron-bridge-2026",
    "megatron-deepspeed",
    "nemo-24.07",
    "torchtitan",
    "torchtitan-async-tp",
    "torchtitan-eager",
    "torchtitan-fused-loss",
]


def drawn_model(draw: Random) -> Any:
    if draw.random() < 0.6:
        return draw.choice(SHIPPED)
    heads, experts = draw.choice((4, 8, 12, 16)), draw.choice((0, 0, 0, 4, 8))
    return {
        "hidden": 64 * heads,
        "layers": draw.randint(2, 24),
        "heads": heads,
        "kv_heads": draw.choice((heads, heads, 4)),
        "ffn": 256 * heads,
        "vocab": draw.randint(500, 60_000),
        "mlp": draw.choice(("gelu", "swiglu")),
        "norm": draw.choice(("layernorm", "rmsnorm")),
        "tied": draw.random() < 0.3,
        "learned_pos": draw.choice((0, 4096)),
        "experts": experts,
        "top_k": min(2, experts),
        "dropout": draw.random() < 0.3,
        "name": "drawn",
    }


def drawn_layout(draw: Random, model: Any) -> dict[str, Any]:
    pp = draw.choice([p for p in (1, 1, 2, 3, 4, 8) if p <= model.layers])
    v = draw.choice([v for v in (1, 1, 2, 3) if v == 1 or (pp > 1 and pp * v <= model.layers)])
    dp, cp = draw.choice((1, 2, 3, 8, 16)), draw.choice((1, 1, 1, 2))
    tp = draw.choice([t for t in (1, 2, 4, 8) if model.allows_tp(t)])
    eps = [e for e in (1, 2, 4) if model.experts and model.experts % e == 0 and dp * cp % e == 0]
    flash, cut = draw.random() < 0.5, tp > 1 and draw.random() < 0.5
    ep = draw.choice(eps or [1])
    free = model.experts and (cut or tp == 1)
    folds = [e for e in (1, 2, 4) if free and tp * dp * cp % (ep * e) == 0]
    names = ["1f1b"] if v > 1 or pp == 1 else ["1f1b", "1f1b", "gpipe", "zb-h1"]
    found = {
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "expert_tp": draw.choice([0, *folds]),
        "microbatch": draw.choice((1, 2, 4)),
        "interleave": v,
        "microbatches": pp * draw.randint(1, 4) if v > 1 else draw.randint(1, 12),
        "zero": draw.choice(range(4)) if dp * cp > 1 else 0,
        "recompute": draw.choice(["none", "full"] + ["selective"] * (not flash)),
        "sequence_parallel": cut,
        "flash_attention": flash,
        "schedule": draw.choice(names),
    }
    usual = td.Layout()
    return {name: value for name, value in found.items() if value != getattr(usual, name)}


def drawn_recipe(draw: Random) -> Any:
    kind = draw.random()
    if kind < 0.7:
        return draw.choice(RECIPES)
    if kind < 0.8:
        adapters = {"rank": draw.choice((4, 8, 16, 64)), "base": draw.choice(("lora", "qlora"))}
        return {"lora": adapters}
    states = draw.choice((None, None, ["momentum", "variance"], ["master weights"]))
    told = {
        "recipe": draw.choice(("mixed-adam-16", "mixed-adam-18")),
        "to": draw.choice(("cpu", "nvme")),
    }
    return {"offload": told | ({"states": states} if states else {})}


def drawn_case(draw: Random) -> dict[str, Any]:
    """A case that `fits` takes."""
    while True:
        given = {"model": drawn_model(draw), "recipe": drawn_recipe(draw)}
        model = model_of(given["model"])
        given["layout"] = drawn_layout(draw, model)
        devices = layout_of(given["layout"]).devices
        given["cluster"] = f"{devices * draw.choice((1, 1, 1, 2))}x{draw.choice(CARDS)}"
        most = model.learned_pos or 4096
        given["sequence"] = draw.choice([s for s in (512, 1024, 2048, 4096) if s <= most])
        given["framework"] = draw.choice(("", "", "", draw.choice(FRAMEWORKS)))
        try:
            case, named = case_of(given)
            td.fits(*case, **named)
        except ValueError:
            continue
        return given


def cases(count: int, seed: int) -> dict[str, Any]:
    draw = Random(seed)
    found = [drawn_case(draw) for _ in range(count)]
    return {
        f"{n} {g['model'] if isinstance(g['model'], str) else 'drawn'}": g
        for n, g in enumerate(found)
    }


# -- memory and verdicts ---------------------------------------------------------------------------


def ledger(given: dict[str, Any]) -> Any:
    """Bytes by stage; of the fullest stage each row, with a digest of its formula's text."""
    case, named = case_of(given)
    fit = td.fits(*case, **named)
    stages = list(fit.memory.per_stage)
    rows = [row for row in fit.memory.ledger.rows if row.place == stages.index(max(stages))]
    found = {
        "verdict": fit.verdict,
        "band": list(fit.band),
        "per_stage": stages if len(stages) <= 4 else [max(stages), digest(stages)],
        "rows": {},
        "offloaded": {
            k: max(v) if isinstance(v, (list, tuple)) else v
            for k, v in fit.memory.to_dict()["offloaded"].items()
        },
        "formulas": digest([[row.tensor, row.moment, row.formula] for row in rows]),
        "every": digest([[r.place, r.tensor, r.moment, r.bytes] for r in fit.memory.ledger.rows]),
    }
    for row in rows:
        moments = found["rows"].setdefault(row.tensor, {})
        moments[row.moment] = moments.get(row.moment, 0) + row.bytes
    # a class that is the same at every moment of a step is written once
    found["rows"] = {
        tensor: next(iter(at.values())) if len({*at.values()}) == 1 else at
        for tensor, at in found["rows"].items()
    }
    return found


def formulas() -> dict[str, Any]:
    """Cases of the walkthroughs and a few beside them, whose texts are kept whole."""
    cut = {"tp": 8, "pp": 10, "recompute": "full"}
    all_axes = {"dp": 2, "tp": 4, "pp": 2, "zero": 1, "microbatches": 8, "sequence_parallel": True}
    chunks = {"pp": 4, "interleave": 2, "microbatches": 8, "flash_attention": True}
    ring = {"cp": 4, "tp": 2, "recompute": "selective"}
    qlora = {"lora": {"rank": 16, "base": "qlora"}}
    away = {"offload": {"recipe": "mixed-adam-16", "to": "cpu"}}
    adam = "mixed-adam-16"
    rows = {
        "200 B in one place": ("gpt-200b", {}, adam),
        "200 B, 80 copies": ("gpt-200b", {"dp": 80}, adam),
        "200 B, ZeRO-3": ("gpt-200b", {"dp": 160, "zero": 3, "recompute": "full"}, adam),
        "200 B, tp and pp": ("gpt-200b", cut, adam),
        "7 B, all": ("llama-2-7b", all_axes, adam),
        "7 B, interleaved": ("llama-2-7b", chunks, adam),
        "mixture": ("mixtral-8x7b", {"dp": 8, "ep": 8, "zero": 2}, adam),
        "latent": ("deepseek-v2-lite", {"dp": 4, "ep": 4, "pp": 3, "microbatches": 6}, adam),
        "cp": ("llama-3.1-8b", ring, adam),
        "lora": ("llama-2-7b", {}, "lora"),
        "qlora": ("llama-2-7b", {"dp": 2, "zero": 3}, qlora),
        "offloaded": ("llama-2-13b", {"dp": 8, "zero": 2}, away),
        "served": ("llama-3.1-8b", {"tp": 2}, "fp16-weights"),
        "torchtitan": ("llama-3.1-8b", {"dp": 8, "zero": 3}, "fsdp-adam"),
        "gpt2": ("gpt2", {"dp": 2}, "fp32-adam"),
    }
    return {
        name: {"model": model, "layout": layout, "recipe": recipe, "cluster": "160xA100-80GB",
               "sequence": 1024 if model == "gpt2" else 2048}
        for name, (model, layout, recipe) in rows.items()
    }  # fmt: skip


def formula(given: dict[str, Any]) -> Any:
    """ "tensor, moment" -> [bytes, text] of the first stage."""
    (model, layout, _, recipe, sequence), _ = case_of(given)
    rows = td.estimate_memory(model, layout, recipe, sequence).ledger.rows
    return {
        f"{row.tensor}, {row.moment}": [row.bytes, row.formula] for row in rows if row.place == 0
    }


def fix(given: dict[str, Any]) -> Any:
    """The layout that is said to fit, its devices and how many are missing."""
    case, named = case_of(given)
    fit = td.fits(*case, **named)
    found = fit.smallest_fix
    if found is None:
        return {"verdict": fit.verdict, "fix": None}
    return {
        "verdict": fit.verdict,
        "fix": words(found.layout),
        "changed": sorted(found.changed),
        "devices": found.devices,
        "missing": found.missing,
    }


def hard(first: int, last: int) -> dict[str, Any]:
    """Cases that do not fit as they are."""
    found = {}
    for key, given in cases(last, 12).items():
        case, named = case_of(given)
        if int(key.split()[0]) >= first and td.fits(*case, **named).verdict != "fits":
            found[key] = given
    return found


def borders() -> dict[str, Any]:
    """A layout by each framework, and its overheads at several numbers of devices and stages."""
    usual = {"cluster": "64xH100", "sequence": 2048, "recipe": "mixed-adam-16"}
    usual |= {"model": "llama-3.1-8b", "framework": ""}
    found = {
        name or "nobody": usual | {"layout": {"dp": 2, "tp": 2}, "framework": name}
        for name in ("", *FRAMEWORKS)
    }
    layouts: tuple[dict[str, int], ...] = (
        {}, {"dp": 8}, {"dp": 8, "zero": 1}, {"dp": 8, "zero": 2}, {"dp": 8, "zero": 3}, {"tp": 8},
        {"pp": 4, "microbatches": 4}, {"dp": 2, "tp": 4, "pp": 4, "microbatches": 8}, {"cp": 4},
        {"dp": 4, "ep": 4},
    )  # fmt: skip
    for layout in layouts:
        key = " ".join(f"{k}={v}" for k, v in layout.items()) or "one device"
        model = "mixtral-8x7b" if "ep" in layout else usual["model"]
        found[key] = usual | {"layout": layout, "model": model}
    return found


def border(given: dict[str, Any]) -> Any:
    """The least bytes of a device at which the layout is tight, and at which it fits."""
    (model, layout, cluster, recipe, sequence), named = case_of(given)

    def verdict(capacity: int) -> str:
        small = replace(cluster, device=replace(cluster.device, memory_bytes=capacity))
        return td.fits(model, layout, small, recipe, sequence, **named).verdict

    def least(good: tuple[str, ...]) -> int:
        low, high = 10**6, 10**13
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if verdict(middle) in good else (middle, high)
        return high

    peak = td.fits(model, layout, cluster, recipe, sequence, **named).memory.peak
    return {"peak": peak, "tight": least(("tight", "fits")), "fits": least(("fits",))}


SETS = (
    GoldenSet("ledgers", ledger, lambda: cases(500, 11)),
    GoldenSet("formula_texts", formula, formulas),
    GoldenSet("borders", border, borders),
    GoldenSet("fixes", fix, lambda: hard(0, 60)),
    GoldenSet("fixes_long", fix, lambda: hard(60, 500), "slow"),
)
