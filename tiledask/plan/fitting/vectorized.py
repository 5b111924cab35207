"""Peaks of many layouts at once: layouts as columns of numbers, and the ledger's arithmetic.

layouts x 1  ->  combinations of (tp, cp, ...) that occur, each costed once  ->  layouts x 1

What depends on few fields (a layer's tensors on tp, cp, ...) is costed by the ledger's own
functions, once for each combination that occurs; the rest is arithmetic over columns.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import chain, permutations, zip_longest
from math import gcd
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.arrays import Array, Columns, combinations
from tiledask.plan.fitting.activations import layer_costs, stages_in_flight
from tiledask.plan.fitting.terms import Terms, fullest
from tiledask.plan.inputs.layout import ITEMS, Layout, Numbers, expert_slices
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import Item, check_run, item_parameters, tokens_of

__all__ = ["ORDERS", "peak_bytes"]

ORDERS = ("naive", "gpipe", "1f1b")
"""Schedules whose stages hold the more, the earlier they are."""
LAYER = ("recompute", "tp", "cp", "sequence_parallel", "flash_attention")
PIPELINE = ("pp", "interleave", "schedule", "items")
"""Fields that a layer's bytes depend on, and what is in flight beside the micro-batches."""
COUNTED = {*vars(Numbers())} - {"recompute", "schedule", "items"}
"""Fields whose numbers are in a term's."""


def peak_bytes(
    model: Model, recipe: str | Recipe = "mixed-adam-16", sequence: int | None = None, **fields: Any
) -> Array:
    """Peak bytes on the fullest device of every layout, in the shape that the fields have together:
    ``estimate_memory(...).peak``, to the byte.

    ``fields`` are those of Numbers, each one value or an array, of layouts that Layout and the
    model allow, in the schedules of ORDERS.

    >>> from tiledask.plan.inputs.load import load_model
    >>> peak_bytes(load_model("gpt-200b"), tp=8, pp=10, dp=[1, 2, 4], zero=1, recompute="full")
    array([42897432576, 27320503296, 19532038656])
    """
    columns = np.broadcast_arrays(*vars(Numbers(**fields)).values())
    n = {name: each.ravel() for name, each in zip(vars(Numbers()), columns, strict=True)}
    if not np.isin(n["schedule"], ORDERS).all():
        raise ConfigError(f"schedule must be one of {ORDERS}, got {fields['schedule']!r}")
    most = np.zeros(n["dp"].size, np.int64)
    if most.size:
        most = _peaks(model, load_recipe(recipe), check_run(model, Layout(), sequence), n)
        # 1e9 bytes of activations a sequence would leave 64 bits
        if (most < 0).any() or (n["microbatch"] * 1.0 * n["microbatches"] > 2**33).any():
            raise ConfigError("sizes are too large to count in 64 bits; use Layout one by one")
    return most.reshape(columns[0].shape)


