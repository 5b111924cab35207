"""Layers whose weights are sharded over the ranks of a group, forward and backward.

layers.py      sums, linear layers, feed-forward, attention, decoder block, embedding, loss
propagate.py   what may be placed how, by one rule of letters
run_layer.py   each layer is a program of one layer, run on the group
placed.py      a block that says what it is a part of; weights dealt, and put together again

One convention, that of tiledask/tile/layers, with the group before all:

    y, kept        = f(group, x, weights..., options)
    dx, dweights.. = f_grad(group, dy, kept, weights...)

Everything that goes in and comes out is a `Placed`: it knows whether it is
replicated, a shard or a partial sum, and what would be silently wrong raises PlacementError. x may
be on every rank, or sharded along its tokens (sequence parallel): y is then placed as x is.
"""

from tiledask.distributed.tensor import layers, placed
from tiledask.distributed.tensor.layers import *  # noqa: F403
from tiledask.distributed.tensor.placed import *  # noqa: F403

__all__ = [*layers.__all__, *placed.__all__]
