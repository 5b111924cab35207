"""Cross-entropy of logits, in pieces that never need all logits in one place.

For one token with logits z, target y, vocabulary V and smoothing e, with m the largest logit:

    loss = log S - (1 - e) (z_y - m) - e/V T
    S = sum over c of exp(z_c - m),   T = sum over c of (z_c - m)
    dz_c = exp(z_c - m) / S - (1 - e) [c = y] - e/V

m is a maximum and S, z_y - m and T are sums over classes, so devices that hold some columns each

    largest_logit    -- maximum over devices -->  m
    loss_sums        -- sum over devices ------>  S, z_y - m, and T if e > 0
    loss             the same number everywhere
    logits_grad      each for its own columns

Smoothing gives each of the V classes e/V, the target's included (Szegedy et al., CVPR 2016,
section 7; so does PyTorch). Megatron gives e/(V-1) to the other classes and 1 - e to the target:
that is smoothing = e V/(V-1) here. V is the whole vocabulary. A target of ``ignore`` has no loss
and no gradient.
"""

from typing import Any

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import RankPart, Saved, op
from tiledask.tile.layers.operands import check, check_integers, local_index, rounded, wide

__all__ = ["count_targets", "cross_entropy", "cross_entropy_grad"]

IGNORE = -100


def cross_entropy(
    logits: Array,
    targets: Array,
    smoothing: float = 0.0,
    ignore: int = IGNORE,
    count: float | None = None,
) -> tuple[Array, Saved]:
    """(loss, saved) for logits [..., V] and targets [...]; the loss is a scalar array.

    The sum over tokens whose target is not ``ignore``, over ``count``: by default the number of
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
    options: Saved = {"classes": classes, "smoothing": smoothing, "ignore": ignore}
    sums = loss_sums(logits, targets, maximum, **options)
    options["count"] = int(_counts(targets, ignore).sum()) if count is None else count
    saved = {"logits": logits, "targets": targets, "maximum": maximum, "sums": sums}
    return loss(sums, targets, **options), saved | options


def cross_entropy_grad(dloss: float, saved: Saved) -> Array:
    """dlogits of `cross_entropy`. ``dloss`` is 1, or the scale of a scaled loss."""
    return logits_grad(**saved, scale=dloss)


def count_targets(
    targets: Array, vocabulary: int, smoothing: float = 0.0, ignore: int = IGNORE
) -> int:
    """How many targets have a loss. Raises KernelError for those outside of the vocabulary."""
    if not 0 <= smoothing <= 1:
        raise KernelError(f"smoothing is from 0 to 1, got {smoothing}; 0.1 is usual")
    check_integers("targets", targets)
    counted = targets[_counts(targets, ignore)]
    wrong = counted[(counted < 0) | (counted >= vocabulary)]
    if wrong.size:
        raise KernelError(
            f"targets are 0 .. {vocabulary - 1}, or {ignore} for tokens without a loss, got "
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
def loss_sums(
    logits: Array,
    targets: Array,
    maximum: Array,
    classes: RankPart,
    smoothing: float = 0.0,
    ignore: int = IGNORE,
) -> Array:
    """[2, ...] or, with smoothing, [3, ...]: the columns' parts of S, of z_y - m and of T.

    The columns held here are the ``classes``; ``maximum`` [...] is that of all. `loss` takes what
    these add up to over the devices.
    """
    count_targets(targets, classes.extent, smoothing, ignore)
    xp = array_namespace(logits, targets, maximum)
    if not logits.shape[-1]:  # more ranks than classes
        return xp.zeros((3 if smoothing else 2, *logits.shape[:-1]), wide(logits).dtype)
    shifted = wide(logits) - maximum[..., None]
    at, here = local_index(targets, classes.start, logits.shape[-1])
    here &= _counts(targets, ignore)
    picked = xp.take_along_axis(shifted, at[..., None], axis=-1)[..., 0]
    found = [xp.exp(shifted).sum(axis=-1), xp.where(here, picked, 0)]
    return xp.stack([*found, shifted.sum(axis=-1)] if smoothing else found)


@op
def loss(
    sums: Array,
    targets: Array,
    classes: RankPart,
    count: float,
    smoothing: float = 0.0,
    ignore: int = IGNORE,
) -> Array:
    """The loss, a scalar array, from what `loss_sums` of all devices add up to."""
    check_count(count)
    exponentials, picked, *total = sums
    losses = array_namespace(sums).log(exponentials) - (1 - smoothing) * picked
    if total:
        losses = losses - smoothing / classes.extent * total[0]
    return (losses * _counts(targets, ignore)).sum() / count


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
    smoothing: float = 0.0,
    ignore: int = IGNORE,
) -> Array:
    """dlogits [..., n] of the columns held here; ``maximum`` and ``sums`` are of all columns. Where
    1 / count is too small for float16, ``scale`` the loss."""
    check_count(count)
    if not logits.shape[-1]:
        return logits.copy()
    xp = array_namespace(logits)
    p = xp.exp(wide(logits) - maximum[..., None]) / sums[0][..., None]
    at, here = local_index(targets, classes.start, logits.shape[-1])
    here &= _counts(targets, ignore)
    tokens = p.reshape(-1, p.shape[-1])  # a view: p is new
    tokens[xp.arange(len(tokens)), at.ravel()] -= (1 - smoothing) * here.ravel()
    if smoothing:
        p -= smoothing / classes.extent
    p *= _counts(targets, ignore)[..., None] * (float(scale) / count)
    return rounded(p, logits)


def _counts(targets: Array, ignore: int) -> Array:
    """Whether each token has a loss."""
    return targets.astype("int64") != ignore


def check_count(count: float) -> None:
    if not count > 0:
        raise KernelError(
            f"a loss is a sum over a count above 0, got {count}; if all targets are ignored, pass 1"
        )
