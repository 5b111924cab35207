"""Convolution and pooling of images that are cut along their rows: windows borrow rows.

forward     own rows --halo_exchange--> own rows and those that windows reach --conv--> own y
backward    own dx <--halo_reduce-- dx of all rows that were read <--conv_grad-- own dy
            dw, db <--all_reduce-- of every rank's windows

``rows`` says how many rows each rank has; the result says so of the output (``kept.split.out``),
which is the ``rows`` of the next layer. Which rank makes which row: plan/collectives/rows.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tiledask.distributed.convolution.local import Empty, conv2d, conv2d_grad
from tiledask.distributed.ranks.group import Group
from tiledask.errors import PlacementError
from tiledask.plan.collectives.rows import RowSplit, split_rows
from tiledask.tile import layers as L
from tiledask.tile.backend import array_namespace
from tiledask.tile.layers.convolution.im2col import Pair, Sides, Windows, windows

__all__ = [
    "KeptRows",
    "avg_pool2d_in_rows",
    "avg_pool2d_in_rows_grad",
    "conv2d_in_rows",
    "conv2d_in_rows_grad",
    "conv2d_in_rows_partials",
    "max_pool2d_in_rows",
    "max_pool2d_in_rows_grad",
    "sum_weights",
]


class KeptRows(NamedTuple):
    """What a layer that is cut along rows keeps."""

    split: RowSplit
    """Its ``out`` is the ``rows`` of the next layer."""
    local: Any
    """What the layer on the rows that were read keeps."""


def conv2d_in_rows(
    group: Group,
    x: Any,
    w: Any,
    b: Any = None,
    *,
    rows: Sequence[int],
    stride: Pair = 1,
    padding: Sides = 0,
    dilation: Pair = 1,
    groups: int = 1,
    halo: bool = True,
    far: bool = False,
) -> tuple[Any, KeptRows]:
    """(this rank's rows of y, kept) for its rows of x, and all of w and b.

    rows
        Of the image, by rank; x has those of this one. A rank may have none.
    halo
        False: without an exchange, which is refused unless no window crosses.
    far
        Borrow from ranks behind the neighbour too, where windows reach past its rows.

    Raises PlacementError for other rows than those said, and for halos that are not allowed.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> def program(rank):
    ...     rows = (3, 3, 3, 2)
    ...     x, w = np.ones((1, 1, rows[rank.index], 4)), np.ones((1, 1, 3, 3))
    ...     y, kept = conv2d_in_rows(rank.group(), x, w, rows=rows, padding=1)
    ...     return y[0, 0, :, 0].tolist()
    >>> run_threads(program, 4).results
    [[4.0, 6.0, 6.0], [6.0, 6.0, 6.0], [6.0, 6.0, 6.0], [6.0, 4.0]]
    """
    window = windows(w.shape[2:], stride, padding, dilation)
    split = _split(group, x, rows, window, halo, far)
    read, slab = _read(group, x, split)
    y, kept = conv2d(
        read,
        w,
        b,
        split.out[group.rank],
        stride=window.stride,
        padding=((slab.above, slab.below), window.padding[1]),
        dilation=window.dilation,
        groups=groups,
    )
    return y, KeptRows(split, kept)


def conv2d_in_rows_grad(
    group: Group, dy: Any, kept: KeptRows, w: Any, b: Any = None, *, wanted: bool = True
) -> tuple[Any, Any, Any]:
    """(this rank's rows of dx, all of dw, all of db).

    A halo_reduce, for what other ranks' windows read here, and one all_reduce of dw and db.
    Without the first, and with None for dx, where dx is not ``wanted``.
    """
    dx, dw, db = conv2d_in_rows_partials(group, dy, kept, w, b, wanted=wanted)
    return dx, *sum_weights(group, dw, db)


def conv2d_in_rows_partials(
    group: Group, dy: Any, kept: KeptRows, w: Any, b: Any = None, *, wanted: bool = True
) -> tuple[Any, Any, Any]:
    """(dx, dw, db) as of `conv2d_in_rows_grad`, but dw and db of this rank's windows only.

    All ranks' add up to dw and db: whoever calls this adds them, with those of other layers.
    """
    dread, dw, db = conv2d_grad(dy, kept.local, w, b)
    return _given_back(group, dread, kept) if wanted else None, dw, db


def sum_weights(group: Group, dw: Any, db: Any) -> tuple[Any, Any]:
    """The sums over ranks of both gradients, by one all_reduce; db may be None."""
    xp = array_namespace(dw)
    flat = xp.concatenate([dw.reshape(-1), *([] if db is None else [db])])
    with group.label("backward/dw db"):
        flat = group.all_reduce(flat)
    return flat[: dw.size].reshape(dw.shape), None if db is None else flat[dw.size :]


def max_pool2d_in_rows(
    group: Group,
    x: Any,
    size: Pair,
    stride: Pair | None = None,
    padding: Sides = 0,
    *,
    rows: Sequence[int],
    halo: bool = True,
    far: bool = False,
) -> tuple[Any, KeptRows]:
    """This rank's rows of `tiledask.tile.layers.max_pool2d`, and what is kept; only rows of
    windows that cross are borrowed. ``rows``, ``halo`` and ``far`` as for `conv2d_in_rows`."""
    return _pooled(group, L.max_pool2d, x, (size, stride, padding), rows, halo, far)


def max_pool2d_in_rows_grad(group: Group, dy: Any, kept: KeptRows) -> Any:
    """This rank's rows of dx."""
    return _pooled_grad(group, L.max_pool2d_grad, dy, kept)


def avg_pool2d_in_rows(
    group: Group,
    x: Any,
    size: Pair,
    stride: Pair | None = None,
    padding: Sides = 0,
    *,
    rows: Sequence[int],
    halo: bool = True,
    far: bool = False,
) -> tuple[Any, KeptRows]:
    """This rank's rows of `tiledask.tile.layers.avg_pool2d`, and what is kept.

    The arguments are those of `max_pool2d_in_rows`.
    """
    return _pooled(group, L.avg_pool2d, x, (size, stride, padding), rows, halo, far)


def avg_pool2d_in_rows_grad(group: Group, dy: Any, kept: KeptRows) -> Any:
    """This rank's rows of dx."""
    return _pooled_grad(group, L.avg_pool2d_grad, dy, kept)


# -- what they share -----------------------------------------------------------------------------


def _pooled(
    group: Group,
    pool: Callable[..., tuple[Any, Any]],
    x: Any,
    shape: tuple[Pair, Pair | None, Sides],
    rows: Sequence[int],
    halo: bool,
    far: bool,
) -> tuple[Any, KeptRows]:
    size, stride, padding = shape
    window = windows(size, size if stride is None else stride, padding)
    split = _split(group, x, rows, window, halo, far)
    read, slab = _read(group, x, split)
    if split.out[group.rank]:
        sides = ((slab.above, slab.below), window.padding[1])
        y, kept = pool(read, window.size, window.stride, sides)
    else:
        columns = window.out((window.size[0], x.shape[3]))[1]
        y = array_namespace(x).zeros((*x.shape[:2], 0, columns), x.dtype)
        kept = Empty(read)
    return y, KeptRows(split, kept)


def _pooled_grad(group: Group, grad: Callable[[Any, Any], Any], dy: Any, kept: KeptRows) -> Any:
    empty = isinstance(kept.local, Empty)
    dread = array_namespace(dy).zeros_like(kept.local.x) if empty else grad(dy, kept.local)
    return _given_back(group, dread, kept)


def _split(
    group: Group, x: Any, rows: Sequence[int], window: Windows, halo: bool, far: bool
) -> RowSplit:
    """The RowSplit of these windows, if it is allowed."""
    if len(rows) != group.size or rows[group.rank] != x.shape[2]:
        raise PlacementError(
            f"rows says how many rows of the image each of the {group.size} ranks has, and that "
            f"rank {group.rank} has {x.shape[2]}; got {tuple(rows)}: cut x so, or pass "
            f"the rows that every rank really has"
        )
    split = split_rows(
        rows, window.size[0], window.stride[0], window.padding[0], window.dilation[0]
    )
    if not halo and split.strips:
        strip = split.strips[0]
        raise PlacementError(
            f"a window that crosses from rank to rank needs rows of both: windows of {split.reach} "
            f"rows on {tuple(rows)} rows read {split.before} before and {split.after} behind a "
            f"rank's own (row {strip.start} of rank {strip.source} for rank {strip.destination}), "
            f"and without an exchange there are 0; use halo=True"
        )
    if not far:
        split.check_neighbours()
    return split


def _read(group: Group, x: Any, split: RowSplit) -> tuple[Any, Any]:
    """(the rows that this rank's windows read, their Slab)."""
    if split.strips:
        with group.label("forward/halo"):
            x = group.halo_exchange(x, 2, split.before, split.after, extents=split.rows)
    return x[:, :, split.local(group.rank)], split.slabs[group.rank]


def _given_back(group: Group, dread: Any, kept: KeptRows) -> Any:
    """dx of the own rows for that of the rows that were read."""
    split = kept.split
    here = split.local(group.rank)
    ahead, behind = split.widths(group.rank)
    held = ahead + split.rows[group.rank] + behind
    n, c, _, w = dread.shape
    dx = array_namespace(dread).zeros((n, c, held, w), dread.dtype)
    dx[:, :, here] = dread
    if split.strips:
        with group.label("backward/halo"):
            dx = group.halo_reduce(dx, 2, split.before, split.after, extents=split.rows)
    return dx
