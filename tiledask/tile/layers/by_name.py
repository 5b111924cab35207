"""The kernels of layers by name, as programs call them: arrays in, arrays out, nothing kept.

    do linear x w b          linear(x, w, b) -> y
    do linear_grad_input     dy w^T          what a backward needs is among what it reads

What a program tells a kernel besides (``heads``, a `RankPart`) comes by name. Kernels that change
what they are given return None.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from tiledask.plan.intervals import ends_of
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.activations import (
    KeptGate,
    gelu,
    gelu_grad,
    relu,
    relu_grad,
    silu,
    silu_grad,
    swiglu,
    swiglu_grad,
)
from tiledask.tile.layers.attention import (
    KeptAttention,
    attention,
    attention_grad,
    attention_weights,
    by_head,
    merged,
)
from tiledask.tile.layers.convolution.conv import (
    KeptConv,
    conv2d,
    conv2d_grad_input,
    conv2d_grad_weight,
)
from tiledask.tile.layers.convolution.im2col import Pair, Sides, windows
from tiledask.tile.layers.convolution.pooling import (
    KeptMaxPool,
    KeptMeanPool,
    avg_pool2d,
    avg_pool2d_grad,
    max_pool2d,
    max_pool2d_grad,
)
from tiledask.tile.layers.cross_entropy import (
    LossRule,
    count_targets,
    local_maximum,
    local_sums,
    logits_grad,
    loss_of_sums,
)
from tiledask.tile.layers.embedding import KeptEmbedding, embedding, embedding_grad
from tiledask.tile.layers.linear import linear, linear_grad_input, linear_grad_weight
from tiledask.tile.layers.norms import (
    KeptNorm,
    layer_norm,
    layer_norm_grad,
    rms_norm,
    rms_norm_grad,
)
from tiledask.tile.layers.operands import rounded, wide
from tiledask.tile.layers.rotary import Angles, rotate, rotate_grad

__all__ = ["KERNELS", "RankPart"]


class RankPart(NamedTuple):
    """The indices of a dimension that are here."""

    start: int
    stop: int
    extent: int
    """Of all ranks together."""

    @property
    def here(self) -> slice:
        return slice(self.start, self.stop)


# -- linear layers, norms -------------------------------------------------------------------------


def _linear(x: Array, w: Array, b: Array | None = None, turned: bool = False) -> Array:
    return linear(x, w.T if turned else w, b)[0]


def _linear_grad_input(dy: Array, w: Array, turned: bool = False) -> Array:
    return linear_grad_input(dy, w.T if turned else w)


def _linear_grad_weight(dy: Array, x: Array, turned: bool = False) -> tuple[Array, Array]:
    dw, db = linear_grad_weight(dy, x)
    return (dw.T if turned else dw), db


def _layer_norm(x: Array, w: Array, b: Array | None = None, eps: float = 1e-5) -> tuple[Array, ...]:
    y, kept = layer_norm(x, w, b, eps)
    return y, kept.inverse, kept.mean


def _layer_norm_grad(
    dy: Array, x: Array, inverse: Array, mean: Array, w: Array, b: Array | None = None
) -> tuple[Array, ...]:
    return layer_norm_grad(dy, KeptNorm(x, inverse, mean), w, b)


def _rms_norm(x: Array, w: Array, eps: float = 1e-6) -> tuple[Array, ...]:
    y, kept = rms_norm(x, w, eps)
    return y, kept.inverse


def _rms_norm_grad(dy: Array, x: Array, inverse: Array, w: Array) -> tuple[Array, ...]:
    return rms_norm_grad(dy, KeptNorm(x, inverse, 0), w)


def _add(x: Array, y: Array) -> Array:
    return rounded(wide(x) + wide(y), x)


def _join(*parts: Array, dim: int = -1) -> Array:
    return array_namespace(*parts).concatenate(parts, axis=dim)


def _cut(x: Array, widths: tuple[int, ...]) -> tuple[Array, ...]:
    xp, ends = array_namespace(x), ends_of(widths)
    return tuple(xp.ascontiguousarray(x[..., a:b]) for a, b in pairwise(ends))


# -- activations ----------------------------------------------------------------------------------


def _swiglu(z: Array) -> Array:
    n = z.shape[-1] // 2
    return swiglu(z[..., :n], z[..., n:])[0]


def _swiglu_grad(dy: Array, z: Array) -> Array:
    n = z.shape[-1] // 2
    return _join(*swiglu_grad(dy, KeptGate(z[..., :n], z[..., n:])))


# -- attention ------------------------------------------------------------------------------------

_Heads = tuple[int, int, int]
"""Query heads and kv heads here, and the columns of each."""


def _apart(qkv: Array, heads: _Heads) -> list[Array]:
    query, kv, width = heads
    ends = [0, query * width, (query + kv) * width, (query + 2 * kv) * width]
    return [by_head(qkv[..., ends[i] : ends[i + 1]], width) for i in range(3)]


def _attention(
    qkv: Array,
    heads: _Heads,
    kv_of: tuple[int, ...],
    causal: bool = True,
    scale: float | None = None,
) -> tuple[Array, Array]:
    q, k, v = _apart(qkv, heads)
    c, kept = attention(q, k, v, kv_of, causal, scale)
    return merged(c), kept.p


def _attention_weights(
    qkv: Array,
    heads: _Heads,
    kv_of: tuple[int, ...],
    causal: bool = True,
    scale: float | None = None,
) -> Array:
    q, k, _ = _apart(qkv, heads)
    return attention_weights(q, k, kv_of, causal, scale)


def _attention_grad(
    dc: Array,
    qkv: Array,
    p: Array,
    heads: _Heads,
    kv_of: tuple[int, ...],
    scale: float | None = None,
) -> Array:
    width, (q, k, v) = heads[2], _apart(qkv, heads)
    kept = KeptAttention(q, k, v, p, kv_of, width**-0.5 if scale is None else scale)
    return _join(*map(merged, attention_grad(by_head(dc, width), kept)))


def _rotated(turn: Callable[..., Array], x: Array, heads: _Heads) -> Array:
    """q and k turned, and v as it is."""
    query, kv, width = heads
    n = (query + kv) * width
    turned = merged(turn(by_head(x[..., :n], width)))
    return _join(turned, x[..., n:])


def _rotate(qkv: Array, angles: Angles, heads: _Heads) -> Array:
    return _rotated(lambda x: rotate(x, angles)[0], qkv, heads)


def _rotate_grad(dy: Array, angles: Angles, heads: _Heads) -> Array:
    return _rotated(lambda x: rotate_grad(x, angles), dy, heads)


def _columns(*arrays: Array, columns: tuple[tuple[int, int], ...]) -> Array:
    parts = [x[..., a:b].reshape(-1) for x in arrays for a, b in columns]
    return array_namespace(*parts).concatenate(parts)


def _put_columns(
    flat: Array, *arrays: Array, columns: tuple[tuple[int, int], ...]
) -> tuple[Array, ...]:
    made, at = tuple(x.copy() for x in arrays), 0
    for x in made:
        for a, b in columns:
            view = x[..., a:b]
            view[...] = flat[at : at + view.size].reshape(view.shape)
            at += view.size
    return made


# -- convolution and pooling ----------------------------------------------------------------------


def _conv2d(x: Array, w: Array, b: Array | None = None, **told: Any) -> Array:
    return conv2d(x, w, b, **told)[0]


def _conv2d_grad_input(dy: Array, x: Array, w: Array, groups: int = 1, **told: Any) -> Array:
    return conv2d_grad_input(dy, KeptConv(x, windows(w.shape[2:], **told), groups), w)


def _conv2d_grad_weight(
    dy: Array, x: Array, size: Pair, groups: int = 1, **told: Any
) -> tuple[Array, Array]:
    return conv2d_grad_weight(dy, KeptConv(x, windows(size, **told), groups))


def _avg_pool2d(x: Array, size: Pair, stride: Pair = 1, padding: Sides = 0) -> Array:
    return avg_pool2d(x, size, stride, padding)[0]


def _avg_pool2d_grad(dy: Array, image: tuple[int, int], size: Pair, **told: Any) -> Array:
    return avg_pool2d_grad(dy, KeptMeanPool(windows(size, **told), image))


def _max_pool2d(x: Array, size: Pair, stride: Pair = 1, padding: Sides = 0) -> tuple[Array, ...]:
    y, kept = max_pool2d(x, size, stride, padding)
    return y, kept.winner


def _max_pool2d_grad(
    dy: Array, winner: Array, image: tuple[int, int], size: Pair, **told: Any
) -> Array:
    return max_pool2d_grad(dy, KeptMaxPool(winner, windows(size, **told), image))


def _add_channels(y: Array, b: Array) -> Array:
    return y + b[:, None, None]


def _channel_sums(dy: Array) -> Array:
    return dy.sum(axis=(0, 2, 3))


# -- parts of arrays ------------------------------------------------------------------------------


def _part(x: Array, dim: int, at: RankPart | tuple[int, int, int]) -> Array:
    return x[(slice(None),) * dim + (RankPart(*at).here,)].copy()


def _part_grad(dy: Array, dim: int, at: RankPart | tuple[int, int, int]) -> Array:
    start, stop, extent = at
    shape = (*dy.shape[:dim], extent, *dy.shape[dim + 1 :])
    dx = array_namespace(dy).zeros(shape, dy.dtype)
    dx[(slice(None),) * dim + (slice(start, stop),)] = dy
    return dx


def _reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def _zeros(like: Array, shape: tuple[int, ...]) -> Array:
    return array_namespace(like).zeros(shape, like.dtype)


# -- the first and the last layer -----------------------------------------------------------------


def _embedding(ids: Array, table: Array, rows: RankPart) -> Array:
    if not len(table):  # more ranks than rows: a row of zeros stands for none
        table = array_namespace(table).zeros((1, table.shape[1]), table.dtype)
        return embedding(ids, table, rows.extent, rows.extent)[0]
    return embedding(ids, table, rows.start, rows.extent)[0]


def _embedding_grad(dy: Array, ids: Array, rows: RankPart) -> Array:
    n = rows.stop - rows.start
    first = rows.start if n else rows.extent
    return embedding_grad(dy, KeptEmbedding(ids, first, max(n, 1)))[:n]


def _add_rows(x: Array, table: Array, tokens: RankPart | None = None) -> Array:
    return x + table[tokens.here if tokens else slice(x.shape[1])]


def _add_rows_grad(dy: Array, rows: int, tokens: RankPart | None = None) -> Array:
    total = dy.sum(axis=0)
    if len(total) == rows:
        return total
    whole = array_namespace(dy).zeros((rows, dy.shape[-1]), dy.dtype)
    whole[tokens.here if tokens else slice(len(total))] = total
    return whole


def _largest_logit(logits: Array) -> Array:
    if logits.shape[-1]:
        return local_maximum(logits)
    xp = array_namespace(logits)  # a rank without a class adds nothing
    return xp.full(logits.shape[:-1], -float("inf"), wide(logits).dtype)


def _loss_sums(
    logits: Array, targets: Array, maximum: Array, classes: RankPart, **told: Any
) -> Array:
    rule = LossRule(classes.extent, **told)
    count_targets(targets, rule)
    if logits.shape[-1]:
        return local_sums(logits, targets, maximum, rule, classes.start)
    sums = 3 if rule.smoothing else 2
    return array_namespace(logits).zeros((sums, *logits.shape[:-1]), wide(logits).dtype)


def _loss(sums: Array, targets: Array, classes: RankPart, count: float, **told: Any) -> Array:
    return loss_of_sums(sums, targets, LossRule(classes.extent, **told), count)


def _logits_grad(
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
    if not logits.shape[-1]:
        return logits.copy()
    rule = LossRule(classes.extent, **told)
    return logits_grad(float(scale), logits, targets, maximum, sums[0], rule, count, classes.start)


# -- gradients ------------------------------------------------------------------------------------


def _accumulate(total: Array, g: Array) -> None:
    total += g.astype(total.dtype, copy=False)


def _clear(x: Array) -> None:
    x[...] = 0


def _pack(*arrays: Array, dtype: str = "") -> Array:
    flat = array_namespace(*arrays).concatenate([x.reshape(-1) for x in arrays])
    return flat.astype(dtype, copy=False) if dtype else flat


def _hand_on(x: Array) -> Array:
    return x


KERNELS: dict[str, Callable[..., Any]] = {
    "accumulate": _accumulate,
    "add": _add,
    "add_bias": _add,
    "add_channels": _add_channels,
    "add_rows": _add_rows,
    "add_rows_grad": _add_rows_grad,
    "attention": _attention,
    "attention_grad": _attention_grad,
    "attention_weights": _attention_weights,
    "avg_pool2d": _avg_pool2d,
    "avg_pool2d_grad": _avg_pool2d_grad,
    "channel_sums": _channel_sums,
    "clear": _clear,
    "columns": _columns,
    "conv2d": _conv2d,
    "conv2d_grad_input": _conv2d_grad_input,
    "conv2d_grad_weight": _conv2d_grad_weight,
    "cut": _cut,
    "embedding": _embedding,
    "embedding_grad": _embedding_grad,
    "gelu": lambda z: gelu(z)[0],
    "gelu_grad": gelu_grad,
    "hand_on": _hand_on,
    "join": _join,
    "largest_logit": _largest_logit,
    "layer_norm": _layer_norm,
    "layer_norm_grad": _layer_norm_grad,
    "linear": _linear,
    "linear_grad_input": _linear_grad_input,
    "linear_grad_weight": _linear_grad_weight,
    "logits_grad": _logits_grad,
    "loss": _loss,
    "loss_sums": _loss_sums,
    "max_pool2d": _max_pool2d,
    "max_pool2d_grad": _max_pool2d_grad,
    "pack": _pack,
    "part": _part,
    "part_grad": _part_grad,
    "put_columns": _put_columns,
    "relu": lambda z: relu(z)[0],
    "relu_grad": relu_grad,
    "reshape": _reshape,
    "rms_norm": _rms_norm,
    "rms_norm_grad": _rms_norm_grad,
    "rotate": _rotate,
    "rotate_grad": _rotate_grad,
    "silu": lambda z: silu(z)[0],
    "silu_grad": silu_grad,
    "swiglu": _swiglu,
    "swiglu_grad": _swiglu_grad,
    "zeros": _zeros,
}
"""By name: what computes it."""
