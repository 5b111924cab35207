"""The time of a training step as plain formulas: one layout, or ten thousand at once.

total = m x (compute + recompute + tp + cp + ep + pp)  + bubble + dp + optimizer
        the slowest stage, each micro-batch            fill and drain, end of the step
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tiledask.plan.arrays import Array, Values, combinations, stacked
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Numbers, expert_copies, expert_slices, stage_layers
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_trains
from tiledask.plan.timing.calibration import Calibration, calibration_of
from tiledask.plan.timing.collective_time import all_gather, all_reduce, zero_passes
from tiledask.plan.timing.layer_time import PIECE, LayerTime, products

__all__ = ["PARTS", "held_weights", "reduction", "step_parts", "update"]

PARTS = (*PIECE, "dp", "bubble", "optimizer")
"""What the seconds of a step go to, on the stage that the others wait for."""
BUCKET, BUCKET_OF_COPY = 4e7, 1e6
"""Numbers in a bucket of gradients: at least, and for each copy (Megatron-Core's default)."""
LAYER = ("tp", "cp", "ep", "expert_tp", "microbatch", "sequence_parallel", "flash_attention",
         "recompute", "schedule")  # fmt: skip
"""The fields of a layout that a layer's time depends on."""


def held_weights(time: LayerTime, layers: Values) -> Array:
    """(dense, expert) weights on a device of a stage of ``layers`` layers and an embedding."""
    n, model = time.n, time.model
    tables: Any = sum(weight.count(n.tp) for weight in model.embedding)
    if not model.tied:
        tables = np.where((np.asarray(n.pp) == 1) | time.both_ways, 2 * tables, tables)
    dense: Any = 0.0
    experts: Any = 0.0
    for kind in model.layer_kinds:
        part, every = kind.many / model.layers, kind.weights
        routed = sum(w.count(expert_slices(n), n.ep) for w in every if w.copies > 1)
        dense = dense + part * sum(w.count(n.tp) for w in every if w.copies == 1)
        experts = experts + part * routed
    return stacked(layers * dense + tables, layers * experts)


def reduction(time: LayerTime, held: Array, layers: Values, work: Array) -> Values:
    """Seconds that the reduction of gradients (and ZeRO's weights) is waited for.

    ``held``: (dense, expert) weights of a device, in ``layers``. ``work``: seconds of one
    micro-batch; its backward pass can hide the reduction, its forward pass the gathering of
    weights, in 1 + (p-1)(v-1)/v passes: each other chunk is done p stages earlier.
    """
    n, recipe, known, waits = time.n, time.recipe, time.calibration, time.calibration.exposed
    zero, sharded = np.asarray(n.zero), np.asarray(n.zero) == 3
    kept = recipe.holds("unreduced gradients")  # summed once a step
    resharded = not recipe.holds("gathered weights")  # after the forward pass
    each = np.where((zero >= 2) & (not kept), n.microbatches, 1)
    trained = recipe.gradient_bytes > 0  # otherwise only small adapters are
    own = np.where(time.both_ways, 0.5, 1.0) * n.microbatches  # of each stage that is here
    own = np.where(kept, 1, own)
    of_gradients, of_weights = zero_passes(zero, own)
    # of the weights that ZeRO-3 gathers, those for the backward passes wait beside the sums
    again = np.where(np.asarray(n.recompute) == "full", own, 0)  # gathered for it, once more
    beside = np.where(sharded & resharded, of_weights / 2 + again, 0)
    before = np.where(sharded, of_weights / 2, trained * of_weights)
    # the model's copies sum up gradients, and gather weights: a call is a bucket, in ZeRO-3 a
    # layer or one of its matrices
    widths = np.array([[recipe.gradient_bytes], [recipe.gathered_bytes]]) / known.copies_share
    groups = (n.dp * n.cp, n.tp), (expert_copies(n), n.ep * expert_slices(n))
    matrices = len(products(time.model.layer)) if known.prefetch else 1
    seconds = np.zeros((2, 1))
    for mine, (size, apart) in zip(held, groups, strict=True):
        if mine.any():
            buckets = np.ceil(mine / np.maximum(BUCKET, BUCKET_OF_COPY * size))
            calls = np.where(sharded, matrices * layers, buckets)
            run = size, apart, time.cluster, known.own_adapter, calls
            seconds = seconds + (mine > 0) * all_gather(mine * widths, *run)
    gradients, weights = trained * seconds[0], seconds[1]
    part = 1 - np.where(sharded, waits["fsdp"], waits["dp"])
    # of the gathered weights those hidden behind others' work: of ZeRO-3 what is fetched ahead,
    # a layer, or one matrix or as many as the prefetch bucket holds
    ahead, fetched = part, known.prefetch
    if fetched:
        sizes = [1.0 * w.size * w.units * w.copies for w in time.model.layer]
        ahead = part * np.where(sharded, min(1.0, max(fetched, *sizes) / sum(sizes)), 1.0)
    summed = of_gradients * gradients + beside * weights
    hidden = part * of_gradients * gradients + ahead * beside * weights
    gathered = before * weights
    hiding = each * (1 + (n.pp - 1) * (n.interleave - 1) / n.interleave)
    summed = summed - np.minimum(hidden, hiding * work[1])
    waited: Values = summed + gathered - np.minimum(ahead * gathered, hiding * work[0])
    if trained and np.any(time.both_ways):
        # two devices that have the same stages sum up their gradients, all that each keeps
        shard = held[0] / (n.dp * n.cp) + held[1] / expert_copies(n)
        left = np.where(zero >= 2, shard, held.sum(0)) * recipe.gradient_bytes
        sums = all_reduce(left, 2, n.tp * n.dp * n.cp, time.cluster)
        waited = waited + time.both_ways * sums
    return waited


def update(time: LayerTime, held: Array) -> Values:
    """Seconds of the update, limited by memory: states read and written once, weights written,
    gradients read for their norm, their cast and the update, and set to zero."""
    n, recipe, zero = time.n, time.recipe, np.asarray(time.n.zero)
    shard = held[0] / (n.dp * n.cp) + held[1] / expert_copies(n)  # its own under ZeRO
    mine, reduced = (np.where(zero >= least, shard, held.sum(0)) for least in (1, 2))
    gradient = recipe.gradient_bytes  # 0: the weights are frozen, and adapters are small
    states = recipe.bytes_per_parameter - gradient - recipe.weight_bytes
    written = recipe.weight_bytes if gradient else 0
    moved = mine * (2 * states + written) + reduced * 4 * gradient
    seconds: Values = moved / time.rates.memory + time.calibration.step_seconds
    return seconds


def _once(n: Numbers, names: Sequence[str], work: Callable[[Numbers], Array]) -> Array:
    """``work`` of ``n``, done once for each combination of the fields ``names`` that occurs."""
    given = np.broadcast_arrays(*(getattr(n, name) for name in names))
    if given[0].size < 2:
        return work(n)
    columns = [column.ravel() for column in given]
    rows, which = combinations(columns)
    found = work(Numbers(**{name: each[rows] for name, each in zip(names, columns, strict=True)}))
    return np.broadcast_to(found, (*found.shape[:-1], len(rows)))[..., which]


def _pipeline(time: LayerTime) -> Array:
    """[layers of the fullest stage, its (dense, expert) weights on a device; of the slowest stage
    seconds of a micro-batch (forward, backward), of the bubble, of each PIECE in all]."""
    n, layers = time.n, time.model.layers
    layer = _once(n, LAYER, lambda few: replace(time, n=few).mean_layer())
    pieces, send = (layer, time.embedding(), time.head()), n.interleave * time.transfer()
    seconds, sent = [piece.sum((0, 1)) for piece in pieces], send.sum((0, 1))
    first, second, last = stage_layers(n, layers)
    single, zero = 1 * (np.asarray(n.pp) == 1), 0
    # layers, embeddings and heads of the stages that may be the slowest
    stages = [stacked(first, 1, single), stacked(last, single, 1), stacked(layers, 1, 1)]
    stages[2:2] = [stacked(second, zero, zero)] if np.any(n.items) else []
    slowest, *others, _ = stages
    longest, *totals, through = (
        sent + sum(n * each for n, each in zip(stage, seconds, strict=True)) for stage in stages
    )
    for other, total in zip(others, totals, strict=True):
        slower = total > longest
        slowest, longest = np.where(slower, other, slowest), np.where(slower, total, longest)
    work = sum(many * piece for many, piece in zip(slowest, pieces, strict=True)) + send
    fill = np.maximum(0.0, through + (n.pp - 1) * sent - longest)
    naive = np.asarray(n.schedule) == "naive"
    bubble = np.where(naive, n.microbatches, 1 / np.asarray(n.interleave)) * fill
    fullest = np.maximum(first, second)
    parts = n.microbatches * work.sum(1)
    return stacked(fullest, *held_weights(time, fullest), *work.sum(0), bubble, *parts)


def step_parts(
    model: Model,
    cluster: ClusterSpec,
    n: Numbers,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int = 2048,
    calibration: str | Calibration | None = None,
    framework: str | None = None,
) -> dict[str, Any]:
    """Seconds of each of PARTS of a step; arrays where ``n`` holds arrays.

    The slowest stage, the first (embedding), the next or the last (head), works through all
    micro-batches; before and after, it waits while one micro-batch passes the other stages: for p
    equal stages of v chunks, (p-1)/v of a micro-batch.

    >>> from tiledask.plan.inputs.load import load_cluster, load_model
    >>> n = Numbers(tp=8, pp=np.array([4, 8]), dp=np.array([16, 8]), microbatches=64)
    >>> parts = step_parts(load_model("llama-2-70b"), load_cluster("512xA100-80GB"), n)
    >>> [bool(one < other) for one, other in (sum(parts.values()), parts["bubble"])]
    [False, True]
    """
    recipe = load_recipe(recipe)
    check_trains(recipe, timed=True)
    known = calibration_of(cluster.device, recipe, calibration, framework, model.experts > 0)
    time = LayerTime(model, cluster, n, recipe, sequence, known)
    names = [field.name for field in fields(Numbers) if field.name != "zero"]
    found = _once(n, names, lambda few: _pipeline(replace(time, n=few)))
    fullest, held, work, bubble, parts = found[0], found[1:3], found[3:5], found[5], found[6:]
    waited = reduction(time, held, fullest, work)
    shape = np.broadcast_shapes(*map(np.shape, vars(n).values()))
    columns = known.scale * stacked(*parts, waited, bubble, update(time, held))
    return dict(zip(PARTS, columns.reshape(len(columns), *shape), strict=True))
