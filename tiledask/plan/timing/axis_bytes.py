"""The bytes that each axis of a layout moves in a training step, of the device that sends most."""

import numpy as np

from tiledask.plan.collectives.cost import factor
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.inputs.run import chunk_items, item_parameters
from tiledask.plan.pipelines.schedules import BOTH_WAYS
from tiledask.plan.timing.collective_time import zero_passes

__all__ = ["AXES", "axis_bytes"]

AXES = {
    "tp": "sums of activations in every layer, forward and backward",
    "cp": "keys and values to the next piece of the sequence",
    "ep": "tokens to their experts and back",
    "pp": "activations and their gradients to the neighbouring stages",
    "dp": "gradients to the other copies, and weights that ZeRO gathers",
}
"""What each axis moves."""


def axis_bytes(model: Model, layout: Layout, recipe: Recipe, sequence: int) -> dict[str, int]:
    """Bytes that a device sends in a step along each axis of more than one device, on the stage
    that sends most; every device receives as many.

    They are those that `td.training_program` counts, but that a forward pass done again is done
    whole, a table that is embedding and head of one stage moves once for both, and gradients of
    weights that all slices of a cut sequence have are left out. A stage whose tp slices have whole
    activations sends them from each, or gathers again what it sent in parts.
    """
    stages = [_of_stage(model, layout, recipe, sequence, stage) for stage in range(layout.pp)]
    axes = [name for name in AXES if getattr(layout, name) > 1]
    return {name: max(round(stage[name]) for stage in stages) for name in axes}


def _of_stage(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, stage: int
) -> dict[str, float]:
    """Those of a device of ``stage``."""
    chunks = layout.stage_chunks(stage)
    items = np.array(chunk_items(model, layout))[list(chunks)].sum(axis=0)
    *layers, first, last, _ = items.tolist()
    dense, mixtures = layers if model.experts else (*layers, 0)
    times = layout.microbatches * (0.5 if layout.schedule in BOTH_WAYS else 1.0)  # each copy's
    tokens = layout.microbatch * -(-sequence // layout.cp)
    stream = float(tokens * model.hidden * recipe.compute_bytes)
    passes = 2 + (layout.recompute == "full")  # forward, backward and forward again
    own = stream / layout.tp if layout.sequence_parallel and layout.tp > 1 else stream

    sum_of = factor("all_reduce", layout.tp)
    sums, routed = 2 * (dense + mixtures) * sum_of * stream, model.imbalance * model.top_k
    if mixtures and layout.sequence_parallel:  # of the tokens that come to the experts
        shared = any(w.name.startswith("shared") for *_, ws in model.layer_kinds for w in ws)
        came = routed * layout.expert_slices / layout.tp * stream
        sums += mixtures * (shared - 1) * sum_of * stream
        sums += mixtures * factor("all_reduce", layout.expert_slices) * came
    losses = last * sum_of * tokens * 3 * 4  # maximum, sum, its own logit

    heads = -(-model.kv_heads // layout.tp) * (model.qk_dim + model.v_dim)
    ring = (layout.cp - 1) * tokens * heads * recipe.compute_bytes
    away = factor("all_to_all", layout.ep) * routed * own
    ends = (0 in chunks) + (layout.last_chunk in chunks)
    copies, tied = _copies(model, layout, recipe, items, times)
    return {
        "tp": times * (passes * sums + (first + last) * sum_of * stream + losses),
        "cp": times * (dense + mixtures) * (passes + 1) * ring,  # backward, gradients go too
        "ep": times * mixtures * 2 * passes * away,
        "pp": times * (2 * len(chunks) - ends) * own + tied * (layout.pp > 1),
        "dp": copies,
    }


def _copies(
    model: Model, layout: Layout, recipe: Recipe, items: np.ndarray, times: float
) -> tuple[float, float]:
    """Bytes of the stage with so many ``items`` between the copies of the model, and those of a
    tied table's gradients between the first stage and the last."""
    each = item_parameters(model, recipe, layout.tp, layout.ep, layout.expert_slices)
    dense, expert, beside, of_experts, *_ = (items @ np.array(each)).tolist()
    own = 1 if recipe.holds("unreduced gradients") else times
    of_gradients, of_weights = map(float, zero_passes(layout.zero, own))
    trained = (dense, expert)
    if not recipe.gradient_bytes:
        trained = (beside, of_experts)
        of_weights *= layout.zero == 3  # frozen
    if layout.zero == 3 and recipe.holds("gathered weights"):
        of_weights /= 2  # kept from the forward pass on
    if layout.zero == 3 and not (model.tied and layout.pp == 1):
        # a look-up's gradient needs no table: not gathered for the backward pass
        dense -= int(items[-3]) * each[-3].dense * (1 - own / of_weights)
    width = next((s.bytes for s in recipe.states if s.tensor == "gradients"), 0)
    total, groups = 0.0, (layout.dp * layout.cp, layout.expert_copies)
    for copies, held, learned in zip(groups, (dense, expert), trained, strict=True):
        moved = of_gradients * learned * width + of_weights * held * recipe.gathered_bytes
        total += factor("all_gather", copies) * moved
    tables = each[-1].dense if model.tied and (items[-3] or items[-2]) else 0
    shard = groups[0] if layout.zero >= 2 else 1
    return total, factor("all_reduce", 2) * tables * recipe.gradient_bytes / shard
