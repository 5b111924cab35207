"""Layouts as columns: all that a space, a model and a number of devices allow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.arrays import Columns
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import ITEMS, RECOMPUTE, Layout, Numbers, stage_layers
from tiledask.plan.inputs.model import Model
from tiledask.plan.units import divisors
from tiledask.plan.whole import is_whole

__all__ = ["CHUNKS", "COLUMNS", "SHAPE", "Space", "context_degrees", "grid"]
__all__ += ["layouts_of", "shapes"]

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Chunks of layers on a stage that are tried."""
SHAPE = ("dp", "tp", "pp", "cp", "ep", "expert_tp", "microbatch", "microbatches", "interleave")
REST = ("zero", "recompute", "sequence_parallel", "flash_attention", "schedule", "items")
"""What ``shapes`` chooses together, and what is chosen freely beside them."""
COLUMNS = SHAPE + REST


@dataclass(frozen=True)
class Space:
    """What a search may choose. None: all that the model and the cluster allow."""

    tp: Sequence[int] | None = None  # Default: what divides the heads and a node's devices
    pp: Sequence[int] | None = None
    cp: Sequence[int] | None = None  # Default: powers of two, for pieces of 4096 tokens or more
    ep: Sequence[int] | None = None  # Default: what divides the number of experts
    expert_tp: Sequence[int] = (0,)  # 0: tp; (0, 1) looks at experts folded over tp too
    microbatch: Sequence[int] | None = None  # Default: what divides a copy's batch, up to 64
    interleave: Sequence[int] = CHUNKS
    zero: Sequence[int] = (0, 1, 2, 3)
    recompute: Sequence[str] = RECOMPUTE
    sequence_parallel: Sequence[bool] = (False, True)
    flash_attention: Sequence[bool] = (True,)
    schedule: Sequence[str] = ("1f1b",)
    """Of "naive", "gpipe" and "1f1b", the ones whose time and memory have formulas."""
    partition: Sequence[str | None] = (None, "items")
    """None: layers cut evenly; "items": embedding and head count as a layer each. Of both, the
    latter alone where the fullest stage has no more layers for it; of mixtures both there."""

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if values is None:
                continue
            if isinstance(values, str) or not hasattr(values, "__len__") or not len(values):
                rule = f"is a sequence of one value or more, such as {name}=({short(values or 1)},)"
                raise ConfigError(f"Space {name} {rule}; got {short(values)}")
            if name == "partition" and not {*values} <= {None, ITEMS}:
                rule = f"holds None or {ITEMS!r}, got {short(values)}"
                raise ConfigError(f"Space partition {rule}; other bounds are for one Layout")
            for value in values:  # the smallest layout with each says what is wrong with it
                copies = name == "ep" or (name == "expert_tp" and is_whole(value, 1))
                others = {"dp": value} if copies else {}
                if name == "interleave" and value not in (0, 1):
                    others = {"pp": 2, "microbatches": 2}
                Layout(**others, **{name: value})


def context_degrees(sequence: int) -> list[int]:
    """Powers of two, up to 64, that leave pieces of 4096 tokens or more."""
    return [2**k for k in range(7) if k == 0 or sequence >= 4096 * 2**k]


def grid(choices: Mapping[str, Sequence[Any]]) -> Columns:
    """A row for every combination of choices, those of the last field next to each other."""
    places = np.indices([*map(len, choices.values())]).reshape(len(choices), -1)
    pairs = zip(choices.items(), places, strict=True)
    return {name: np.array(each)[at] for (name, each), at in pairs}


def layouts_of(
    model: Model,
    cluster: ClusterSpec,
    batch: int,
    sequence: int,
    space: Space,
    devices: Sequence[int],
) -> Columns:
    """All layouts of ``space`` on some numbers of devices, of choices that change something."""
    rows = [row for n in devices for row in shapes(model, cluster, batch, sequence, space, n)]
    found = np.array(rows, np.int64).reshape(-1, len(SHAPE))
    items = [partition == ITEMS for partition in space.partition]
    rest = grid({name: getattr(space, name) for name in REST[:-1]} | {"items": items})
    n = {name: found[:, at, None] for at, name in enumerate(SHAPE)} | rest
    # choices that change nothing; and of two ways to cut layers the one that is slower and larger.
    # Of unequal layers, or those beside which embedding and head are little, either may be
    evenly = Numbers(pp=n["pp"], interleave=n["interleave"], items=False)
    (most, *_), (first, others, last) = (
        stage_layers(replace(evenly, items=items), model.layers) for items in (False, True)
    )
    for_items = np.maximum(np.maximum(first, last) + 1, others) <= most
    pointless = (
        (n["sequence_parallel"] & (n["tp"] == 1))
        | ((n["recompute"] == "selective") & n["flash_attention"])
        | ((n["zero"] > min(space.zero)) & (n["dp"] * n["cp"] == 1))
        | ((n["interleave"] > 1) & (n["schedule"] != "1f1b"))
        | (n["items"] & ~for_items & (None in space.partition))
        | (~n["items"] & for_items & (ITEMS in space.partition) & (not model.experts))
        | (~n["items"] & (n["pp"] * n["interleave"] > model.layers))
        | ((n["expert_tp"] > 0) & (n["tp"] > 1) & ~n["sequence_parallel"])
    )
    shape, choice = np.nonzero(~pointless)
    return {name: n[name][shape, 0] if name in SHAPE else n[name][choice] for name in COLUMNS}


def shapes(
    model: Model, cluster: ClusterSpec, batch: int, sequence: int, space: Space, devices: int
) -> Iterator[tuple[int, ...]]:
    """The values of SHAPE on so many devices; on 0 as few copies as experts allow."""
    node = cluster.devices_per_node
    tps = space.tp or [t for t in divisors(model.heads, node) if node % t == 0]
    pps = space.pp or range(1, min(model.layers, devices) + 1)
    most = model.layers + 2 * (ITEMS in space.partition)  # chunks
    cps = space.cp or context_degrees(sequence)
    eps = space.ep or (divisors(model.experts, model.experts) if model.experts else [1])
    for tp, pp, cp in product(filter(model.allows_tp, tps), pps, cps):
        dp, left = divmod(devices, tp * pp * cp)
        if left or (devices and batch % dp):
            continue
        same = tp if 0 in space.expert_tp else -1  # twice the same
        slices = [e for e in space.expert_tp if e != same] if model.experts else [0]
        for ep, e in product(eps, slices):
            split = ep * (e or tp)
            copies = dp or int(split // np.gcd(split, tp * cp))
            share = batch // dp if devices else batch
            if tp * copies * cp % split:
                continue
            sizes = space.microbatch or divisors(share, 64)
            for b, v in product(sizes, space.interleave if pp > 1 else (1,)):
                if share % b == 0 and pp * v <= most and (v == 1 or share // b % pp == 0):
                    yield copies, tp, pp, cp, ep, e, b, share // b, v
