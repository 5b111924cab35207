"""Where values enter and leave the ranks' own work, and what is done to each element there.

            takes       gives       forward            backward
f           Replicate   Replicate   -                  all_reduce dx
g           Partial     Replicate   all_reduce y       -
gathered    Shard       Replicate   all_gather x       reduce_scatter dx

Every rank uses the same x, each for its own columns, so dx is the sum of what they find: f's
backward must add. The y that each rank contributes to a sum moves the loss as much as the sum
does, so dy goes back unchanged: g's backward must not add. Where it does, every rank gets t dy,
and its dW is exactly t times too large. (Shoeybi et al., arXiv:1909.08053, section 3; the forms
with sharded tokens: Korthikanti et al., arXiv:2205.05198, section 4.2.)
"""

from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed, replicate
from tiledask.distributed.tensor.propagate import check_gather, need, propagate, same_placement
from tiledask.plan.products.placement import Partial, Replicate, Shard
from tiledask.tile import layers as tile
from tiledask.tile.layers.operands import rounded, wide

__all__ = ["activate", "add", "add_bias", "f", "g", "gathered"]

TWICE = (
    "it is the same on every rank, so its sum is {0} times too large; leave the all_reduce out. "
    "If it is this rank's partial sum, say so: partial(x)"
)
ONCE = (
    "a bias that each of {0} ranks adds to its partial sum is in the sum {0} times; sum first, by "
    "g(group, x)"
)


def f(group: Group, x: Placed) -> Placed:
    """``x`` itself, Replicate: from here on every rank does something else with it."""
    need("f", "x", x, (Replicate,), "only what all ranks have can enter all ranks' own work")
    return x


def g(group: Group, y: Placed) -> Placed:
    """The sum over the ranks of the Partial ``y``, Replicate. Refuses what is no partial sum.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import partial
    >>> run_threads(lambda rank: g(rank.group(), partial(np.ones(1))).local.tolist(), 4).results
    [[4.0], [4.0], [4.0], [4.0]]
    """
    need("g (all_reduce)", "y", y, (Partial,), TWICE.format(group.size))
    return replicate(group.all_reduce(y.local) if group.size > 1 else y.local)


def gathered(group: Group, x: Placed) -> Placed:
    """All of ``x``, Replicate, from its shards; the gradient is a reduce_scatter.

    If its gradient is not Partial but the same on all ranks, there is nothing to add: then take
    `shard` of it.
    """
    need("gathered (all_gather)", "x", x, (Shard,), "only shards are joined")
    check_gather(group, x)
    return replicate(group.all_gather(x.local, x.split[0]))


def activate(x: Placed, activation: str) -> tuple[Placed, Any]:
    """(y, kept): relu or gelu of ``x``, placed as x is. Refuses a Partial."""
    need(
        activation,
        "x",
        x,
        (Replicate, Shard),
        f"{activation} of a sum is not the sum of {activation}s; sum first, by g(group, x), or cut "
        f"the matrix before it along its columns",
    )
    y, kept = tile.find_activation(activation)(x.local)
    return x.like(y), kept


def add(x: Placed, y: Placed) -> Placed:
    """x + y; both have the same placement, so that nothing is added on every rank to one sum."""
    same_placement("add", "x", x, "y", y)
    return x.like(rounded(wide(x.local) + wide(y.local), x.local))


def add_bias(group: Group, x: Placed, b: Placed | None) -> Placed:
    """x + b over the last axis, or x without a bias; a Partial, where b would be there t times,
    is refused."""
    propagate(group, "add_bias", "*n n -> *n", ONCE.format(group.size), x=x, b=b)
    return x if b is None else x.like(rounded(wide(x.local) + wide(b.local), x.local))
