"""Convolution of images that are cut along their rows: windows borrow rows.

forward     own rows --halo_exchange--> own rows and those that windows reach --conv--> own y
backward    own dx <--halo_reduce-- dx of all rows that were read <--conv_grad-- own dy
            dw, db <--all_reduce-- of every rank's windows

``rows`` says how many rows each rank has; the result says so of the output (``kept.split.out``),
which is the ``rows`` of the next layer. Which rank makes which row: plan/collectives/rows.py.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tiledask.distributed.convolution.channels import window_terms
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.layer_programs import KeptLayer, LayerRule, backward, forward
from tiledask.distributed.tensor.placed import Placed, Weights, replicate
from tiledask.errors import PlacementError
from tiledask.plan.collectives.rows import RowSplit, split_rows
from tiledask.plan.intervals import ends_of
from tiledask.plan.products.placement import Shard
from tiledask.plan.products.shards import Shards
from tiledask.tile.layers.convolution.im2col import Pair, Sides, Windows, windows

__all__ = [
    "KeptRows",
    "conv2d_in_rows",
    "conv2d_in_rows_grad",
]

ROWS = 2
"""The dimension of an image's rows."""


class KeptRows(NamedTuple):
    """What a layer that is cut along rows keeps."""

    split: RowSplit
    """Its ``out`` is the ``rows`` of the next layer."""
    local: KeptLayer


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
    far: bool = False,
) -> tuple[Any, KeptRows]:
    """(this rank's rows of y, kept) for its rows of x, and all of w and b.

    rows
        Of the image, by rank; x has those of this one. A rank may have none.
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
    split = _split(group, x, rows, window, far)
    weights = {"w": replicate(w), "b": None if b is None else replicate(b)}
    y, kept = forward(_conv, group, (_rows_of(x, split.rows),), weights, window, split)
    return y.local, KeptRows(split, kept)


def conv2d_in_rows_grad(
    group: Group, dy: Any, kept: KeptRows, w: Any, b: Any = None, *, wanted: bool = True
) -> tuple[Any, Any, Any]:
    """(this rank's rows of dx, all of dw, all of db).

    A halo_reduce, for what other ranks' windows read here, and one all_reduce of dw and db.
    Without the first, and with None for dx, where dx is not ``wanted``.
    """
    weights = {"w": replicate(w), "b": None if b is None else replicate(b)}
    dx, grads = backward(group, _rows_of(dy, kept.split.out), kept.local, weights, wanted)
    db = grads["b"]
    return dx and dx.local, grads["w"].local, db and db.local


# -- what they share -----------------------------------------------------------------------------


def _split(group: Group, x: Any, rows: Sequence[int], window: Windows, far: bool) -> RowSplit:
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
    if not far:
        split.check_neighbours()
    return split


def _rows_of(x: Any, rows: Sequence[int]) -> Placed:
    """``x``, this rank's rows, of which each has so many."""
    shape = *x.shape[:ROWS], sum(rows), *x.shape[ROWS + 1 :]
    return Placed.of(x, Shard(ROWS), shape, _shards(tuple(rows)))


@lru_cache(256)
def _shards(rows: tuple[int, ...]) -> Shards:
    ends = pairwise(ends_of(rows))
    return Shards(sum(rows), tuple((at,) if at[0] < at[1] else () for at in ends))


def _conv(
    group: Group,
    given: tuple[Placed],
    of: Weights,
    window: Windows,
    split: RowSplit,
) -> LayerRule:
    y = _made(given[0], of["w"].shape[0], window, split)
    told = {"unit": "", "window": window_terms(window), "split": split}
    return LayerRule("conv", y, told, "conv2d_in_rows")


def _made(x: Placed, channels: int, window: Windows, split: RowSplit) -> Placed:
    """What comes out, by rows. Raises KernelError where windows do not fit into the image."""
    n, _, high, wide = x.shape
    shape = n, channels, sum(split.out), window.out((high, wide))[1]
    return Placed.of(None, Shard(ROWS), shape, _shards(split.out))
