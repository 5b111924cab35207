"""Parameters on one device, item by item: a layer of each kind, the embedding, the head."""

from functools import lru_cache
from typing import Any, NamedTuple

from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.inputs.weights import Weight

__all__ = ["ItemParameters", "item_parameters"]


class ItemParameters(NamedTuple):
    """Parameters of an item on the fullest device of its stage; each number is one, or a column."""

    dense: Any
    """Those that every data-parallel device holds a copy of."""
    expert: Any
    """Those of experts, which are sharded over expert parallelism."""
    dense_adapters: Any
    expert_adapters: Any
    largest: Any
    """Parameters of its largest weight, of a single expert."""
    matrices: Any
    """Parameters of its matrices, of a single expert."""


def item_parameters(
    model: Model, recipe: Recipe, tp: int, ep: int, expert_tp: int
) -> tuple[ItemParameters, ...]:
    """Those of a dense layer, of a mixture in a model with experts, of the embedding, the head and
    the tied copy in it; of ``expert_tp`` slices of each expert."""
    dense = model.dense_layer if model.dense_layers or not model.experts else ()
    layers = [dense, model.mixture_layer] if model.experts else [dense]
    items = *layers, model.embedding, model.head, model.tied_copy
    return tuple(_item_parameters(weights, recipe, tp, ep, expert_tp) for weights in items)


@lru_cache(maxsize=16384)
def _item_parameters(
    weights: tuple[Weight, ...], recipe: Recipe, tp: int, ep: int, expert_tp: int
) -> ItemParameters:
    dense, expert, largest, matrices = [0, 0], [0, 0], 0, 0
    for w in weights:
        held, slices, found = -(-w.copies // ep), expert_tp, expert
        if w.copies == 1:
            held, slices, found = 1, tp, dense
        one = w.count(slices) // w.copies
        adapters = recipe.adapters.parameters((w,), slices) if recipe.adapters else 0
        found[0] += one * held
        found[1] += adapters // w.copies * held
        largest, matrices = max(largest, one), matrices + one * (w.inputs > 0)
    return ItemParameters(dense[0], expert[0], dense[1], expert[1], largest, matrices)
