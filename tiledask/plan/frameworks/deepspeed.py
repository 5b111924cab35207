"""DeepSpeed's JSON both ways: ZeRO, batches, precision and AutoTP; the rest is code there."""

import json
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.table import Imported, Read, Settings, flat
from tiledask.plan.inputs.model import Model

__all__ = ["TABLE", "read", "text"]

TABLE = shipped_json("frameworks", "deepspeed.json")
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def text(parts: list[Settings]) -> str:
    """The JSON, with an Adam whose rates are to be set."""
    nested: dict[str, Any] = {}
    for name, value in (item for part in parts for item in part.items()):
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
    found = Read("the JSON", dict(flat(nested)), devices, TABLE)
    halves = ("bf16.enabled", "fp16.enabled")
    auto = not any(map(found.get, halves)) and "auto" in map(found.settings.get, halves)
    if auto:
        found.settings["bf16.enabled"] = True
    usual = model.usual_sequence
    f = found.facts("layout", recipe=found.choice("recipe"), auto=auto, sequence=usual)
    f |= {"tp": max(1, f["tp"]), "pp": 1}
    batch, size, steps = f["batch"], f["microbatch"], f["microbatches"]
    if batch and size and steps:
        f["dp"] = max(1, batch // (size * steps))
    else:
        f["dp"] = found.copies(f["tp"], f"give devices=, or {', '.join(BATCH)}, all three")
    size = size or (batch // (f["dp"] * steps) if batch and steps else 0)
    if not size:
        found.assumed.append(f"no {BATCH[1]}: 1 sequence assumed, or --microbatch")
    f["microbatch"] = size or 1
    f["batch"] = batch or f["dp"] * f["microbatch"] * (steps or 1)
    return found.imported(model, f, (model.layers,), "optimizer.type")
