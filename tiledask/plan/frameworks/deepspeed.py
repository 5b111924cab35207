"""DeepSpeed's JSON both ways: ZeRO, batches, precision and AutoTP; the rest is code there."""

import json
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.job import Imported, Job, Read, Settings, fitting_recipe
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model

__all__ = ["read", "write"]

TABLE = shipped_json("frameworks", "deepspeed.json")
RECIPES: dict[str, Settings] = TABLE["recipes"]


def write(job: Job) -> str:
    """The JSON, with an Adam whose rates are to be set."""
    layout, lost = job.layout, job.lost
    flat = job.of_recipe(RECIPES, "mixed-adam-16")
    nested: dict[str, Any] = {
        "train_batch_size": job.batch,
        "train_micro_batch_size_per_gpu": layout.microbatch,
        "gradient_accumulation_steps": layout.microbatches,
        "zero_optimization": {"stage": layout.zero},
    }
    for name, value in flat.items():
        table, _, key = name.partition(".")
        nested.setdefault(table, {})[key] = value
    if layout.tp > 1:
        nested["tensor_parallel"] = {"autotp_size": layout.tp}
    stages = {"deepspeed-bf16-adam": (1,), "mixed-adam-20": (2, 3)}
    if layout.zero not in stages.get(job.recipe.name, (layout.zero,)):
        words = "BF16_Optimizer is what fp32 accumulation with ZeRO 1 means, and nothing else does"
        lost["recipe"] = words
    for field, words in TABLE["lost"].items():
        if getattr(layout, field) != getattr(Layout(), field):
            lost[field] = words.format(layout)
    return json.dumps(nested, indent=2) + "\n"


def read(text: str, model: Model | None, devices: int | None) -> Imported:
    """The layout and recipe of a DeepSpeed JSON; the model is given beside it."""
    try:
        nested = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the JSON cannot be read: {error}") from None
    if not isinstance(nested, dict) or not nested:
        raise ConfigError(f"a DeepSpeed JSON is an object, got {short(nested)}")
    if model is None:
        raise ConfigError("a DeepSpeed JSON does not say the model; give it beside the file")
    flat: Settings = {}
    for name, value in nested.items():
        name = "bf16" if name == "bfloat16" else name
        inner = value if isinstance(value, dict) else None
        flat |= {name: value} if inner is None else {f"{name}.{k}": v for k, v in inner.items()}
    found = Read("the JSON", flat, devices, TABLE)
    tp = found.whole("tensor_parallel.autotp_size", 1) or 1
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    batch, size, steps = (found.whole(name, 0) for name in names)
    if batch and size and steps:
        dp = max(1, batch // (size * steps))
    else:
        dp = found.copies(tp, f"give devices=, or {', '.join(names)}, all three")
    size = size or (batch // (dp * steps) if batch and steps else 0)
    if not size:
        found.assumed.append(f"no {names[1]}: 1 sequence assumed")
    size = size or 1
    steps = found.microbatches(batch, dp, size) if batch else steps or 1
    stage = found.whole("zero_optimization.stage", 0)
    settings = {k: found.get(k) for each in RECIPES.values() for k in each}
    dtype = settings["data_types.grad_accum_dtype"]
    settings["data_types.grad_accum_dtype"] = {"float32": "fp32"}.get(str(dtype), dtype)
    halves = [flat.get(f"{name}.enabled") for name in ("bf16", "fp16")]
    if not any(settings[f"{name}.enabled"] for name in ("bf16", "fp16")):
        if "auto" in halves:
            settings["bf16.enabled"] = True
            found.assumed.append('bf16, where "auto" leaves it to the trainer')
        else:
            found.assumed.append("neither bf16 nor fp16 is enabled: everything in fp32")
    recipe = fitting_recipe(tuple(RECIPES.items()), settings)
    if recipe == "mixed-adam-20" and stage < 2:
        recipe = "deepspeed-bf16-adam"
    usual = model.usual_sequence
    found.assumed.append(
        f"the JSON has no sequence: {usual} tokens assumed, and attention keeps scores"
    )
    assumed, uncounted = found.rest(recipe, "optimizer.type")
    layout = Layout(dp=dp, tp=tp, microbatch=size, microbatches=steps, zero=stage)
    return Imported(model, layout, recipe, usual, assumed, uncounted)
