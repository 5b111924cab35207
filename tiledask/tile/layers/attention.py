"""Attention: each query looks at the keys before it, any query head at any kv head.

    q [b, 4, s, e]    heads 0 1 2 3        kv_of = (0, 0, 1, 1): grouped (GQA)
                            | | | |                (0, 1, 2, 3): multi-head (MHA)
    k, v [b, 2, t, e]       0 0 1 1                (0, 0, 0, 0): multi-query (MQA)

A device that holds some of the query heads holds the kv heads that they look at, and its own map:
of 8 heads over 2 kv heads, the device with query heads 3, 4 and 5 has both, with (0, 1, 1).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, accumulator, array_namespace
from tiledask.tile.layers.operands import check_floats, check_shape, rounded, wide

__all__ = [
    "KeptAttention",
    "attention",
    "attention_grad",
    "attention_weights",
    "by_head",
    "merged",
    "shared_heads",
    "softmax",
    "softmax_grad",
]


def shared_heads(query_heads: int, kv_heads: int) -> tuple[int, ...]:
    """The kv head of each query head, equally many neighbours sharing one.

    Ainslie et al., arXiv:2305.13245. Raises KernelError unless kv_heads divides query_heads.

    >>> shared_heads(6, 2)
    (0, 0, 0, 1, 1, 1)
    """
    if kv_heads < 1 or query_heads % kv_heads or query_heads < 1:
        raise KernelError(
            f"kv heads divide query heads, got {kv_heads} and {query_heads}; or say which kv head "
            f"each query head looks at: kv_of=(...), {query_heads} numbers"
        )
    return tuple(i // (query_heads // kv_heads) for i in range(query_heads))


def by_head(x: Array, width: int) -> Array:
    """[b, s, heads e] as [b, heads, s, e], with e = ``width``; a view."""
    return x.reshape(*x.shape[:2], x.shape[2] // width, width).swapaxes(1, 2)


def merged(x: Array) -> Array:
    """[b, heads, s, e] as [b, s, heads e]: `by_head` undone."""
    b, heads, s, e = x.shape
    return x.swapaxes(1, 2).reshape(b, s, heads * e)


def softmax(x: Array) -> tuple[Array, Array]:
    """(exp(x) over its sum along the last axis, kept); keeps y.

    >>> softmax(np.array([0.0, 0.0, -np.inf]))[0].tolist()
    [0.5, 0.5, 0.0]
    """
    check_floats(x=x)
    y = rounded(_softmax_in(x.astype(accumulator(x.dtype))), x)
    return y, y


def _softmax_in(y: Array) -> Array:
    """``y``, in which its own softmax was computed."""
    y -= y.max(axis=-1, keepdims=True)
    array_namespace(y).exp(y, out=y)
    y /= y.sum(axis=-1, keepdims=True)
    return y


def softmax_grad(dy: Array, kept: Array) -> Array:
    """dx of `softmax`: y (dy - the sum of dy y)."""
    y, d = wide(kept), wide(dy)
    dx = d - (d * y).sum(axis=-1, keepdims=True)
    dx *= y
    return rounded(dx, dy)


class KeptAttention(NamedTuple):
    """What attention keeps: its operands and the probabilities."""

    q: Array
    k: Array
    v: Array
    p: Array
    """[b, query heads, s, t], in the operands' type."""
    kv_of: tuple[int, ...]
    scale: float


