"""Cross-entropy of logits, in pieces that never need all logits in one place.

For one token with logits z and target y, with m the largest logit:

    loss = log S - (z_y - m)
    S = sum over c of exp(z_c - m)
    dz_c = exp(z_c - m) / S - [c = y]

m is a maximum and S and z_y - m are sums over classes, so devices that hold some columns each

    largest_logit    -- maximum over devices -->  m
    loss_sums        -- sum over devices ------>  S, z_y - m
    loss             the same number everywhere
    logits_grad      each for its own columns

A target of -100 has no loss and no gradient.
"""

from typing import Any

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import RankPart, Saved, op
from tiledask.tile.layers.operands import check, check_integers, local_index, rounded, wide

__all__ = ["count_targets", "cross_entropy", "cross_entropy_grad"]

IGNORE = -100


def cross_entropy(logits: Array, targets: Array, count: float | None = None) -> tuple[Array, Saved]:
    """(loss, saved) for logits [..., V] and targets [...]; the loss is a scalar array.

    The sum over tokens whose target is not -100, over ``count``: by default the number of
    those tokens, which makes it their mean; a micro-batch passes the number of the whole batch. Of
    halves the loss is float32: near 10, bfloat16 has steps of 1/16.

    >>> import numpy as np
    >>> loss, _ = cross_entropy(np.zeros((2, 4)), np.array([3, -100]))
    >>> round(float(loss), 4)  # log 4
    1.3863
    """
    check("logits:*v", {"logits": logits})
    vocabulary = logits.shape[-1]
    if targets.shape != logits.shape[:-1]:
        raise KernelError(
            f"there is a target for each token of the logits, got {targets.shape} for "
            f"{logits.shape}; reshape one"
        )
    classes, maximum = RankPart(0, vocabulary, vocabulary), largest_logit(logits)
    sums = loss_sums(logits, targets, maximum, classes)
    count = int(_counts(targets).sum()) if count is None else count
    saved = {"logits": logits, "targets": targets, "maximum": maximum, "sums": sums}
    return loss(sums, targets, count), saved | {"classes": classes, "count": count}


def cross_entropy_grad(dloss: float, saved: Saved) -> Array:
    """dlogits of `cross_entropy`. ``dloss`` is 1, or the scale of a scaled loss."""
    return logits_grad(**saved, scale=dloss)


def count_targets(targets: Array, vocabulary: int) -> int:
    """How many targets have a loss. Raises KernelError for those outside of the vocabulary."""
    check_integers("targets", targets)
    counted = targets[_counts(targets)]
    wrong = counted[(counted < 0) | (counted >= vocabulary)]
    if wrong.size:
        raise KernelError(
            f"targets are 0 .. {vocabulary - 1}, or {IGNORE} for tokens without a loss, got "
            f"{int(wrong[0])} ({wrong.size} of {targets.size} are outside)"
        )
    return int(counted.size)


@op
def largest_logit(logits: Array) -> Array:
    """[...] the largest logit of each token among the columns held here [..., n]; -inf of none."""
    if not logits.shape[-1]:
        xp = array_namespace(logits)
        return xp.full(logits.shape[:-1], -float("inf"), wide(logits).dtype)
    return wide(logits).max(axis=-1)


@op
def loss_sums(logits: Array, targets: Array, maximum: Array, classes: RankPart) -> Array:
    """[2, ...]: the columns' parts of S and of z_y - m.

    The columns held here are the ``classes``; ``maximum`` [...] is that of all. `loss` takes what
    these add up to over the devices.
    """
    count_targets(targets, classes.extent)
    xp = array_namespace(logits, targets, maximum)
    if not logits.shape[-1]:  # more ranks than classes
        return xp.zeros((2, *logits.shape[:-1]), wide(logits).dtype)
    shifted = wide(logits) - maximum[..., None]
    at, here = local_index(targets, classes.start, logits.shape[-1])
    here &= _counts(targets)
    picked = xp.take_along_axis(shifted, at[..., None], axis=-1)[..., 0]
    return xp.stack([xp.exp(shifted).sum(axis=-1), xp.where(here, picked, 0)])


@op
def loss(sums: Array, targets: Array, count: float) -> Array:
    """The loss, a scalar array, from what `loss_sums` of all devices add up to."""
    check_count(count)
    exponentials, picked = sums
    losses = array_namespace(sums).log(exponentials) - picked
    return (losses * _counts(targets)).sum() / count


@op
def logits_grad(
    logits: Array,
    targets: Array,
    maximum: Array,
    sums: Array,
    scale: Any = 1.0,
    *,
    classes: RankPart,
    count: float,
) -> Array:
    """dlogits [..., n] of the columns held here; ``maximum`` and ``sums`` are of all columns. Where
    1 / count is too small for float16, ``scale`` the loss."""
    check_count(count)
    if not logits.shape[-1]:
        return logits.copy()
    xp = array_namespace(logits)
    p = xp.exp(wide(logits) - maximum[..., None]) / sums[0][..., None]
    at, here = local_index(targets, classes.start, logits.shape[-1])
    here &= _counts(targets)
    tokens = p.reshape(-1, p.shape[-1])  # a view: p is new
    tokens[xp.arange(len(tokens)), at.ravel()] -= here.ravel()
    p *= _counts(targets)[..., None] * (float(scale) / count)
    return rounded(p, logits)


def _counts(targets: Array) -> Array:
    """Whether each token has a loss."""
    return targets.astype("int64") != IGNORE


def check_count(count: float) -> None:
    if not count > 0:
        raise KernelError(
            f"a loss is a sum over a count above 0, got {count}; if all targets are ignored, pass 1"
        )
