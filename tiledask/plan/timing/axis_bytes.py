"""The bytes that each axis of a layout moves in a training step, of the device that sends most.

tp  sums of the activations over the slices of a layer      pp  activations to the next stage
cp  keys and values round the ring                          ep  tokens to their experts and back
dp  gradients, and the weights that ZeRO gathers
"""

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

    A sum over n devices sends 2 (n-1)/n of its bytes from each, a gather half of that
    (`tiledask.plan.collectives.cost`). They are those that `td.training_program` counts, but that a
    forward pass done again is done whole, a table that is embedding and head of one stage moves
    once for both, and gradients of weights that all slices of a cut sequence have are left out.
    A stage whose tp slices have whole activations sends them from each, or gathers again what it
    sent in parts.

    >>> from tiledask.plan.inputs.load import load_model
    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> axis_bytes(load_model("gpt2"), Layout(dp=2, pp=2, microbatches=4),
    ...            load_recipe("mixed-adam-16"), 1024)["pp"] == 4 * 1024 * 768 * 2 + 50257 * 768 * 2
    True
    """
    stages = [_of_stage(model, layout, recipe, sequence, stage) for stage in range(layout.pp)]
    return {
        name: max(round(stage[name]) for stage in stages)
        for name in AXES
        if getattr(layout, name) > 1
    }


def _of_stage(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, stage: int
) -> dict[str, float]:
    """Those of a device of ``stage``."""
    every = np.array(chunk_items(model, layout))
    chunks = layout.stage_chunks(stage)
    here = every[list(chunks)]
    experts = 1 if model.experts else 0
    dense, mixtures = int(here[:, 0].sum()), int(here[:, 1].sum()) if experts else 0
    first, last = int(here[:, experts + 1].sum()), int(here[:, experts + 2].sum())
    half = 0.5 if layout.schedule in BOTH_WAYS else 1.0  # each copy of a stage has half of them
    times = half * layout.microbatches
    tokens = layout.microbatch * -(-sequence // layout.cp)
    stream = float(tokens * model.hidden * recipe.compute_bytes)
    passes = 2 + (layout.recompute == "full")  # forward, backward and forward again
    cut = layout.sequence_parallel and layout.tp > 1

    found = {"tp": _tensor(model, layout, stream, dense, mixtures, passes)}
    at_ends = (first + last) * factor("all_reduce", layout.tp) * stream
    losses = last * factor("all_reduce", layout.tp) * tokens * 3 * 4  # maximum, sum, its own logit
    found["tp"] = times * (found["tp"] + at_ends + losses)

    heads = -(-model.kv_heads // layout.tp) * (model.qk_dim + model.v_dim)
    ring = (layout.cp - 1) * tokens * heads * recipe.compute_bytes
    found["cp"] = times * (dense + mixtures) * (passes + 1) * ring  # backward, gradients go too

    own = stream / layout.tp if cut else stream
    away = factor("all_to_all", layout.ep) * model.imbalance * model.top_k * own
    found["ep"] = times * mixtures * 2 * passes * away

    ends = (0 in chunks) + (layout.last_chunk in chunks)
    found["pp"] = times * (2 * len(chunks) - ends) * own
    found["dp"], tied = _copies(model, layout, recipe, here.sum(axis=0), times)
    found["pp"] += tied if layout.pp > 1 else 0
    return found


def _tensor(
    model: Model, layout: Layout, stream: float, dense: int, mixtures: int, passes: int
) -> float:
    """Bytes of the sums of a micro-batch in the layers: attention's and the MLP's. A mixture's
    second are of the tokens that come to its experts, over the slices of each."""
    each = factor("all_reduce", layout.tp) * stream
    total = 2 * dense * each + mixtures * each
    if mixtures:
        if layout.sequence_parallel:
            shared = any(
                weight.name.startswith("shared")
                for _, _, weights in model.layer_kinds
                for weight in weights
            )
            come = model.imbalance * model.top_k * layout.expert_slices / layout.tp
            total += mixtures * shared * each
            total += mixtures * factor("all_reduce", layout.expert_slices) * come * stream
        else:
            total += mixtures * each
    return passes * total


def _copies(
    model: Model, layout: Layout, recipe: Recipe, items: np.ndarray, times: float
) -> tuple[float, float]:
    """Bytes of the stage with so many ``items`` between the copies of the model, and those of a
    tied table's gradients between the first stage and the last."""
    split = layout.tp, layout.ep, layout.expert_slices
    each = item_parameters(model, recipe, *split)
    names = ("dense", "expert", "dense_adapters", "expert_adapters")
    dense, expert, beside, of_experts = (
        sum(int(many) * getattr(one, name) for many, one in zip(items, each, strict=True))
        for name in names
    )
    own = 1 if recipe.holds("unreduced gradients") else times
    of_gradients, of_weights = map(float, zero_passes(layout.zero, own))
    if layout.zero == 3 and recipe.holds("gathered weights"):
        of_weights = of_weights / 2  # kept from the forward pass on
    width = next((s.bytes for s in recipe.states if s.tensor == "gradients"), 0)
    trained = (dense, expert) if recipe.gradient_bytes else (beside, of_experts)
    if not recipe.gradient_bytes and layout.zero < 3:
        of_weights = 0.0  # frozen
    groups = layout.dp * layout.cp, layout.expert_copies
    if layout.zero == 3 and not (
        model.tied and layout.pp == 1
    ):  # a look-up's gradient needs no table: not gathered for the backward pass
        dense -= int(items[-3]) * each[-3].dense * (1 - own / of_weights)
    total = 0.0
    for copies, held, learned in zip(groups, (dense, expert), trained, strict=True):
        ring = factor("all_gather", copies)
        total += ring * of_gradients * learned * width
        total += ring * of_weights * held * recipe.gathered_bytes
    tables = each[-1].dense if model.tied and (items[-3] or items[-2]) else 0
    shard = groups[0] if layout.zero >= 2 else 1
    return total, factor("all_reduce", 2) * tables * recipe.gradient_bytes / shard
