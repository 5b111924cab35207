"""Convolutions split by channels of the output, or by rows of the image.

                 x [n, c, h, w]     w [o, c, kh, kw]    y [n, o, oh, ow]
by output        all of it          rows of it          channels
in rows          rows               all of it           rows

forward     own rows --halo_exchange--> own rows and those that windows reach --conv--> own y
backward    own dx <--halo_reduce-- dx of all rows that were read <--conv_grad-- own dy
            dw, db <--all_reduce-- of every rank's windows

Each rank passes its parts, cut as numpy.array_split cuts; `part` gives them. Ranks without a
channel or a row take part with empty arrays. Which rank makes which row: plan/collectives/rows.py.
Each is a program of one layer, as those of `td.tensor`.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import EVERYWHERE, Placed, Weights, replicate
from tiledask.distributed.tensor.run_layer import KeptLayer, LayerRule, backward, forward
from tiledask.errors import PlacementError
from tiledask.plan.collectives.rows import RowSplit, split_rows
from tiledask.plan.intervals import ends_of, split
from tiledask.plan.products.placement import Shard, Shards
from tiledask.plan.program.making.convolutions import WindowTerms
from tiledask.tile.layers.windows import Pair, Sides, Windows, windows

__all__ = [
    "by_output",
    "by_output_grad",
    "conv2d_in_rows",
    "conv2d_in_rows_grad",
    "part",
]

ROWS = 2
"""The dimension of an image's rows."""


def part(group: Group, x: Any, dim: int) -> Any:
    """A copy of this rank's part of ``x`` along ``dim``."""
    mine = slice(*split(0, x.shape[dim], group.size)[group.rank])
    return x[(slice(None),) * dim + (mine,)].copy()


def by_output(group: Group, x: Any, w: Any, b: Any = None, **options: Any) -> tuple[Any, KeptLayer]:
    """(this rank's channels of y, kept) for all of x and the rank's rows of w and b.

    ``options``: stride, padding, dilation. `Group.all_gather` along dimension 1 makes all of y.
    """
    if options.get("groups", 1) != 1:
        raise PlacementError(
            f"an output channel of a grouped convolution needs its group's input only: this "
            f"split has groups=1, got {options['groups']}; give each rank whole groups"
        )
    laid = windows(w.shape[2:], **options)
    y, kept = forward(_conv, group, (replicate(x),), _weights(w, b), laid, None)
    return y.local, kept


def by_output_grad(
    group: Group, dy: Any, kept: KeptLayer, w: Any, b: Any = None
) -> tuple[Any, Any, Any]:
    """(all of dx, dw, db) for dy of the own channels.

    One all_reduce: the input went to all ranks, so its gradient comes from all of them.
    """
    return _backward(group, replicate(dy), kept, w, b)


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
) -> tuple[Any, KeptRows]:
    """(this rank's rows of y, kept) for its rows of x, and all of w and b.

    rows
        Of the image, by rank; x has those of this one. A rank may have none. What windows need
        beyond them is borrowed from whoever has it.

    Raises PlacementError for other rows than those said.

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
    laid = windows(w.shape[2:], stride, padding, dilation)
    if len(rows) != group.size or rows[group.rank] != x.shape[ROWS]:
        raise PlacementError(
            f"rows says how many rows of the image each of the {group.size} ranks has, and that "
            f"rank {group.rank} has {x.shape[ROWS]}; got {tuple(rows)}: cut x so, or pass "
            f"the rows that every rank really has"
        )
    cut = split_rows(rows, laid.size[0], laid.stride[0], laid.padding[0], laid.dilation[0])
    y, kept = forward(_conv, group, (_in_rows(x, cut.rows),), _weights(w, b), laid, cut)
    return y.local, KeptRows(cut, kept)


def conv2d_in_rows_grad(
    group: Group, dy: Any, kept: KeptRows, w: Any, b: Any = None
) -> tuple[Any, Any, Any]:
    """(this rank's rows of dx, all of dw, all of db).

    A halo_reduce, for what other ranks' windows read here, and one all_reduce of dw and db.
    """
    return _backward(group, _in_rows(dy, kept.split.out), kept.local, w, b)


# -- programs of one layer -------------------------------------------------------------------------


def _backward(group: Group, dy: Placed, kept: KeptLayer, w: Any, b: Any) -> tuple[Any, Any, Any]:
    dx, grads = backward(group, dy, kept, _weights(w, b))
    db = grads["b"]
    return dx.local, grads["w"].local, db and db.local


def _weights(w: Any, b: Any) -> Weights:
    return {"w": replicate(w), "b": None if b is None else replicate(b)}


def _conv(
    group: Group, given: tuple[Placed], of: Weights, laid: Windows, cut: RowSplit | None
) -> LayerRule:
    """Raises KernelError where windows do not fit into the image."""
    x, name = given[0], "conv" if cut is None else "conv2d_in_rows"
    n, _, high, wide = x.shape
    shape = n, of["w"].shape[0], *laid.out((high, wide))
    y = Placed.of(None, EVERYWHERE, shape)
    window = WindowTerms(laid.size, laid.stride, laid.padding, laid.dilation)
    options: dict[str, Any] = {"unit": "", "window": window}
    if cut is not None:
        y, options["split"] = Placed.of(None, Shard(ROWS), shape, _shards(cut.out)), cut
    return LayerRule("conv", y, options, name)


def _in_rows(x: Any, rows: Sequence[int]) -> Placed:
    """``x``, this rank's rows, of which each has so many."""
    shape = *x.shape[:ROWS], sum(rows), *x.shape[ROWS + 1 :]
    return Placed.of(x, Shard(ROWS), shape, _shards(tuple(rows)))


@lru_cache(256)
def _shards(rows: tuple[int, ...]) -> Shards:
    ends = pairwise(ends_of(rows))
    return Shards(sum(rows), tuple((at,) if at[0] < at[1] else () for at in ends))
