"""Cross-entropy of logits sharded by classes: they never meet; 3 numbers a token are summed up.

    rank 0  z[:, 0..V/t]   largest    sum of exp, target's logit       dz[:, 0..V/t]
    rank 1  z[:, V/t..]      |          |                              dz[:, V/t..]
                         all_reduce   all_reduce                       nothing to wait for

tile/layers/cross_entropy.py has the formulas. On logits that were gathered before, every rank
would count every class: the sum is t times too large and the loss is larger by ln t. Shoeybi et
al., arXiv:1909.08053, section 3.
"""

from math import log
from typing import Any, NamedTuple

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.embedding import first_of
from tiledask.distributed.tensor.placed import Placed, need
from tiledask.plan.products.placement import Shard
from tiledask.tile import layers as tile
from tiledask.tile.backend import array_namespace
from tiledask.tile.layers.operands import wide

__all__ = ["KeptShardedLoss", "cross_entropy", "cross_entropy_grad"]


class KeptShardedLoss(NamedTuple):
    """What the loss keeps."""

    logits: Placed
    targets: Any
    maximum: Any
    exponentials: Any
    rule: tile.LossRule
    divisor: float
    """What the sum of the tokens' losses was divided by."""


def cross_entropy(
    group: Group,
    logits: Placed,
    targets: Any,
    smoothing: float = 0.0,
    ignore: int = -100,
    count: float | None = None,
) -> tuple[Any, KeptShardedLoss]:
    """(loss, kept): the same scalar on every rank; logits [..., V] in Shard(-1), targets [...].

    As tile's `cross_entropy`: the mean over the targets that are not ``ignore``, or their sum over
    ``count``. Smoothing shares out over all V classes, wherever they are. Replicated logits are
    refused.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import shard
    >>> def program(rank):
    ...     logits = shard(rank.group(), np.zeros((2, 5)), -1)
    ...     return round(float(cross_entropy(rank.group(), logits, np.array([4, -100]))[0]), 4)
    >>> run_threads(program, 2).results  # log 5
    [1.6094, 1.6094]
    """
    need(
        "cross_entropy",
        "logits",
        logits,
        (Shard,),
        f"each of {group.size} ranks would count every class, and the loss would be larger by "
        f"ln {group.size} = {log(group.size):.4f}; hand over what column_linear gives without "
        f"gathering it, or use tiledask.tile.layers.cross_entropy on all of it",
    )
    first = first_of(group, "cross_entropy", "logits", logits, -1)
    rule = tile.LossRule(logits.shape[-1], smoothing, ignore)
    counted = tile.count_targets(targets, rule)
    count = counted if count is None else count
    z, xp = logits.local, array_namespace(logits.local)
    here = z.shape[-1] > 0  # a rank without a class adds nothing
    if here:
        maximum = tile.local_maximum(z)
    else:
        maximum = xp.full(z.shape[:-1], -float("inf"), wide(z).dtype)
    with group.label("cross_entropy", "maximum", "forward"):
        maximum = group.all_reduce(maximum, "max")
    if here:
        sums = tile.local_sums(z, targets, maximum, rule, first)
    else:
        sums = xp.zeros((3 if rule.smoothing else 2, *z.shape[:-1]), wide(z).dtype)
    with group.label("cross_entropy", "sums", "forward"):
        sums = group.all_reduce(sums)
    loss = tile.loss_of_sums(sums, targets, rule, count)
    return loss, KeptShardedLoss(logits, targets, maximum, sums[0], rule, count)


def cross_entropy_grad(group: Group, dloss: float, kept: KeptShardedLoss) -> Placed:
    """dlogits, placed as the logits are. Nothing is exchanged."""
    logits, targets, maximum, exponentials, rule, count = kept
    if not logits.local.shape[-1]:
        return logits.like(logits.local.copy())
    _, classes = logits.split
    first = sum(classes.counts[: group.rank])
    dz = tile.logits_grad(dloss, logits.local, targets, maximum, exponentials, rule, count, first)
    return logits.like(dz)
