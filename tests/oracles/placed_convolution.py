"""Convolution and pooling of placed arrays: how to split follows from it, or is refused.

x on the ranks      w                 way            y on the ranks
all of it           all of it         everywhere     all of it
images              all of it         images         images
all of it           rows of it        by output      channels
channels            columns of it     by input       all of it, after the all_reduce
channels            rows of it        by groups      channels, where there are groups
rows of the image   all of it         in rows        rows of the image, with halos

A gradient is placed as its operand is. Anything else would be wrong without an error, and raises
PlacementError: columns of the image, partial sums, a w that is cut otherwise than x.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tiledask.distributed.convolution import channels, space
from tiledask.distributed.convolution.local import conv2d as local_conv2d
from tiledask.distributed.convolution.local import conv2d_grad as local_conv2d_grad
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed, need, refuse, same_placement
from tiledask.plan.collectives.shards import Interval, Shards, even_shards
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as L
from tiledask.tile.layers.convolution.im2col import Pair, Sides

__all__ = [
    "avg_pool2d",
    "avg_pool2d_grad",
    "conv2d",
    "conv2d_grad",
    "max_pool2d",
    "max_pool2d_grad",
]

Pool = Callable[..., tuple[Any, Any]]


class Kept(NamedTuple):
    """What a layer keeps."""

    way: str
    local: Any
    x: Placed
    """The placement of x."""
    y: Placed
    """The placement of y, and so of dy."""


WAYS = {
    (None, None): "everywhere",
    (0, None): "images",
    (None, 0): "by output",
    (1, 1): "by input",
    (1, 0): "by groups",
    (2, None): "in rows",
}
"""(dimension of x that is sharded, dimension of w) -> the way; None: not sharded."""


def conv2d(
    group: Group,
    x: Placed,
    w: Placed,
    b: Placed | None = None,
    *,
    stride: Pair = 1,
    padding: Sides = 0,
    dilation: Pair = 1,
    groups: int = 1,
    halo: bool = True,
    far: bool = False,
) -> tuple[Placed, Kept]:
    """(y [n, o, oh, ow], kept) for x [n, c, h, w], w [o, c/groups, kh, kw] and b [o], or no b.

    b is sharded where w's output channels are, and on every rank otherwise. ``halo`` and
    ``far`` as for `tiledask.distributed.convolution.space.conv2d_in_rows`.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import replicate, shard
    >>> def program(rank):
    ...     x = shard(rank.group(), np.ones((1, 2, 11, 5)), 2)
    ...     return conv2d(rank.group(), x, replicate(np.ones((4, 2, 3, 3))), padding=1)[0]
    >>> run_threads(program, 4).results[3]
    Placed(Shard(2) of [1, 4, 11, 5], [1, 4, 2, 5] here)
    """
    way = _way(x, w, b, groups)
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    operands = x.local, w.local, None if b is None else b.local
    y: Any
    kept: Any
    if way == "by output":
        y, kept = channels.by_output(group, *operands, **options)
    elif way == "by input":
        y, kept = channels.by_input(group, *operands, **options)
    elif way == "by groups":
        y, kept = channels.by_groups(group, *operands, groups=groups, **options)
    elif way == "in rows":
        options |= {"rows": _rows("conv2d", x), "halo": halo, "far": far}
        y, kept = space.conv2d_in_rows(group, *operands, groups=groups, **options)
    else:
        y, kept = local_conv2d(*operands, groups=groups, **options)
    return _placed(way, y, kept, x, w)


def conv2d_grad(
    group: Group, dy: Placed, kept: Kept, w: Placed, b: Placed | None = None
) -> tuple[Placed, Placed, Placed | None]:
    """(dx, dw, db), placed as x, w and b are; dy is placed as y."""
    same_placement("conv2d_grad", "dy", dy, "y", kept.y)
    operands = dy.local, kept.local, w.local, None if b is None else b.local
    dx, dw, db = _GRADS[kept.way](group, *operands)
    return kept.x._replace(local=dx), w.like(dw), None if b is None else b.like(db)


def max_pool2d(
    group: Group,
    x: Placed,
    size: Pair,
    stride: Pair | None = None,
    padding: Sides = 0,
    *,
    halo: bool = True,
    far: bool = False,
) -> tuple[Placed, Kept]:
    """As `tiledask.tile.layers.max_pool2d`; y is placed as x is: images, channels or rows."""
    pools = L.max_pool2d, space.max_pool2d_in_rows
    return _pooled(group, "max_pool2d", pools, x, (size, stride, padding), halo, far)


def max_pool2d_grad(group: Group, dy: Placed, kept: Kept) -> Placed:
    """dx, placed as x is."""
    return _pooled_grad(group, L.max_pool2d_grad, space.max_pool2d_in_rows_grad, dy, kept)


def avg_pool2d(
    group: Group,
    x: Placed,
    size: Pair,
    stride: Pair | None = None,
    padding: Sides = 0,
    *,
    halo: bool = True,
    far: bool = False,
) -> tuple[Placed, Kept]:
    """As `tiledask.tile.layers.avg_pool2d`; y is placed as x is: images, channels or rows."""
    pools = L.avg_pool2d, space.avg_pool2d_in_rows
    return _pooled(group, "avg_pool2d", pools, x, (size, stride, padding), halo, far)


def avg_pool2d_grad(group: Group, dy: Placed, kept: Kept) -> Placed:
    """dx, placed as x is."""
    return _pooled_grad(group, L.avg_pool2d_grad, space.avg_pool2d_in_rows_grad, dy, kept)


# -- what they share -----------------------------------------------------------------------------


def _images_grad(group: Group, dy: Any, kept: Any, w: Any, b: Any) -> tuple[Any, Any, Any]:
    """Of images that are sharded: each rank's windows are some of w's."""
    dx, dw, db = local_conv2d_grad(dy, kept, w, b)
    return dx, *space.sum_weights(group, dw, db)


_GRADS: dict[str, Callable[..., tuple[Any, Any, Any]]] = {
    "everywhere": lambda group, *operands: local_conv2d_grad(*operands),
    "images": _images_grad,
    "by output": channels.by_output_grad,
    "by input": channels.by_input_grad,
    "by groups": channels.by_groups_grad,
    "in rows": space.conv2d_in_rows_grad,
}


def _way(x: Placed, w: Placed, b: Placed | None, groups: int) -> str:
    for name, operand in (("x", x), ("w", w), ("b", b)):
        if operand is not None:
            need("conv2d", name, operand, (Replicate, Shard), "sum it first, by g(group, ...)")
    way = WAYS.get((x.dim, w.dim))
    both = f"x is {x} and w is {w}"
    if way is None:
        known = ", ".join(f"({_name(a)}, {_name(b)})" for a, b in WAYS)
        refuse(
            "conv2d",
            f"{both}; what can be split is (x, w) sharded along {known}: gather one "
            f"of them, or shard it so",
        )
    if way == "by groups" and groups == 1:
        refuse(
            "conv2d",
            f"{both}, with groups=1: channels of x meet the columns of w, and its rows"
            f" only where there are more groups; shard w along 1",
        )
    if way in ("by output", "by input") and groups > 1:
        refuse(
            "conv2d",
            f"{both}, with groups={groups}: a rank has whole groups of both; shard x "
            f"along 1 and w along 0",
        )
    if way == "by groups":
        _check_groups(x, w, groups)
    if way == "by input" and x.shards != w.shards:
        refuse(
            "conv2d",
            f"channels of x ({x.shards}) meet the columns of w on the same rank, "
            f"got {w.shards}; shard both alike",
        )
    of_rows = (0, w.shards) if w.dim == 0 else (None, None)
    if b is not None and (b.dim, b.shards) != of_rows:
        refuse("conv2d", f"b is placed as the rows of w, got {b} and w {w}; shard both alike")
    return way


def _check_groups(x: Placed, w: Placed, groups: int) -> None:
    for name, operand in (("x", x), ("w", w)):
        dim, shards = operand.split
        units, ranks = operand.shape[dim], shards.ranks
        whole = even_shards(groups, ranks).scaled(max(1, units // groups))
        if shards != whole:
            refuse(
                "conv2d",
                f"a rank has whole groups: of {groups} with {units} channels of {name}"
                f" that is {whole}, got {shards}; shard it by even_shards({groups}, "
                f"{ranks}).scaled({units // groups})",
            )


def _placed(way: str, y: Any, kept: Any, x: Placed, channels: Placed) -> tuple[Placed, Kept]:
    """(y with its placement, what is kept). y's channels are sharded as ``channels`` is."""
    if way == "in rows":
        placed = _sharded(y, 2, _in_order(kept.split.out))
    elif way == "images":
        placed = _sharded(y, 0, x.split[1])
    elif way in ("by output", "by groups"):
        placed = _sharded(y, 1, channels.split[1])
    else:
        placed = Placed(y, Replicate(), tuple(y.shape))
    return placed, Kept(way, kept, x.spec, placed.spec)


