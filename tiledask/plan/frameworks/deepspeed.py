"""DeepSpeed's JSON both ways: ZeRO, batches, precision and AutoTP; the rest is code there."""

import json
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.job import Imported, Job, Read, Settings, fitting_recipe
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model

__all__ = ["TABLE", "read", "write"]

TABLE = shipped_json("frameworks", "deepspeed.json")
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def write(job: Job) -> str:
    """The JSON, with an Adam whose rates are to be set."""
    zero = job.layout.zero
    stages = {"deepspeed-bf16-adam": (1,), "mixed-adam-20": (2, 3)}
    other = zero not in stages.get(job.recipe.name, (zero,))
    facts = job.facts({"other_stage": other})
    flat = job.settings("batch", facts) | {"zero_optimization.stage": zero}
    flat |= job.of_recipe | job.settings("slices", facts)
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        table, _, key = name.rpartition(".")
        (nested.setdefault(table, {}) if table else nested)[key] = value
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
    batch, size, steps = (found.whole(name, 0) for name in BATCH)
    if batch and size and steps:
        dp = max(1, batch // (size * steps))
    else:
        dp = found.copies(tp, f"give devices=, or {', '.join(BATCH)}, all three")
    size = size or (batch // (dp * steps) if batch and steps else 0)
    if not size:
        found.assumed.append(f"no {BATCH[1]}: 1 sequence assumed")
    size = size or 1
    steps = found.microbatches(batch, dp, size) if batch else steps or 1
    stage = found.whole("zero_optimization.stage", 0)
    recipe = _recipe(found)
    if recipe == "mixed-adam-20" and stage < 2:
        recipe = "deepspeed-bf16-adam"
    usual = model.usual_sequence
    found.assumed.append(
        f"the JSON has no sequence: {usual} tokens assumed, and attention keeps scores"
    )
    layout = Layout(dp=dp, tp=tp, microbatch=size, microbatches=steps, zero=stage)
    return found.imported(model, layout, recipe, usual, "optimizer.type")


def _recipe(found: Read) -> str:
    recipes: dict[str, Settings] = TABLE["recipes"]
    settings = {key: found.get(key) for each in recipes.values() for key in each}
    dtype = settings["data_types.grad_accum_dtype"]
    settings["data_types.grad_accum_dtype"] = {"float32": "fp32"}.get(str(dtype), dtype)
    halves = "bf16.enabled", "fp16.enabled"
    if not any(settings[half] for half in halves):
        if "auto" in map(found.settings.get, halves):
            settings["bf16.enabled"] = True
            found.assumed.append('bf16, where "auto" leaves it to the trainer')
        else:
            found.assumed.append("neither bf16 nor fp16 is enabled: everything in fp32")
    return fitting_recipe(recipes.items(), settings)
