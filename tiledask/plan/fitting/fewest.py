"""The fewest devices on which a model fits, every layout counted to the byte.

tp x pp x cp x ep x ZeRO x recompute x ...  ->  each with the smallest dp that fits  ->  the fewest
                                                (bisection, all layouts at once)
"""

from collections.abc import Iterable
from itertools import product
from math import gcd
from typing import Any, TypeVar

import numpy as np

from tiledask.plan.fitting.overhead import DeviceLimits, overheads
from tiledask.plan.fitting.vectorized import ORDERS, peaks
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import MOST_OF_ANY, RECOMPUTE, Layout, Numbers
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.units import divisors

T = TypeVar("T")

__all__ = ["CHUNKS", "context_degrees", "fewest_devices"]

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
    """Devices of the fewest copies, of which all numbers are multiples."""
    possible = unit <= MOST_OF_ANY
    columns = {name: column[possible] for name, column in columns.items()}
    step, unit = step[possible], unit[possible]
    room = DeviceLimits.of(cluster.device, recipe, overhead is None).sure

    def held(copies: Any, at: np.ndarray) -> np.ndarray:
        """Bytes beyond the device's on layouts ``at`` in ``copies`` x ``step``; 0 or less fits."""
        n = {name: column[at] for name, column in columns.items()} | {"dp": copies * step[at]}
        total = overheads(Numbers(**n), recipe.framework) if overhead is None else overhead
        return peaks(model, recipe, sequence, **n) + total - room

    def fewest(at: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The fewest copies of layouts ``at``, that fit in ``high`` of them and not in one."""
        low = np.ones_like(high)
        while (open_ := high - low > 1).any():
            middle = (low + high)[open_] // 2
            ok = held(middle, at[open_]) <= 0
            high[open_] = np.where(ok, middle, high[open_])
            low[np.flatnonzero(open_)[~ok]] = middle[~ok]
        return high

    # one copy gathers nothing and has a smaller budget, so it stands apart; of more than one, more
    # never hold more
    every = np.arange(len(unit))
    alone = held(1, every) <= 0
    copies = np.where(alone, 1, 0)
    least = min((state.zero for state in recipe.states), default=4)
    sharded = columns["zero"] >= least
    rest = every[~alone & sharded] if "dp" in free else every[:0]
    if len(rest):
        most = MOST_OF_ANY // unit[rest]  # copies on the most devices that any cluster has
        beyond = held(most, rest)
        first = np.argsort(beyond, kind="stable")[:SOME]
        first = first[beyond[first] <= 0]
        copies[rest[first]] = fewest(rest[first], most[first])
    if not copies.any():
        return None
    limit = (copies * unit)[copies > 0].min()
    rest = rest[(copies[rest] == 0) & (limit // unit[rest] > 1)]
    if len(rest):
        most = limit // unit[rest]
        rest, most = (column[held(most, rest) <= 0] for column in (rest, most))
        copies[rest] = fewest(rest, most)
    devices = np.where(copies > 0, copies * unit, np.iinfo(np.int64).max)
    best = np.flatnonzero(devices == devices.min())
    found = [
        Layout(dp=int(copies[n] * step[n]), **{k: v[n].item() for k, v in columns.items()})
        for n in best
    ]
    return min(found, key=lambda layout: len(changes(start, layout)))


def _columns(
    model: Model,
    start: Layout,
    cluster: ClusterSpec,
    recipe: Recipe,
    sequence: int,
    free: tuple[str, ...],
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Layouts without their dp, by column, and the numbers that each dp is a multiple of."""

    def choices(name: str, every: Iterable[T]) -> list[T]:
        """``start``'s value, which comes first, and the others if ``name`` is free."""
        now = getattr(start, name)
        return [now, *(v for v in every if v != now)] if name in free else [now]

    node = divisors(cluster.devices_per_node) if "tp" in free else [start.tp]
    tps = [tp for tp in node if model.allows_tp(tp)]
    kept: dict[str, list[Any]] = {
        "recompute": choices("recompute", RECOMPUTE if recipe.trains else ()),
        "flash_attention": choices("flash_attention", (True, False)),
        "sequence_parallel": choices("sequence_parallel", (True, False)),
        "zero": [3] if recipe.offloads_weights else choices("zero", range(4)),
    }
    cut = list(kept).index("sequence_parallel")  # without it, experts have tp slices
    eps = choices("ep", divisors(model.experts)) if model.experts else [1]
    schedule = start.schedule if start.schedule in ORDERS else "1f1b"
    own = start.interleave if start.schedule == "1f1b" and "interleave" not in free else None
    # chunks even out which stages have the dense layers of a mixture, and never save otherwise
    chunks = choices("interleave", CHUNKS if model.experts and model.dense_layers else (1,))
    size = 1 if "microbatch" in free else start.microbatch
    count = start.microbatch * start.microbatches // size
    rows: list[tuple[Any, ...]] = []
    steps: list[int] = []
    for tp, pp, cp, ep in product(
        tps,
        choices("pp", range(1, model.layers + 1)),
        choices("cp", context_degrees(sequence)),
        eps,
    ):
        whole = schedule == "1f1b" and pp > 1 and count % pp == 0
        for v in chunks if whole else (1,):
            if pp * v <= model.layers and own in (None, v):
                slices = start.expert_tp or tp
                rows += [
                    (tp, pp, cp, ep, v, *rest)
                    for rest in product(*kept.values())
                    if tp in (1, slices) or rest[cut]
                ]
                step = ep * slices // gcd(ep * slices, tp * cp)
                steps += [step] * (len(rows) - len(steps))
    names = ("tp", "pp", "cp", "ep", "interleave", *kept)
    columns = {name: np.array([row[n] for row in rows]) for n, name in enumerate(names)}
    same = {"microbatch": size, "microbatches": count, "schedule": schedule}
    same |= {"expert_tp": start.expert_tp}
    columns |= {name: np.full(len(rows), value) for name, value in same.items()}
    return columns, np.array(steps)
