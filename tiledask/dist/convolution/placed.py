"""Convolution and pooling of arrays that say how they lie: the split follows, or it is refused.

x on the ranks      w                 way            y on the ranks
all of it           all of it         everywhere     all of it
images              all of it         images         images
all of it           rows of it        by output      channels
channels            columns of it     by input       all of it, after the all_reduce
channels            rows of it        by groups      channels, where there are groups
rows of the image   all of it         in rows        rows of the image, with halos

A gradient lies as its operand does. Anything else would be wrong without an error, and raises
PlacementError: columns of the image, addends of a sum, a w that is cut otherwise than x.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tiledask.dist.convolution import channels, space
from tiledask.dist.convolution.local import conv2d as local_conv2d
from tiledask.dist.convolution.local import conv2d_grad as local_conv2d_grad
from tiledask.dist.ranks.group import Group
from tiledask.dist.tensor.placed import Placed, need, refuse, same_lay
from tiledask.plan.collectives.shards import Shards, even_shards
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as L
from tiledask.tile.layers.windows import Pair, Sides

__all__ = ["avg_pool2d", "avg_pool2d_grad", "conv2d", "conv2d_grad", "max_pool2d",
           "max_pool2d_grad"]  # fmt: skip


class Kept(NamedTuple):
    """What a layer keeps."""

    way: str
    local: Any
    x: Placed
    """How x lay."""
    y: Placed
    """How y lay, and so dy must."""


WAYS = {
    (None, None): "everywhere",
    (0, None): "images",
    (None, 0): "by output",
    (1, 1): "by input",
    (1, 0): "by groups",
    (2, None): "in rows",
}
"""(dimension of x that is dealt out, dimension of w) -> the way; None: not dealt out."""


def conv2d(
    group: Group, x: Placed, w: Placed, b: Placed | None = None, *, stride: Pair = 1,
    padding: Sides = 0, dilation: Pair = 1, groups: int = 1, halo: bool = True, far: bool = False,
) -> tuple[Placed, Kept]:  # fmt: skip
    """(y [n, o, oh, ow], kept) for x [n, c, h, w], w [o, c/groups, kh, kw] and b [o], or no b.

    b is dealt out where w's output channels are, and on every rank otherwise. ``halo`` and
    ``far`` as for `tiledask.dist.convolution.space.conv2d_in_rows`.

    >>> import numpy as np
    >>> from tiledask.dist.ranks.threads import run_threads
    >>> from tiledask.dist.tensor.placed import replicate, shard
    >>> def program(rank):
    ...     x = shard(rank.group(), np.ones((1, 2, 11, 5)), 2)
    ...     return conv2d(rank.group(), x, replicate(np.ones((4, 2, 3, 3))), padding=1)[0]
    >>> run_threads(program, 4).results[3]
    Placed(Shard(2) of [1, 4, 11, 5], [1, 4, 2, 5] here)
    """
    way = _way(x, w, b, groups)
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    operands = x.local, w.local, None if b is None else b.local
    if way == "by output":
        y, kept = channels.by_output(group, *operands, **options)
    elif way == "by input":
        y, kept = channels.by_input(group, *operands, **options)
    elif way == "by groups":
        y, kept = channels.by_groups(group, *operands, groups=groups, **options)
    elif way == "in rows":
        rows = {"rows": _rows("conv2d", x), "halo": halo, "far": far}
        y, kept = space.conv2d_in_rows(group, *operands, groups=groups, **rows, **options)
    else:
        y, kept = local_conv2d(*operands, groups=groups, **options)
    return _placed(way, y, kept, x, w.shards)


def conv2d_grad(
    group: Group, dy: Placed, kept: Kept, w: Placed, b: Placed | None = None
) -> tuple[Placed, Placed, Placed | None]:
    """(dx, dw, db), which lie as x, w and b do; dy lies as y."""
    same_lay("conv2d_grad", "dy", dy, "y", kept.y)
    operands = dy.local, kept.local, w.local, None if b is None else b.local
    dx, dw, db = _GRADS[kept.way](group, *operands)
    return kept.x._replace(local=dx), w.like(dw), None if b is None else b.like(db)


def max_pool2d(
    group: Group, x: Placed, size: Pair, stride: Pair | None = None, padding: Sides = 0, *,
    halo: bool = True, far: bool = False,
) -> tuple[Placed, Kept]:  # fmt: skip
    """As `tiledask.tile.layers.max_pool2d`; y lies as x does: images, channels or rows."""
    pools = L.max_pool2d, space.max_pool2d_in_rows
    return _pooled(group, "max_pool2d", pools, x, (size, stride, padding), halo, far)


def max_pool2d_grad(group: Group, dy: Placed, kept: Kept) -> Placed:
    """dx, which lies as x does."""
    return _pooled_grad(group, L.max_pool2d_grad, space.max_pool2d_in_rows_grad, dy, kept)


def avg_pool2d(
    group: Group, x: Placed, size: Pair, stride: Pair | None = None, padding: Sides = 0, *,
    halo: bool = True, far: bool = False,
) -> tuple[Placed, Kept]:  # fmt: skip
    """As `tiledask.tile.layers.avg_pool2d`; y lies as x does: images, channels or rows."""
    pools = L.avg_pool2d, space.avg_pool2d_in_rows
    return _pooled(group, "avg_pool2d", pools, x, (size, stride, padding), halo, far)


def avg_pool2d_grad(group: Group, dy: Placed, kept: Kept) -> Placed:
    """dx, which lies as x does."""
    return _pooled_grad(group, L.avg_pool2d_grad, space.avg_pool2d_in_rows_grad, dy, kept)


# -- what they share -----------------------------------------------------------------------------


def _images_grad(group: Group, dy: Any, kept: Any, w: Any, b: Any) -> tuple:
    """Of images that are dealt out: each rank's windows are some of w's."""
    dx, dw, db = local_conv2d_grad(dy, kept, w, b)
    return dx, *space.sum_weights(group, dw, db)


_GRADS: dict[str, Callable] = {
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
    lies = f"x is {x} and w is {w}"
    if way is None:
        known = ", ".join(f"({_name(a)}, {_name(b)})" for a, b in WAYS)
        refuse("conv2d", f"{lies}; what can be split is (x, w) dealt out along {known}: gather one "
               f"of them, or deal it out so")  # fmt: skip
    if way == "by groups" and groups == 1:
        refuse("conv2d", f"{lies}, with groups=1: channels of x meet the columns of w, and its rows"
               f" only where there are more groups; deal w out along 1")  # fmt: skip
    if way in ("by output", "by input") and groups > 1:
        refuse("conv2d", f"{lies}, with groups={groups}: a rank has whole groups of both; deal x "
               f"out along 1 and w along 0")  # fmt: skip
    if way == "by groups":
        _check_groups(x, w, groups)
    if way == "by input" and x.shards != w.shards:
        refuse("conv2d", f"channels of x ({x.shards}) meet the columns of w on the same rank, "
               f"got {w.shards}; deal both out alike")  # fmt: skip
    of_rows = (0, w.shards) if w.dim == 0 else (None, None)
    if b is not None and (b.dim, b.shards) != of_rows:
        refuse("conv2d", f"b lies as the rows of w, got {b} and w {w}; deal both out alike")
    return way


def _check_groups(x: Placed, w: Placed, groups: int) -> None:
    for name, operand in (("x", x), ("w", w)):
        units, ranks = operand.shape[operand.dim], operand.shards.ranks
        whole = even_shards(groups, ranks).scaled(max(1, units // groups))
        if operand.shards != whole:
            refuse("conv2d", f"a rank has whole groups: of {groups} with {units} channels of {name}"
                   f" that is {whole}, got {operand.shards}; deal it out by even_shards({groups}, "
                   f"{ranks}).scaled({units // groups})")  # fmt: skip


def _placed(way: str, y: Any, kept: Any, x: Placed, shards: Shards | None) -> tuple[Placed, Kept]:
    """(y with its placement, what is kept)."""
    if way == "in rows":
        placed = _dealt(y, 2, _in_order(kept.split.out))
    elif way == "images":
        placed = _dealt(y, 0, x.shards)
    elif way in ("by output", "by groups"):
        placed = _dealt(y, 1, shards)
    else:
        placed = Placed(y, Replicate(), tuple(y.shape))
    return placed, Kept(way, kept, x.lay, placed.lay)


def _pooled(
    group: Group, name: str, pools: tuple[Callable, Callable], x: Placed, shape: tuple,
    halo: bool, far: bool,
) -> tuple[Placed, Kept]:  # fmt: skip
    need(name, "x", x, (Replicate, Shard), "sum it first, by g(group, x)")
    everywhere, in_rows = pools
    if x.dim == 2:
        y, kept = in_rows(group, x.local, *shape, rows=_rows(name, x), halo=halo, far=far)
        return _placed("in rows", y, kept, x, None)
    if x.dim == 3:
        refuse(name, f"x is {x}; windows cross its columns: deal out rows (2), or gather x")
    y, kept = everywhere(x.local, *shape)
    way = {None: "everywhere", 0: "images", 1: "by output"}[x.dim]
    return _placed(way, y, kept, x, x.shards)


def _pooled_grad(
    group: Group, everywhere: Callable, in_rows: Callable, dy: Placed, kept: Kept
) -> Placed:
    same_lay("the gradient of a pooling", "dy", dy, "y", kept.y)
    rows = kept.way == "in rows"
    dx = in_rows(group, dy.local, kept.local) if rows else everywhere(dy.local, kept.local)
    return kept.x._replace(local=dx)


def _name(dim: int | None) -> str:
    return "none" if dim is None else str(dim)


def _rows(name: str, x: Placed) -> tuple[int, ...]:
    if not x.shards.in_a_row:
        refuse(name, f"rows of the image lie one rank's after the other's, got {x.shards}")
    return x.shards.counts


def _in_order(counts: Sequence[int]) -> Shards:
    parts, at = [], 0
    for n in counts:
        parts.append(((at, at + n),) if n else ())
        at += n
    return Shards(at, tuple(parts))


def _dealt(local: Any, dim: int, shards: Shards) -> Placed:
    shape = (*local.shape[:dim], shards.extent, *local.shape[dim + 1 :])
    return Placed(local, Shard(dim), shape, shards)
