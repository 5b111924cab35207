"""What makes a layout fit: the nearest change, and the fewest devices, every layout to the byte.

fields changed  1        2            3                        the first column where one fits: of
              zero 2   tp 8, pp 4   tp 8, pp 10, dp 2  ...  -> these the batch kept, then the least
              pp 4     tp 8, dp 2   ...                        seconds of a sequence

tp x pp x cp x ep x ZeRO x recompute x ...  ->  each with the smallest dp that fits  ->  the fewest
                                                (bisection, all layouts at once)
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.arrays import Array, Columns
from tiledask.plan.fitting.memory import MemoryEstimate
from tiledask.plan.fitting.overhead import Overhead
from tiledask.plan.fitting.space import CHUNKS, SHAPE, Space, context_degrees, grid, shapes
from tiledask.plan.fitting.vectorized import ORDERS, peak_bytes
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import ITEMS, MOST_OF_ANY, RECOMPUTE, Layout, Numbers
from tiledask.plan.timing.step_time import step_parts
from tiledask.plan.units import divisors

__all__ = ["FIELDS", "changes", "fewest_devices", "nearest"]

FIELDS = ("zero", "microbatch", "recompute", "tp", "pp", "dp")
"""Fields that a fix may change; of fixes that are alike in all else the earlier ones come first."""


def changes(before: Layout, after: Layout) -> dict[str, str]:
    """Field that differs -> how: {"zero": "zero 0 -> 1"}."""
    was, now = vars(before), vars(after)
    return {n: f"{n} {was[n]} -> {now[n]}" for n in was if was[n] != now[n]}


def _rows(n: Columns, at: Array) -> Columns:
    return {name: column[at] for name, column in n.items()}


def _start(own: Layout) -> Layout:
    """The layout; in 1F1B and cut evenly where ``peaks`` does not know its like."""
    even = own if own.partition == ITEMS else replace(own, partition=None)
    return even if own.schedule in ORDERS else replace(even, schedule="1f1b", interleave=1)


def nearest(memory: MemoryEstimate, cluster: ClusterSpec, own: int | None) -> Layout | None:
    """The fewest changes, of a field or of the global batch, on the cluster's devices; of these
    the batch kept, the least seconds of a sequence, the fewest devices, the order of FIELDS."""
    start = _start(memory.layout)
    if start.microbatch * start.microbatches > MOST_OF_ANY:
        return None
    n = _neighbours(start, memory, cluster)
    run, timed = (memory.model, cluster), memory.recipe.trains and not memory.recipe.places
    moved = np.array([n[name] != getattr(start, name) for name in FIELDS])
    other = n["dp"] * n["microbatch"] * n["microbatches"] != start.sequences
    code = (~moved).T @ (2 ** np.arange(len(FIELDS))[::-1])  # those that change FIELDS' first
    level = moved.sum(axis=0) + other + (start != memory.layout)
    for each in range(1, len(FIELDS) + 3):
        at = np.flatnonzero(level == each)
        at = at[_beyond(start, _rows(n, at), memory, cluster, own) <= 0]
        some = _rows(n, at)
        devices = some["dp"] * some["tp"] * some["pp"]
        seconds = np.zeros(len(at))  # of a sequence; so where the time model knows none
        with suppress(ConfigError):  # the device has no units for the recipe's products
            if timed and len(at):
                numbers = replace(Numbers.of(start), **some)
                step = step_parts(*run, numbers, memory.recipe, memory.sequence)
                sequences = some["dp"] * some["microbatch"] * some["microbatches"]
                seconds = sum(step.values()) / sequences
        order = np.lexsort((code[at], devices, seconds, other[at]))
        if layout := next(_layouts(start, _rows(some, order)), None):
            return layout
    return None


def _neighbours(start: Layout, memory: MemoryEstimate, cluster: ClusterSpec) -> Columns:
    model, limit = memory.model, cluster.devices
    kinds = RECOMPUTE if memory.recipe.trains else ()
    past = kinds.index(start.recompute) + 1 if start.recompute in kinds else 2
    choices: dict[str, Any] = {  # those that save least first
        "zero": range(start.zero + 1, 4),
        "microbatch": [b for b in range(start.microbatch, 0, -1) if start.microbatch % b == 0],
        "recompute": kinds[past:],
        "tp": filter(model.allows_tp, divisors(cluster.devices_per_node, limit)),
        "pp": range(1, min(model.layers // start.interleave, limit) + 1),
    }
    # what changes before what stays, so that layouts come in the order of FIELDS
    now = vars(start)
    for name, each in choices.items():
        choices[name] = [*(value for value in each if value != now[name]), now[name]]
    n = {name: column[:, None] for name, column in grid(choices).items()}
    slices = start.ep * (start.expert_tp or n["tp"])
    step = slices // np.gcd(slices, n["tp"] * start.cp)
    top = limit // (n["tp"] * n["pp"] * start.cp) // step * step
    work = start.microbatches * start.microbatch // n["microbatch"]  # of a copy
    share = range(1, min(limit, 2**17) + 1)  # beyond, the copies that fill the cluster
    same = [start.dp, *(d for d in share if start.sequences % d == 0 and d != start.dp)]
    n["dp"] = np.concatenate([0 * step + same, top, step], axis=1)
    m = np.concatenate([start.dp * work // same, work, work], axis=1)
    whole = start.dp * work % same == 0, top != start.dp, step != start.dp
    good = np.concatenate(whole, axis=1) & (n["dp"] > 0) & (n["dp"] <= top)
    good &= (n["dp"] % step == 0) & (m <= MOST_OF_ANY)
    if start.interleave > 1:
        good &= (n["pp"] > 1) & (m % n["pp"] == 0)
    n["microbatches"] = m
    return {name: np.broadcast_to(column, good.shape)[good] for name, column in n.items()}


def _beyond(
    start: Layout, n: Columns, memory: MemoryEstimate, cluster: ClusterSpec, own: int | None
) -> Array:
    """Bytes beyond the device's, of the start with these columns; 0 or less fits. ``own``: those
    of the overhead that were given."""
    numbers = replace(Numbers.of(start), **n)
    over = Overhead.of(cluster.device, memory.recipe, numbers, own)
    brought = (numbers.zero == 3) | (not memory.recipe.offloads_weights)
    found = peak_bytes(memory.model, memory.recipe, memory.sequence, **vars(numbers))
    return np.where(brought, found + over.total - over.sure, 1)


def _layouts(start: Layout, n: Columns) -> Iterator[Layout]:
    """The start with these columns, each, where they are allowed."""
    for at in range(len(n["dp"])):
        with suppress(ValueError):  # its schedule does not go with them
            layout = replace(start, **{k: column[at].item() for k, column in n.items()})
            if layout.devices <= MOST_OF_ANY:
                yield layout


def fewest_devices(memory: MemoryEstimate, cluster: ClusterSpec, own: int | None) -> Layout | None:
    """The layout on the fewest devices, however many the cluster has; of several the one that
    differs from the start in the fewest fields. A copy's work in a step stays."""
    start = _start(memory.layout)
    n, plain = _shapes(start, memory, cluster), Layout()
    step = n.pop("dp")
    unit = n["tp"] * n["pp"] * n["cp"] * step

    def beyond(at: Array, copies: Array) -> Array:
        return _beyond(plain, _rows(n, at) | {"dp": copies * step[at]}, memory, cluster, own)

    # one copy gathers nothing and has a smaller budget, so it stands apart; of more than one,
    # more never hold more
    every = np.flatnonzero(unit <= MOST_OF_ANY)
    copies = np.zeros_like(unit)
    copies[every] = beyond(every, np.ones_like(every)) <= 0
    limit = int(unit[copies > 0].min(initial=MOST_OF_ANY))  # devices of a layout that fits
    at = every[(copies[every] == 0) & (limit // unit[every] > 1)]
    at = at[beyond(at, limit // unit[at]) <= 0]
    low, high = np.ones_like(at), limit // unit[at]
    while len(apart := np.flatnonzero(high - low > 1)):
        middle = (low + high)[apart] // 2
        fits = beyond(at[apart], middle) <= 0
        low[apart] = np.where(fits, low[apart], middle)
        high[apart] = np.where(fits, middle, high[apart])
    copies[at] = high
    limit = int((copies * unit)[copies > 0].min(initial=limit))
    best = np.flatnonzero((copies * unit == limit) & (copies > 0))
    found = _layouts(plain, _rows(n, best) | {"dp": (copies * step)[best]})
    return min(found, key=lambda layout: len(changes(start, layout)), default=None)


def _shapes(start: Layout, memory: MemoryEstimate, cluster: ClusterSpec) -> Columns:
    """Layouts of as few copies as experts allow; the start's values come first."""
    model, recipe = memory.model, memory.recipe
    # chunks even out which stages have which kind of layer, and never save otherwise
    several = len(model.layer_kinds) > 1
    others: dict[str, Iterable[Any]] = {
        "pp": range(1, model.layers + 1),
        "cp": context_degrees(memory.sequence),
        "ep": divisors(model.experts) if model.experts else (),
        "interleave": CHUNKS if several else (1,),
        "recompute": RECOMPUTE if recipe.trains else (),
        "flash_attention": (True, False),
        "sequence_parallel": (True, False),
        "zero": range(4),
    }
    tried = {name: [*dict.fromkeys([getattr(start, name), *o])] for name, o in others.items()}
    if recipe.offloads_weights:
        tried["zero"] = [3]
    space = Space(
        tp=divisors(cluster.devices_per_node),
        expert_tp=[start.expert_tp],
        microbatch=[1],
        partition=[None],
        **{name: tried.pop(name) for name in ("pp", "cp", "ep", "interleave")},
    )
    work = start.microbatch * start.microbatches
    shape = np.array([*shapes(model, cluster, work, memory.sequence, space, 0)])
    rest = grid(tried | {"schedule": [start.schedule]})
    n = {name: shape[:, at, None] for at, name in enumerate(SHAPE)} | rest
    # experts have tp slices, or the sequence is cut; one chunk on a stage but in 1F1B
    good = (n["tp"] == 1) | ((start.expert_tp or n["tp"]) == n["tp"]) | n["sequence_parallel"]
    at, other = np.nonzero(good & ((n["interleave"] == 1) | (start.schedule == "1f1b")))
    return {k: v[at, 0] if k in SHAPE else v[other] for k, v in n.items()}
