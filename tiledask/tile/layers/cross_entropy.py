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
section 7; so does PyTorch). tensor2tensor and Megatron give e/(V-1) to the other classes and 1 - e
to the target: that is smoothing = e V/(V-1) here. V is the whole vocabulary: with that of one
device the loss is wrong as soon as there are two.
"""

from dataclasses import dataclass
from typing import Any

from tiledask.errors import KernelError
from tiledask.plan.whole import is_whole
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import RankPart, Saved, op
from tiledask.tile.layers.operands import check_floats, check_integers, check_shape, rounded, wide

__all__ = [
    "LossRule",
    "check_count",
    "count_targets",
    "cross_entropy",
    "cross_entropy_grad",
    "largest_logit",
    "logits_grad",
    "loss",
    "loss_sums",
]


@dataclass(frozen=True)
class LossRule:
    """The loss of a token, the same on every device."""

    vocabulary: int
    """Classes on all devices together."""
    smoothing: float = 0.0
    """Shared out evenly over all classes, from 0 to 1."""
    ignore: int = -100
    """Tokens with this target have no loss and no gradient."""

    def __post_init__(self) -> None:
        if not is_whole(self.vocabulary, 1):
            raise KernelError(f"a vocabulary has 1 class or more, got {self.vocabulary}")
        if not 0 <= self.smoothing <= 1:
            raise KernelError(f"smoothing is from 0 to 1, got {self.smoothing}; 0.1 is usual")


def cross_entropy(
    logits: Array,
    targets: Array,
    smoothing: float = 0.0,
    ignore: int = -100,
    count: float | None = None,
) -> tuple[Array, Saved]:
    """(loss, saved) for logits [..., V] and targets [...]; the loss is a scalar array.

    The sum over tokens whose target is not ``ignore``, over ``count``: by default the number of
    those tokens, which makes it their mean; 1 leaves the sum, and a micro-batch passes the number
    of the whole batch. Of halves the loss is float32: near 10, bfloat16 has steps of 1/16.

    Raises KernelError for targets outside of the vocabulary, and for a mean over no token.

    >>> import numpy as np
    >>> loss, _ = cross_entropy(np.zeros((2, 4)), np.array([3, -100]))
    >>> round(float(loss), 4)  # log 4
    1.3863
    """
    classes = RankPart(0, logits.shape[-1], logits.shape[-1])
    rule = LossRule(classes.extent, smoothing, ignore)
    counted = count_targets(targets, rule)
    told: Saved = {"classes": classes, "smoothing": smoothing, "ignore": ignore}
    told["count"] = counted if count is None else count
    maximum = largest_logit(logits)
    sums = _sums(logits, targets, maximum, rule, 0)
    arrays = {"logits": logits, "targets": targets, "maximum": maximum, "sums": sums}
    return loss(sums, targets, **told), arrays | told


def cross_entropy_grad(dloss: float, saved: Saved) -> Array:
    """dlogits of `cross_entropy`. ``dloss`` is 1, or the scale of a scaled loss."""
    return logits_grad(**saved, scale=dloss)


def count_targets(targets: Array, rule: LossRule) -> int:
    """How many targets have a loss. Raises KernelError for those outside of the vocabulary.

    >>> import numpy as np
    >>> count_targets(np.array([0, -100, 2]), LossRule(vocabulary=3))
    2
    """
    check_integers("targets", targets)
    counted = targets[_counts(targets, rule)]
    wrong = counted[(counted < 0) | (counted >= rule.vocabulary)]
    if wrong.size:
        raise KernelError(
            f"targets are 0 .. {rule.vocabulary - 1}, or {rule.ignore} for tokens without a loss, "
            f"got {int(wrong[0])} ({wrong.size} of {targets.size} are outside)"
        )
    return int(counted.size)


@op
def largest_logit(logits: Array) -> Array:
    """[...] the largest logit of each token among the columns held here [..., n]; -inf of none."""
    xp = check_floats(logits=logits)
    if not logits.shape[-1]:
        return xp.full(logits.shape[:-1], -float("inf"), wide(logits).dtype)
    return wide(logits).max(axis=-1)


@op
def loss_sums(
    logits: Array, targets: Array, maximum: Array, classes: RankPart, **told: Any
) -> Array:
    """[2, ...] or, with smoothing, [3, ...]: the columns' parts of S, of z_y - m and of T.

    The columns held here are the ``classes``; ``maximum`` [...] is that of all columns. The sum of
    these arrays over the devices is what `loss` takes.

    >>> import numpy as np
    >>> z, y, m = np.zeros((1, 3)), np.array([4]), np.zeros(1)
    >>> loss_sums(z, y, m, RankPart(3, 6, 6), smoothing=0.1).tolist()
    [[3.0], [0.0], [0.0]]
    """
    rule = LossRule(classes.extent, **told)
    count_targets(targets, rule)
    return _sums(logits, targets, maximum, rule, classes.start)


def _sums(logits: Array, targets: Array, maximum: Array, rule: LossRule, first: int) -> Array:
    xp = check_floats(logits=logits)
    array_namespace(logits, targets, maximum)
    check_shape("targets", targets, logits.shape[:-1], "one for each token of the logits")
    check_shape("maximum", maximum, logits.shape[:-1], "one for each token of the logits")
    if not logits.shape[-1]:  # more ranks than classes
        sums = 3 if rule.smoothing else 2
        return xp.zeros((sums, *logits.shape[:-1]), wide(logits).dtype)
    shifted = wide(logits) - maximum[..., None]
    at, here = _local(targets, rule, first, logits.shape[-1])
    picked = xp.take_along_axis(shifted, at[..., None], axis=-1)[..., 0]
    found = [xp.exp(shifted).sum(axis=-1), xp.where(here, picked, 0)]
    return xp.stack([*found, shifted.sum(axis=-1)] if rule.smoothing else found)


@op
def loss(sums: Array, targets: Array, classes: RankPart, count: float, **told: Any) -> Array:
    """The loss, a scalar array, from what `loss_sums` of all devices add up to.

    Each device gets the same number. ``count`` is `count_targets`, 1 for the sum, or the number of
    tokens of the whole batch.
    """
    rule = LossRule(classes.extent, **told)
    check_count(count)
    exponentials, picked, *total = sums
    losses = array_namespace(sums).log(exponentials) - (1 - rule.smoothing) * picked
    if total:
        losses = losses - rule.smoothing / rule.vocabulary * total[0]
    return (losses * _counts(targets, rule)).sum() / count


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
    **told: Any,
) -> Array:
    """dlogits [..., n] of the columns held here; ``maximum`` and ``sums`` are of all columns.

    Of halves it is computed in float32 and rounded once. Where 1 / count is too small for float16,
    ``scale`` the loss.
    """
    xp, rule = check_floats(logits=logits), LossRule(classes.extent, **told)
    check_count(count)
    if not logits.shape[-1]:
        return logits.copy()
    p = xp.exp(wide(logits) - maximum[..., None]) / sums[0][..., None]
    at, here = _local(targets, rule, classes.start, logits.shape[-1])
    tokens = p.reshape(-1, p.shape[-1])  # a view: p is new
    tokens[xp.arange(len(tokens)), at.ravel()] -= (1 - rule.smoothing) * here.ravel()
    p -= rule.smoothing / rule.vocabulary
    p *= _counts(targets, rule)[..., None] * (float(scale) / count)
    return rounded(p, logits)


def _local(targets: Array, rule: LossRule, first: int, columns: int) -> tuple[Array, Array]:
    """(column here, whether it is the target's) of each token; column 0 stands for none."""
    at = targets.astype("int64") - first
    here = (at >= 0) & (at < columns) & _counts(targets, rule)
    return at * here, here


def _counts(targets: Array, rule: LossRule) -> Array:
    """Whether each token has a loss."""
    return targets.astype("int64") != rule.ignore


def check_count(count: float) -> None:
    """None; raises KernelError unless ``count`` is above 0."""
    if not count > 0:
        raise KernelError(
            f"a loss is a sum over a count above 0, got {count}; if all targets are ignored there "
            f"is no mean: pass count=1, or the count of the whole batch"
        )