def attention(
    q: Array,
    k: Array,
    v: Array,
    kv_of: Sequence[int] | None = None,
    causal: bool = True,
    scale: float | None = None,
    offset: int = 0,
) -> tuple[Array, KeptAttention]:
    """(softmax(scale q k^T) v [b, query heads, s, f], kept), Vaswani et al., arXiv:1706.03762.

    q [b, query heads, s, e], k [b, kv heads, t, e], v [b, kv heads, t, f]. ``kv_of`` is the kv
    head of each query head, by default `shared_heads`; ``scale`` is 1/sqrt(e) by default. With
    ``causal``, query i looks at keys 0 .. offset + i: ``offset`` is the position of the first
    query among the keys, for a part of a sequence.

    Of halves, scores, softmax and sums are float32; what is rounded is p and the result.

    >>> one = np.ones((1, 1, 2, 4))
    >>> y, kept = attention(one, one, one)
    >>> kept.p[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    check_floats(q=q, k=k, v=v)
    kv_of = _checked(q, k, v, kv_of, causal, offset)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    p = attention_weights(q, k, kv_of, causal, scale, offset)
    y = wide(p) @ _per_query(v, kv_of)
    return rounded(y, q), KeptAttention(q, k, v, p, kv_of, scale)


def attention_weights(
    q: Array,
    k: Array,
    kv_of: tuple[int, ...],
    causal: bool = True,
    scale: float | None = None,
    offset: int = 0,
) -> Array:
    """softmax(scale q k^T) [b, query heads, s, t], the p that `attention` keeps."""
    xp = array_namespace(q, k)
    scores = wide(q) @ _per_query(k, kv_of).swapaxes(-1, -2)
    scores *= q.shape[-1] ** -0.5 if scale is None else scale
    if causal:
        s, t = scores.shape[-2:]
        later = xp.arange(t) > xp.arange(s)[:, None] + offset
        xp.copyto(scores, -np.inf, where=later)
    return rounded(_softmax_in(scores), q)


def attention_grad(dy: Array, kept: KeptAttention) -> tuple[Array, Array, Array]:
    """(dq, dk, dv) of `attention`; a kv head's gradient is the sum over its query heads."""
    q, k, v, p, kv_of, scale = kept
    check_floats(dy=dy, q=q)
    d, wide_p = wide(dy), wide(p)
    dp = d @ _per_query(v, kv_of).swapaxes(-1, -2)
    ds = softmax_grad(dp, wide_p)
    ds *= scale
    dq = ds @ _per_query(k, kv_of)
    dk = _summed(ds.swapaxes(-1, -2) @ wide(q), kv_of, k.shape[1])
    dv = _summed(wide_p.swapaxes(-1, -2) @ d, kv_of, v.shape[1])
    return rounded(dq, dy), rounded(dk, dy), rounded(dv, dy)


def _per_query(x: Array, kv_of: tuple[int, ...]) -> Array:
    """[b, query heads, t, e]: of each query head its kv head; the same array if that is all."""
    x = wide(x)
    return x if kv_of == tuple(range(x.shape[1])) else x[:, list(kv_of)]


def _summed(d: Array, kv_of: tuple[int, ...], kv_heads: int) -> Array:
    """[b, kv heads, t, e]: the transpose of `_per_query`; zeros for a head that nobody looks at."""
    if kv_of == tuple(range(kv_heads)):
        return d
    heads = [[i for i, kv in enumerate(kv_of) if kv == g] for g in range(kv_heads)]
    return array_namespace(d).stack([d[:, of].sum(axis=1) for of in heads], axis=1)


def _checked(
    q: Array, k: Array, v: Array, kv_of: Sequence[int] | None, causal: bool, offset: int
) -> tuple[int, ...]:
    check_shape("q", q, (None,) * 4, "batch, heads, tokens, width")
    b, heads, _, e = q.shape
    check_shape("k", k, (b, None, None, e), "batch, kv heads, tokens, width of q")
    check_shape("v", v, (*k.shape[:3], None), "batch, kv heads and tokens of k, any width")
    if kv_of is None:
        kv_of = shared_heads(heads, k.shape[1])
    kv_of = tuple(int(g) for g in kv_of)
    if len(kv_of) != heads or not all(0 <= g < k.shape[1] for g in kv_of):
        raise KernelError(
            f"kv_of has, for each of {heads} query heads, one of the kv heads 0 .. "
            f"{k.shape[1] - 1}, got {kv_of}"
        )
    if causal and offset < 0:
        raise KernelError(
            f"each query looks at one key at least, so offset is 0 or more, got {offset}; leave "
            f"out queries that come before all keys"
        )
    return kv_of
