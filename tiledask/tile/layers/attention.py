"""Attention: each query looks at the keys before it, any query head at any kv head.

    q [b, 4, s, e]    heads 0 1 2 3        kv_of = (0, 0, 1, 1): grouped (GQA)
                            | | | |                (0, 1, 2, 3): multi-head (MHA)
    k, v [b, 2, t, e]       0 0 1 1                (0, 0, 0, 0): multi-query (MQA)

A device that holds some of the query heads holds the kv heads that they look at, and its own map:
of 8 heads over 2 kv heads, the device with query heads 3, 4 and 5 has both, with (0, 1, 1).

Rotary positions turn pairs of a head's columns by an angle that grows with position:

    columns   0  1 .. w/2-1 | w/2 .. w-1 | w .. e-1
    pair      (j, j + w/2)  by position base^(-2j/w)     the rest passes

Column j is paired with j + w/2, as in checkpoints of Hugging Face. The paper, Su et al.
(arXiv:2104.09864), pairs 2j with 2j + 1: the same after a permutation of columns of wq and wk.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from tiledask.errors import KernelError
from tiledask.tile import fused
from tiledask.tile.backend import (
    HALVES,
    Array,
    accumulator,
    array_namespace,
    as_dtype,
    name_of,
    namespace,
    to_numpy,
)
from tiledask.tile.gemm import batched
from tiledask.tile.layers.by_name import layer
from tiledask.tile.layers.operands import check_integers, rounded, wide

__all__ = ["Angles", "Heads", "attention", "attention_grad", "rotary_angles", "rotate"]
__all__ += ["rotate_grad", "shared_heads"]


class Heads(NamedTuple):
    """How many heads the weights at hand have; equally many query heads share a kv head."""

    query: int
    kv: int
    width: int  # Columns of a head

    @property
    def columns(self) -> tuple[int, int, int]:
        """Columns of wq, wk and wv."""
        kv = self.kv * self.width
        return self.query * self.width, kv, kv


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


@layer("qkv:bsw -> bsc", returns="p")
def attention(qkv: Array, heads: Heads, kv_of: tuple[int, ...]) -> tuple[Array, Array]:
    """softmax(q k^T / sqrt(e)) v [b, s, query heads e], of q, k and v side by side [b, s, columns];
    saves the softmax, p [b, query heads, s, s].

    ``heads`` are those of q, those of k and of v, and e; ``kv_of`` is the kv head of each query
    head. Query i looks at keys 0 .. i. Vaswani et al., arXiv:1706.03762.

    Of halves, scores, softmax and sums are float32; what is rounded is the result and p, and on a
    GPU the scores' gradient, for tensor cores to multiply.

    >>> attention(np.ones((1, 2, 12)), (1, 1, 4), (0,))[1]["p"][0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    xp, (q, k, v) = array_namespace(qkv), map(_operand, _split(qkv, heads))
    scores = _product(q, _per_query(k, kv_of).swapaxes(-1, -2), heads[2] ** -0.5)
    at = xp.arange(scores.shape[-1])
    xp.copyto(scores, -np.inf, where=at > at[:, None])
    largest = scores.max(axis=-1, keepdims=True)
    if fused.takes(qkv):
        p = fused.run("softmax", scores, largest, fused.total("exponentials", scores, largest))
    else:
        scores -= largest
        xp.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        p = rounded(scores, qkv)
    return _merged(rounded(_product(_operand(p), _per_query(v, kv_of)), qkv)), p


@attention.grad
def attention_grad(dy: Array, qkv: Array, p: Array, heads: Heads, kv_of: tuple[int, ...]) -> Array:
    """dqkv; a kv head's gradient is the sum over its query heads."""
    q, k, v, d, p = map(_operand, (*_split(qkv, heads), _by_head(dy, heads[2]), p))
    dv = _summed(_product(p.swapaxes(-1, -2), d), kv_of, heads[1])
    dp, scale = _product(d, _per_query(v, kv_of).swapaxes(-1, -2)), heads[2] ** -0.5
    if fused.takes(p):
        ds = fused.run("softmax_grad", dp, p, fused.total("products", dp, p), scale)
    else:
        p = wide(p)
        ds = dp - (dp * p).sum(axis=-1, keepdims=True)
        ds *= p
        ds *= scale
        ds = rounded(ds, q)
    dq = _product(ds, _per_query(k, kv_of))
    dk = _summed(_product(ds.swapaxes(-1, -2), q), kv_of, heads[1])
    del dp, ds  # the largest, before these are copied
    found = [_merged(rounded(each, dy)) for each in (dq, dk, dv)]
    return array_namespace(dy).concatenate(found, axis=-1)


def _operand(x: Array) -> Array:
    """``x`` as it is multiplied: halves widened, but for a GPU's tensor cores, which take them."""
    return wide(x) if isinstance(x, np.ndarray) else x


def _product(a: Array, b: Array, scale: float = 1.0) -> Array:
    """scale a @ b in the type that is summed in, of operands [batch, heads, ...]."""
    if name_of(a.dtype) in HALVES:
        return batched(a, b, scale)
    product = a @ b
    if scale != 1:
        product *= scale
    return product


def _per_query(x: Array, kv_of: tuple[int, ...]) -> Array:
    """[b, query heads, t, e]: of each query head its kv head; the same array if that is all."""
    return x if kv_of == tuple(range(x.shape[1])) else x[:, list(kv_of)]


def _summed(d: Array, kv_of: tuple[int, ...], kv_heads: int) -> Array:
    """[b, kv heads, t, e]: the transpose of `_per_query`; zeros for a head that nobody looks at."""
    if kv_of == tuple(range(kv_heads)):
        return d
    heads = [[i for i, kv in enumerate(kv_of) if kv == g] for g in range(kv_heads)]
    return array_namespace(d).stack([d[:, of].sum(axis=1) for of in heads], axis=1)


# -- rotary positions ------------------------------------------------------------------------------


class Angles(NamedTuple):
    """What turns a head's columns: cosine and sine [tokens, w/2] of each angle."""

    cos: Array
    sin: Array


def rotary_angles(
    positions: Any,
    width: int,
    base: float = 10_000.0,
    dtype: DTypeLike = "float32",
    xp: str = "numpy",
) -> Angles:
    """The angles of tokens at ``positions`` [tokens], of heads whose first ``width`` columns turn.

    Angles are computed in float64 and rounded to the accumulator of ``dtype`` only as sine and
    cosine, because float32 angles of far positions are wrong in the third digit.

    >>> rotary_angles(np.arange(2), 4).sin.round(4).tolist()
    [[0.0, 0.0], [0.8414999842643738, 0.009999999776482582]]
    """
    check_integers("positions", positions)
    if width < 2 or width % 2:
        raise KernelError(f"columns turn in pairs, so width is 2, 4, ..., got {width}")
    frequencies = base ** (-2.0 * np.arange(width // 2) / width)
    angles = to_numpy(positions)[:, None] * frequencies  # [tokens, width/2]
    module, kind = namespace(xp), accumulator(as_dtype(dtype))
    return Angles(*(module.asarray(f(angles).astype(kind)) for f in (np.cos, np.sin)))


@layer("qkv:bsw -> bsw")
def rotate(qkv: Array, angles: Angles, heads: Heads) -> Array:
    """q and k turned, and v as it is, side by side [b, s, columns].

    >>> angles = rotary_angles(np.array([1]), 2, dtype="float64")
    >>> rotate(np.array([[[1.0, 0.0, 0.0, 1.0, 1.0, 0.0]]]), angles, (1, 1, 2))[0].round(4).tolist()
    [[[0.5403, 0.8415, -0.8415, 0.5403, 1.0, 0.0]]]
    """
    n, (tokens, half) = (heads[0] + heads[1]) * heads[2], angles.cos.shape
    if qkv.shape[1] != tokens or heads[2] < 2 * half:
        raise KernelError(
            f"angles are of {tokens} tokens and {2 * half} columns, got {qkv.shape[1]} tokens and "
            f"heads of {heads[2]}; make rotary_angles of their positions"
        )
    x, (cos, sin) = _by_head(qkv[..., :n], heads[2]), angles
    if fused.takes(qkv):
        made = qkv.copy()
        y, one, other = _by_head(made[..., :n], heads[2]), slice(half), slice(half, 2 * half)
        fused.run("rotate", x[..., one], x[..., other], cos, sin, y[..., one], y[..., other])
        return made
    x = wide(x)
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    xp, turned = array_namespace(x), [left * cos - right * sin, left * sin + right * cos, rest]
    turned = _merged(rounded(xp.concatenate(turned, axis=-1), qkv))
    return xp.concatenate([turned, qkv[..., n:]], axis=-1)


@rotate.grad
def rotate_grad(dy: Array, angles: Angles, heads: Heads) -> Array:
    """dqkv: dq and dk turned back, as a rotation's transpose is its inverse."""
    dx: Array = rotate.forward(dy, Angles(angles.cos, -angles.sin), heads)
    return dx


# -- q, k and v, by head ---------------------------------------------------------------------------


def _by_head(x: Array, width: int) -> Array:
    """[b, s, heads e] as [b, heads, s, e], with e = ``width``; a view."""
    return x.reshape(*x.shape[:2], x.shape[2] // width, width).swapaxes(1, 2)


def _merged(x: Array) -> Array:
    """[b, heads, s, e] as [b, s, heads e]: `_by_head` undone."""
    b, heads, s, e = x.shape
    return x.swapaxes(1, 2).reshape(b, s, heads * e)


def _split(qkv: Array, heads: Heads) -> tuple[Array, Array, Array]:
    query, kv, width = heads
    every = _by_head(qkv, width)
    return every[:, :query], every[:, query : query + kv], every[:, query + kv :]
