"""The fewest devices on which a model fits, every layout counted to the byte.

tp x pp x cp x ep x ZeRO x recompute x ...  ->  each with the smallest dp that fits  ->  the fewest
                                                (bisection, all layouts at once)
"""

from collections.abc import Iterable
from itertools import product
from math import gcd
from typing import Any, TypeVar

import numpy as np

from tiledask.plan.arrays import Array
from tiledask.plan.fitting.overhead import DeviceLimits, overhead_of
from tiledask.plan.fitting.vectorized import ORDERS, peaks
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import MOST_OF_ANY, RECOMPUTE, Layout, Numbers
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.units import divisors

T = TypeVar("T")

__all__ = ["CHUNKS", "changes", "context_degrees", "fewest_devices"]

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Chunks of layers on a stage that are tried."""
LARGEST_CP = 64
SHORTEST_PIECE = 4096
"""Tokens below which a sequence is not cut over devices."""
SOME = 64
"""Layouts, those with most room for states, that are looked at first."""
CHANGES = (
    *("zero", "microbatch", "recompute", "flash_attention", "sequence_parallel"),
    *("tp", "pp", "dp", "cp", "ep", "expert_tp", "interleave", "schedule", "partition"),
)
"""Fields of a layout in the order in which changes are named."""
FREE = tuple(name for name in CHANGES if name not in ("expert_tp", "schedule", "partition"))
"""Fields that ``fewest_devices`` may choose."""


def changes(before: Layout, after: Layout) -> tuple[str, ...]:
    """Names of the fields in which ``after`` differs; the number of micro-batches follows."""
    return tuple(n for n in CHANGES if getattr(before, n) != getattr(after, n))


def context_degrees(sequence: int) -> list[int]:
    """Powers of two that leave pieces of 4096 tokens or more."""
    most = min(LARGEST_CP, max(1, sequence // SHORTEST_PIECE))
    return [2**k for k in range(most.bit_length())]


def fewest_devices(
    model: Model,
    start: Layout,
    cluster: ClusterSpec,
    recipe: Recipe,
    sequence: int,
    overhead: int | None = None,
    free: tuple[str, ...] = FREE,
) -> Layout | None:
    """The Layout with the verdict "fits" on the fewest devices, however many ``cluster`` has; of
    several the one that differs from ``start`` in the fewest fields. None if there is none.

    Only the fields ``free`` differ from ``start``: tp divides a node, cp stays or leaves pieces of
    4096 tokens or more, and smaller micro-batches become more of them, so that a copy's work in a
    step stays. Layers are divided evenly; a schedule that ``peaks`` does not know becomes 1F1B.
    ``overhead``: bytes of every layout; None: each its own.

    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> from tiledask.plan.inputs.load import load_cluster, load_model
    >>> found = fewest_devices(load_model("llama-2-13b"), Layout(), load_cluster("8xA100-40GB"),
    ...                        load_recipe("mixed-adam-16"), 2048)
    >>> found.devices, 13.02 * 16 / 32.5 < 7
    (7, True)
    """
    if start.microbatch * start.microbatches > MOST_OF_ANY:
        return None  # one sequence at a time they are more micro-batches than a layout may have
    columns, step = _columns(model, start, cluster, recipe, sequence, free)
    unit = columns["tp"] * columns["pp"] * columns["cp"] * step
    room = DeviceLimits.of(cluster.device, recipe, overhead is None).sure

    def fits(copies: Any, at: Array) -> Any:
        """Bytes beyond the device's on layouts ``at`` in ``copies`` x ``step``; 0 or less fits."""
        n = {name: column[at] for name, column in columns.items()} | {"dp": copies * step[at]}
        own = overhead_of(Numbers(**n), recipe.framework).total if overhead is None else overhead
        return peaks(model, recipe, sequence, **n) + own - room

    # one copy gathers nothing and has a smaller budget, so it stands apart; of more than one, more
    # never hold more
    every = np.flatnonzero(unit <= MOST_OF_ANY)
    copies = np.zeros(len(unit), np.int64)
    copies[every] = fits(1, every) <= 0
    shards = columns["zero"] >= min((state.zero for state in recipe.states), default=4)
    rest = every[(copies[every] == 0) & shards[every] & ("dp" in free)]
    some = np.argsort(fits(MOST_OF_ANY // unit[rest], rest), kind="stable")[:SOME]
    limit = int(unit[copies > 0].min(initial=MOST_OF_ANY))  # devices of a layout that fits
    for at in (rest[some], rest):  # a few layouts first, so that the others need not be bisected
        at = at[(copies[at] == 0) & (limit // unit[at] > 1)]
        at = at[fits(limit // unit[at], at) <= 0]
        low, high = np.ones_like(at), limit // unit[at]
        while (open_ := high - low > 1).any():
            middle = (low + high) // 2
            ok = np.zeros_like(open_)
            ok[open_] = fits(middle[open_], at[open_]) <= 0
            low, high = np.where(ok | ~open_, low, middle), np.where(ok, middle, high)
        copies[at] = high
        limit = int((copies * unit)[copies > 0].min(initial=limit))
    devices = np.where(copies > 0, copies * unit, np.iinfo(np.int64).max)
    found = [
        Layout(dp=int(copies[n] * step[n]), **{k: v[n].item() for k, v in columns.items()})
        for n in np.flatnonzero((devices == limit) & (copies > 0))
    ]
    return min(found, key=lambda layout: len(changes(start, layout)), default=None)


def _columns(
    model: Model,
    start: Layout,
    cluster: ClusterSpec,
    recipe: Recipe,
    sequence: int,
    free: tuple[str, ...],
) -> tuple[dict[str, Array], Array]:
    """Layouts without their dp, by column, and the numbers that each dp is a multiple of."""

    def choices(name: str, every: Iterable[T]) -> list[T]:
        """``start``'s value, which comes first, and the others if ``name`` is free."""
        now = getattr(start, name)
        return [now, *(v for v in every if v != now)] if name in free else [now]

    tps = divisors(cluster.devices_per_node) if "tp" in free else [start.tp]
    eps = choices("ep", divisors(model.experts)) if model.experts else [1]
    schedule = start.schedule if start.schedule in ORDERS else "1f1b"
    size = 1 if "microbatch" in free else start.microbatch
    count = start.microbatch * start.microbatches // size
    # chunks even out which stages have the dense layers of a mixture, and never save otherwise
    chunks = choices("interleave", CHUNKS if model.experts and model.dense_layers else (1,))
    own = start.interleave if start.schedule == "1f1b" and "interleave" not in free else None
    shapes = [
        (tp, pp, cp, ep, v)
        for tp, pp, cp, ep in product(
            (tp for tp in tps if model.allows_tp(tp)),
            choices("pp", range(1, model.layers + 1)),
            choices("cp", context_degrees(sequence)),
            eps,
        )
        for v in (chunks if schedule == "1f1b" and pp > 1 and count % pp == 0 else (1,))
        if pp * v <= model.layers and own in (None, v)
    ]
    rest = {
        "recompute": choices("recompute", RECOMPUTE if recipe.trains else ()),
        "flash_attention": choices("flash_attention", (True, False)),
        "sequence_parallel": choices("sequence_parallel", (True, False)),
        "zero": [3] if recipe.offloads_weights else choices("zero", range(4)),
    }
    chosen = np.array(list(product(*(range(len(each)) for each in rest.values()))))
    shape, choice = np.divmod(np.arange(len(shapes) * len(chosen)), len(chosen))
    names = ("tp", "pp", "cp", "ep", "interleave")
    n = dict(zip(names, np.array(shapes, np.int64).reshape(-1, 5)[shape].T, strict=True))
    for at, (name, values) in enumerate(rest.items()):
        n[name] = np.array(values)[chosen[choice, at]]
    # without a cut sequence, experts have tp slices
    slices = start.expert_tp + (start.expert_tp == 0) * n["tp"]
    whole = (n["tp"] == 1) | (n["tp"] == slices) | n["sequence_parallel"]
    same = {"microbatch": size, "microbatches": count, "schedule": schedule}
    same |= {"expert_tp": start.expert_tp}
    n |= {name: np.full(len(whole), value) for name, value in same.items()}
    step = n["ep"] * slices // np.gcd(n["ep"] * slices, n["tp"] * n["cp"])
    return {name: column[whole] for name, column in n.items()}, step[whole]