def _peaks(model: Model, recipe: Recipe, sequence: int, n: Columns) -> Array:
    # the ratios of the bytes kept of one layer of each kind, in the order that they occur
    kept: dict[tuple[int, ...], int] = {}

    def layer(**fields: Any) -> Iterable[int]:
        costs = layer_costs(model, layout := Layout(**fields), sequence, recipe)
        common = gcd(*(each for each, *_ in costs)) or 1
        at = kept.setdefault(tuple(each // common for each, *_ in costs), len(kept))
        return at, *tokens_of(layout, sequence), *chain(*costs)

    (ratio, *sizes), layer_of = _table({name: n[name] for name in LAYER}, layer)
    slices = {"tp": n["tp"], "ep": n["ep"], "expert_tp": expert_slices(Numbers(**n))}
    of = partial(item_parameters, model, recipe)
    parameters, items_of = _table(slices, lambda **each: chain(*of(**each)))
    # states of one chunk, or of layers of one kind, are told apart without costs
    kinds = len(model.layer_kinds)
    cost = ratio[layer_of] * ((n["interleave"] > 1) & (kinds > 1))
    held, held_of = _in_flight(model, n, cost, list(kept))
    times = np.where(n["schedule"] == "gpipe", n["microbatches"], 1)
    most, again = np.zeros(len(cost), np.int64), n["recompute"] != "none"
    # left out are stages that hold no more of anything than another of as many layers and heads, on
    # which hangs what is sent on; of equal ones all but the first
    layers_of, heads = held[:, :kinds].sum(axis=1), held[:, kinds + 1]
    no_fuller = np.zeros(layers_of.shape, np.bool_)
    for one, other in permutations(range(len(held)), 2):
        alike = (layers_of[one] == layers_of[other]) & (heads[one] == heads[other])
        within = alike & (held[one] <= held[other]).all(axis=0)
        no_fuller[one] |= within & ((other < one) | (held[one] < held[other]).any(axis=0))
    for stage, left_out in zip(held, no_fuller, strict=True):
        if not (at := np.flatnonzero(~left_out[held_of])).size:
            continue
        there = tuple(column[held_of[at]] for column in stage)
        here, alive = there[: kinds + 3], tuple(times[at] * each for each in there[kinds + 3 :])
        whole, cut, *costs = (n["microbatch"][at] * column[layer_of[at]] for column in sizes)
        many, some = iter([column[items_of[at]] for column in parameters]), iter(costs)
        each = zip(*[many] * 6, strict=True), zip(*[some] * 4, strict=True)
        items = tuple(Item(*own, *cost) for own, cost in zip_longest(*each, fillvalue=()))
        layouts = Numbers(**{name: n[name][at] for name in COUNTED})
        run = model, recipe, layouts, whole, cut, items, again[at] * 1
        most[at] = np.maximum(most[at], fullest(Terms(*run, here, alive)))
    return most


def _table(columns: Columns, function: Callable[..., Iterable[int]]) -> tuple[Array, Array]:
    """(``function`` of every combination of ``columns``; which of these each row has)."""
    first, which = combinations([*columns.values()])
    rows = zip(*(column[first].tolist() for column in columns.values()), strict=True)
    results = [tuple(function(**dict(zip(columns, row, strict=True)))) for row in rows]
    return np.array(results, np.int64).T, which


def _in_flight(
    model: Model, n: Columns, cost: Array, ratios: list[tuple[int, ...]]
) -> tuple[Array, Array]:
    """What is in flight on the stages that may be the fullest, as ``_table`` has it."""
    # the last stage, the first, those after it that may hold more of another kind, and the next,
    # where the embedding stands for a layer of the first
    stages = 1 + int(n["items"].any())
    others = [at for at, kind in enumerate(model.kind_of) if kind != model.kind_of[-1]]
    if others:
        layers = np.maximum(1, model.layers // (n["pp"] * n["interleave"]))
        covering = -(-(others[-1] + 1) // layers) + stages
        stages = int(np.minimum(covering, n["pp"]).max())
    # more micro-batches than fill the pipeline change nothing, but under GPipe all in proportion
    filled = np.where(n["schedule"] == "gpipe", 1, n["pp"])
    filled = np.where(n["interleave"] > 1, 4 * n["pp"], filled)
    columns = {name: n[name] for name in PIPELINE}
    columns |= {"m": np.minimum(n["microbatches"], filled), "cost": cost}

    held = partial(_held, model, stages)
    table, which = _table(columns, lambda cost, **pipe: chain(*held(ratios[cost], **pipe)))
    return table.reshape(1 + stages, 2 * len(model.layer_kinds) + 5, -1), which


@lru_cache(maxsize=2**12)
def _held(
    model: Model, stages: int, cost: tuple[int, ...], items: bool, m: int, **pipe: Any
) -> list[tuple[int, ...]]:
    layout = Layout(**pipe, microbatches=m, partition=ITEMS if items else None)
    places = [layout.pp - 1, *(min(stage, layout.pp - 1) for stage in range(stages))]
    return stages_in_flight(model, layout, places, cost)
