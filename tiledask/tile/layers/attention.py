"""Attention: each query looks at the keys before it, any query head at any kv head.

    q [b, 4, s, e]    heads 0 1 2 3        kv_of = (0, 0, 1, 1): grouped (GQA)
                            | | | |                (0, 1, 2, 3): multi-head (MHA)
    k, v [b, 2, t, e]       0 0 1 1                (0, 0, 0, 0): multi-query (MQA)

A device that holds some of the query heads holds the kv heads that they look at, and its own map:
of 8 heads over 2 kv heads, the device with query heads 3, 4 and 5 has both, with (0, 1, 1).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, accumulator, array_namespace
from tiledask.tile.layers.by_name import layer, op
from tiledask.tile.layers.operands import rounded, wide
from tiledask.tile.layers.rotary import Angles, rotate

__all__ = [
    "attention",
    "attention_grad",
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
            f"kv heads divide query heads, got {kv_heads} and {query_heads}; or give the kv head "
            f"of each query head: kv_of=(...), {query_heads} numbers"
        )
    return tuple(i // (query_heads // kv_heads) for i in range(query_heads))


def by_head(x: Array, width: int) -> Array:
    """[b, s, heads e] as [b, heads, s, e], with e = ``width``; a view."""
    return x.reshape(*x.shape[:2], x.shape[2] // width, width).swapaxes(1, 2)


def merged(x: Array) -> Array:
    """[b, heads, s, e] as [b, s, heads e]: `by_head` undone."""
    b, heads, s, e = x.shape
    return x.swapaxes(1, 2).reshape(b, s, heads * e)


@layer("x:*n -> *n", program=False)
def softmax(x: Array) -> Array:
    """exp(x) over its sum along the last axis.

    >>> softmax(np.array([0.0, 0.0, -np.inf]))[0].tolist()
    [0.5, 0.5, 0.0]
    """
    return rounded(_softmax_in(x.astype(accumulator(x.dtype))), x)


def _softmax_in(y: Array) -> Array:
    """``y``, in which its own softmax was computed."""
    y -= y.max(axis=-1, keepdims=True)
    array_namespace(y).exp(y, out=y)
    y /= y.sum(axis=-1, keepdims=True)
    return y


@softmax.grad
def softmax_grad(dy: Array, y: Array) -> Array:
    """dx: y (dy - the sum of dy y)."""
    y, d = wide(y), wide(dy)
    dx = d - (d * y).sum(axis=-1, keepdims=True)
    dx *= y
    return rounded(dx, dy)


@layer("q:bhse k:bgte v:bgtf -> bhsf", returns="p", program=False)
def attention(
    q: Array,
    k: Array,
    v: Array,
    kv_of: Sequence[int] | None = None,
    causal: bool = True,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """softmax(scale q k^T) v [b, query heads, s, f]; saves the softmax, p [b, query heads, s, t].

    q [b, query heads, s, e], k [b, kv heads, t, e], v [b, kv heads, t, f]. ``kv_of`` is the kv
    head of each query head, by default `shared_heads`; ``scale`` is 1/sqrt(e) by default. With
    ``causal``, query i looks at keys 0 .. i. Vaswani et al., arXiv:1706.03762.

    Of halves, scores, softmax and sums are float32; what is rounded is the result and p.

    >>> one = np.ones((1, 1, 2, 4))
    >>> attention(one, one, one)[1]["p"][0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    kv_of = _kv_of(q, k, kv_of)
    p = _weights(q, k, kv_of, causal, scale)
    return rounded(wide(p) @ _per_query(v, kv_of), q), p


@attention.grad
def attention_grad(
    dy: Array,
    q: Array,
    k: Array,
    v: Array,
    p: Array,
    kv_of: Sequence[int] | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """(dq, dk, dv); a kv head's gradient is the sum over its query heads."""
    kv_of = _kv_of(q, k, kv_of)
    d, wide_p = wide(dy), wide(p)
    dp = d @ _per_query(v, kv_of).swapaxes(-1, -2)
    ds = softmax.backward(dp, wide_p)
    ds *= q.shape[-1] ** -0.5 if scale is None else scale
    dq = ds @ _per_query(k, kv_of)
    dk = _summed(ds.swapaxes(-1, -2) @ wide(q), kv_of, k.shape[1])
    dv = _summed(wide_p.swapaxes(-1, -2) @ d, kv_of, v.shape[1])
    return rounded(dq, dy), rounded(dk, dy), rounded(dv, dy)


def _kv_of(q: Array, k: Array, kv_of: Sequence[int] | None) -> tuple[int, ...]:
    heads, kv = q.shape[1], k.shape[1]
    kv_of = shared_heads(heads, kv) if kv_of is None else tuple(kv_of)
    if len(kv_of) != heads or not all(0 <= g < kv for g in kv_of):
        raise KernelError(
            f"kv_of has, for each of {heads} query heads, one of the kv heads 0 .. {kv - 1}, got "
            f"{kv_of}"
        )
    return kv_of


def _weights(
    q: Array, k: Array, kv_of: tuple[int, ...], causal: bool, scale: float | None
) -> Array:
    xp = array_namespace(q, k)
    scores = wide(q) @ _per_query(k, kv_of).swapaxes(-1, -2)
    scores *= q.shape[-1] ** -0.5 if scale is None else scale
    if causal:
        s, t = scores.shape[-2:]
        later = xp.arange(t) > xp.arange(s)[:, None]
        xp.copyto(scores, -np.inf, where=later)
    return rounded(_softmax_in(scores), q)


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


# -- of q, k and v side by side, as programs have them ---------------------------------------------

_Heads = tuple[int, int, int]
"""Query heads and kv heads here, and the columns of each."""


def _split(qkv: Array, heads: _Heads) -> tuple[Array, Array, Array]:
    query, kv, width = heads
    ends = [0, query * width, (query + kv) * width, (query + 2 * kv) * width]
    q, k, v = (by_head(qkv[..., ends[i] : ends[i + 1]], width) for i in range(3))
    return q, k, v


@op
def _attention(
    qkv: Array, heads: _Heads, kv_of: tuple[int, ...], causal: bool = True, scale: Any = None
) -> tuple[Array, Array]:
    c, p = attention.forward(*_split(qkv, heads), kv_of, causal, scale)
    return merged(c), p


@op
def _attention_grad(
    dc: Array, qkv: Array, p: Array, heads: _Heads, kv_of: tuple[int, ...], scale: Any = None
) -> Array:
    found = attention.backward(by_head(dc, heads[2]), *_split(qkv, heads), p, kv_of, scale)
    return array_namespace(dc).concatenate([merged(each) for each in found], axis=-1)


def _rotated(turn: Callable[..., Array], x: Array, angles: Angles, heads: _Heads) -> Array:
    """q and k turned, and v as it is."""
    query, kv, width = heads
    n = (query + kv) * width
    turned = merged(turn(by_head(x[..., :n], width), angles))
    return array_namespace(x).concatenate([turned, x[..., n:]], axis=-1)


@op
def _rotate(qkv: Array, angles: Angles, heads: _Heads) -> Array:
    return _rotated(rotate.forward, qkv, angles, heads)


@op
def _rotate_grad(dy: Array, angles: Angles, heads: _Heads) -> Array:
    return _rotated(rotate.backward, dy, angles, heads)
