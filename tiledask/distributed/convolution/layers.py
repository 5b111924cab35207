"""Convolutions split by channels of the output, or by rows of the image.

                 x [n, c, h, w]     w [o, c, kh, kw]    y [n, o, oh, ow]
by output        all of it          rows of it          channels
in rows          rows               all of it           rows

forward     own rows --halo_exchange--> own rows and those that windows reach --conv--> own y
backward    own dx <--halo_reduce-- dx of all rows that were read <--conv_grad-- own dy
            dw, db <--all_reduce-- of every rank's windows

Ranks without a channel or a row take part with empty arrays. Which rank makes which row:
plan/collectives/rows.py. Each is a program of one layer, as those of `td.tensor`.
"""

from itertools import pairwise
from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.layers import column_linear_grad
from tiledask.distributed.tensor.placed import Placed
from tiledask.distributed.tensor.propagate import propagate, refuse
from tiledask.distributed.tensor.run_layer import KeptLayer, LayerRule, forward
from tiledask.plan.collectives.rows import split_rows
from tiledask.plan.intervals import ends_of
from tiledask.plan.products.placement import Shard, Shards
from tiledask.plan.program.making.convolutions import WindowTerms
from tiledask.tile.layers.conv import Pair, Sides, windows

__all__ = ["conv2d", "conv2d_grad"]

CHANNELS, ROWS = 1, 2
"""Dimensions of an image."""
WHY = (
    "x is on every rank, and w and b are sharded along their output channels, shard(group, w, 0); "
    "or x is sharded along its rows, shard(group, x, 2), and w and b are on every rank"
)


def conv2d(
    group: Group,
    x: Placed,
    w: Placed,
    b: Placed | None = None,
    *,
    stride: Pair = 1,
    padding: Sides = 0,
    dilation: Pair = 1,
) -> tuple[Placed, KeptLayer]:
    """(y, kept): its channels, sharded as those of w are; or its rows, where x is sharded so.

    What windows need beyond a rank's rows is borrowed from whoever has it; y's rows are those of
    the windows whose middle row is the rank's.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor import replicate, shard
    >>> def program(rank):
    ...     group, w = rank.group(), replicate(np.ones((1, 1, 3, 3)))
    ...     y, kept = conv2d(group, shard(group, np.ones((1, 1, 11, 4)), 2), w, padding=1)
    ...     return y.local[0, 0, :, 0].tolist()
    >>> run_threads(program, 4).results
    [[4.0, 6.0, 6.0], [6.0, 6.0, 6.0], [6.0, 6.0, 6.0], [6.0, 4.0]]

    Raises PlacementError for other placements, KernelError where no window fits into the image.
    """
    laid = windows((w.shape[2], w.shape[3]), stride, padding, dilation)
    in_rows = x.dim is not None
    letters = "NCr!W OCIJ O -> NCr!W" if in_rows else "NCHW o!CIJ o! -> NCHW"
    propagate(group, "conv2d", letters, WHY, x=x, w=w, b=b)
    window = WindowTerms(laid.size, laid.stride, laid.padding, laid.dilation)
    options: dict[str, Any] = {"unit": "", "window": window}
    if in_rows:
        _, held = x.split
        if not held.in_a_row:
            refuse("conv2d", f"ranks have rows one behind the other, got shards of {held}")
        rows = laid.size[0], laid.stride[0], laid.padding[0], laid.dilation[0]
        options["split"] = split_rows(held.counts, *rows)
        ends = ends_of(options["split"].out)
        shards = Shards(ends[-1], tuple((at,) if at[0] < at[1] else () for at in pairwise(ends)))
    else:
        _, shards = w.split
    shape = x.shape[0], w.shape[0], *laid.out((x.shape[2], x.shape[3]))
    y = Placed.of(None, Shard(ROWS if in_rows else CHANNELS), shape, shards)
    return forward(group, LayerRule("conv", "conv2d", y), (x,), {"w": w, "b": b}, **options)


conv2d_grad = column_linear_grad
"""(dx, dw, db), placed as x, w and b are. By output one all_reduce, of dx; in rows a halo_reduce,
for what other ranks' windows read here, and one all_reduce of dw and db."""
