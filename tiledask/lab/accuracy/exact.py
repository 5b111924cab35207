"""Numbers that papers print and arithmetic reproduces: parameters, states, activations.

a row of data/published/exact.json: what is asked of which model, layout, recipe  ->  our number
"""

from collections.abc import Callable
from typing import Any

from tiledask.lab.accuracy.runs import model_of
from tiledask.plan.data import shipped_json
from tiledask.plan.fitting.activations import layer_bytes
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_cluster
from tiledask.plan.inputs.recipes import load_recipe, state_bytes

__all__ = ["EXACT", "ROWS", "ours"]

Row = dict[str, Any]
ROWS: list[Row] = shipped_json("published", "exact.json")
EXACT = tuple(dict.fromkeys(row["group"] for row in ROWS))
"""The groups of the rows."""
KORTHIKANTI = "mixed-adam-18"


def ours(row: Row) -> float:
    """Our number in the place of a row's."""
    model = model_of(row["model"]) if "model" in row else None
    number = OURS[row["what"]](row, model)
    return number / row["in"] if "in" in row else number


def _states(row: Row, model: Any) -> float:
    count = model.parameters if model else row["parameters"]
    return sum(state_bytes(count, row["recipe"], row.get("zero", 0), row.get("dp", 1)).values())


def _matrices(row: Row, model: Any) -> float:
    """States of the matrices of the first stage."""
    split = Layout(tp=row["tp"], pp=row["pp"])
    matrices = sum(w.count(split.tp) for w in model.layer if w.kind == "matrix")
    each = load_recipe(row["recipe"]).bytes_per_parameter
    return float(matrices * split.stage_layers(0, model.layers) * each)


def _held(row: Row, model: Any, moment: str, tensor: str, recipe: str = "mixed-adam-16") -> float:
    """Bytes of a class on the first stage; perhaps in percent of another layout's."""
    ledgers = [
        estimate_memory(model, Layout(**row[which]), recipe, row["sequence"]).ledger
        for which in ("layout", "percent of")
        if which in row
    ]
    held, *whole = (ledger.by_tensor(0, moment)[tensor] for ledger in ledgers)
    return 100 * held / whole[0] if whole else held


def _layer(row: Row, model: Any, **how: Any) -> int:
    """Bytes of the activations of a layer."""
    return layer_bytes(model, Layout(**row.get("layout", {}), **how), row["sequence"])


def _deepspeed(row: Row, host: bool) -> int:
    """As DeepSpeed's own estimator has ZeRO-3 (its docs/code-docs/source/memory.rst): states, the
    largest layer gathered, and half as much again on the host. ``away``: 1 the optimizer is
    offloaded, 2 the weights too. It counts neither activations nor overhead: an issue (#4527)
    reports 0.49 GiB estimated and 14.3 measured."""
    states, gathered, away = row["parameters"], 4 * row["largest_layer"], row["away"]
    gpus = row["gpus"] * row["nodes"]
    if host:
        kept = states * ((18 if away > 1 else 16) / row["nodes"])
        return int((kept if away else gathered * row["gpus"]) * 1.5)
    return int(gathered + (18 * states // gpus, 2 * states // gpus, 0)[away])


OURS: dict[str, Callable[[Row, Any], float]] = {
    "parameters": lambda row, model: model.parameters,
    "active_parameters": lambda row, model: model.active_parameters,
    "less parameters": lambda row, model: row["of"] - model.parameters,
    "without embeddings": lambda row, model: model.parameters - 2 * model.vocab * model.hidden,
    "embedding": lambda row, model: model.embedding[0].count(),
    "a layer": lambda row, model: model.item_parameters[1],
    "states": _states,
    "matrices": _matrices,
    "DeepSpeed's device": lambda row, model: _deepspeed(row, host=False),
    "DeepSpeed's host": lambda row, model: _deepspeed(row, host=True),
    "usable MiB": lambda row, model: load_cluster(f"1x{row['device']}").device.memory_mib or 0,
    "first stage": lambda row, model: _held(row, model, "forward", "activations", KORTHIKANTI),
    "checkpoints": lambda row, model: _held(row, model, "backward", "activations"),
    "logits": lambda row, model: _held(row, model, "forward", "logits"),
    "a layer's bytes": _layer,
    "core": lambda row, model: (
        (_layer(row, model) - _layer(row, model, recompute="selective"))
        / (row["sequence"] * model.hidden)
    ),
    "saved": lambda row, model: (
        100 * (1 - _layer(row, model, recompute="selective") / _layer(row, model))
    ),
}
"""What a row asks for -> how it is worked out."""
