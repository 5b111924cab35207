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

__all__ = ["ROWS", "ours"]

Case = dict[str, Any]
ROWS: list[Case] = shipped_json("published", "exact.json")


def ours(row: Case) -> float:
    """Our number in the place of a row's."""
    model = model_of(row["model"]) if "model" in row else None
    number = OURS[row["what"]](row, model)
    return number / row["in"] if "in" in row else number


def _states(row: Case, model: Any) -> float:
    count = model.parameters if model else row["parameters"]
    return sum(state_bytes(count, row["recipe"], row.get("zero", 0), row.get("dp", 1)).values())


def _matrices(row: Case, model: Any) -> float:
    """States of the matrices of the first stage."""
    split = Layout(tp=row["tp"], pp=row["pp"])
    matrices = sum(w.count(split.tp) for w in model.layer if w.kind == "matrix")
    each = load_recipe(row["recipe"]).bytes_per_parameter
    return float(matrices * split.stage_layers(0, model.layers) * each)


def _held(row: Case, model: Any, moment: str, tensor: str) -> float:
    """Bytes of a class on the first stage, whatever the recipe; or percent of another layout's."""
    held = []
    for layout in filter(row.__contains__, ("layout", "percent of")):
        run = model, Layout(**row[layout]), "mixed-adam-18", row["sequence"]
        held.append(estimate_memory(*run).ledger.by_tensor(0, moment)[tensor])
    return 100 * held[0] / held[1] if held[1:] else held[0]


def _layer(row: Case, model: Any, **how: Any) -> int:
    """Bytes of the activations of a layer."""
    return layer_bytes(model, Layout(**row.get("layout", {}), **how), row["sequence"])


def _core(row: Case, model: Any) -> int:
    """Bytes that are recomputed if attention's core is."""
    return _layer(row, model) - _layer(row, model, recompute="selective")


OURS: dict[str, Callable[[Case, Any], float]] = {
    "parameters": lambda row, model: model.parameters,
    "active_parameters": lambda row, model: model.active_parameters,
    "less parameters": lambda row, model: row["of"] - model.parameters,
    "without embeddings": lambda row, model: model.parameters - 2 * model.vocab * model.hidden,
    "embedding": lambda row, model: model.embedding[0].count(),
    "a layer": lambda row, model: model.item_parameters[1],
    "states": _states,
    "matrices": _matrices,
    "usable MiB": lambda row, model: load_cluster(f"1x{row['device']}").device.memory_mib or 0,
    "first stage": lambda row, model: _held(row, model, "forward", "activations"),
    "checkpoints": lambda row, model: _held(row, model, "backward", "activations"),
    "logits": lambda row, model: _held(row, model, "forward", "logits"),
    "a layer's bytes": _layer,
    "core": lambda row, model: _core(row, model) / (row["sequence"] * model.hidden),
    "saved": lambda row, model: 100 * _core(row, model) / _layer(row, model),
}
"""What a row asks for -> how it is worked out."""