def _pooled(
    group: Group,
    name: str,
    pools: tuple[Pool, Pool],
    x: Placed,
    shape: tuple[Pair, Pair | None, Sides],
    halo: bool,
    far: bool,
) -> tuple[Placed, Kept]:
    need(name, "x", x, (Replicate, Shard), "sum it first, by g(group, x)")
    everywhere, in_rows = pools
    if x.dim == 2:
        y, kept = in_rows(group, x.local, *shape, rows=_rows(name, x), halo=halo, far=far)
        return _placed("in rows", y, kept, x, x)
    if x.dim == 3:
        refuse(name, f"x is {x}; windows cross its columns: shard rows (2), or gather x")
    y, kept = everywhere(x.local, *shape)
    way = {None: "everywhere", 0: "images", 1: "by output"}[x.dim]
    return _placed(way, y, kept, x, x)


def _pooled_grad(
    group: Group,
    everywhere: Callable[[Any, Any], Any],
    in_rows: Callable[[Group, Any, space.KeptRows], Any],
    dy: Placed,
    kept: Kept,
) -> Placed:
    same_placement("the gradient of a pooling", "dy", dy, "y", kept.y)
    rows = kept.way == "in rows"
    dx = in_rows(group, dy.local, kept.local) if rows else everywhere(dy.local, kept.local)
    return kept.x._replace(local=dx)


def _name(dim: int | None) -> str:
    return "none" if dim is None else str(dim)


def _rows(name: str, x: Placed) -> tuple[int, ...]:
    _, shards = x.split
    if not shards.in_a_row:
        refuse(name, f"rows of the image are one rank's after the other's, got {shards}")
    return shards.counts


def _in_order(counts: Sequence[int]) -> Shards:
    parts: list[tuple[Interval, ...]] = []
    at = 0
    for n in counts:
        parts.append(((at, at + n),) if n else ())
        at += n
    return Shards(at, tuple(parts))


def _sharded(local: Any, dim: int, shards: Shards) -> Placed:
    shape = (*local.shape[:dim], shards.extent, *local.shape[dim + 1 :])
    return Placed(local, Shard(dim), shape, shards)
