"""A decoder layer, forward and backward, that says of every tensor what it is kept for.

    x --norm-- a --q,k,v-- softmax(q k) v -- c --wo--(+x)-- x2 --norm-- m --w1-- z --gelu-- g --w2--(+x2)-- y

Operations are fused kernels: they compute in single precision, in registers, and only their
result is memory. ``keep(tensor, value)`` makes it memory. Biases are there, dropout is not.
Norm weights are stored as their distance from one, so that all weights can be drawn alike.
"""  # noqa: E501

from collections.abc import Callable
from math import prod

import numpy as np

from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.functions import gelu, gelu_grad

__all__ = [
    "RECOMPUTED",
    "attention_weights",
    "embed",
    "embed_grad",
    "head_backward",
    "head_forward",
    "layer_backward",
    "layer_forward",
    "layer_shapes",
    "views",
]

Arrays = dict[str, Array]
Keep = Callable[[str, Array], Array]
"""keep(tensor class, value): an array in the device's memory."""
Add = Callable[[Array, Array], None]
"""add(gradient, value): the value added to the gradient of a weight."""

KEPT, GRADIENT = "activations", "activation gradients"
RECOMPUTED = {
    "none": (),
    "selective": ("p",),
    "full": ("a", "q", "k", "v", "p", "c", "x2", "m", "z", "g"),
}
"""The tensors of ``saved`` that are not kept, by kind of recomputation."""
_SMALL = 1e-5


def layer_shapes(hidden: int, inner: int, ffn: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a layer's weights; ``inner`` and ``ffn`` are one device's heads x head width and
    MLP width.

    >>> sum(prod(shape) for shape in layer_shapes(768, 768, 3072).values())  # GPT-2's layer
    7087872
    """
    h = hidden
    into = {
        name: shape for n in "qkv" for name, shape in ((f"w{n}", (h, inner)), (f"b{n}", (inner,)))
    }
    return {
        "norm1": (2, h),
        **into,
        "wo": (inner, h),
        "bo": (h,),
        "norm2": (2, h),
        "w1": (h, ffn),
        "b1": (ffn,),
        "w2": (ffn, h),
        "b2": (h,),
    }


def views(flat: Array, shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """``flat`` [n] as consecutive arrays of these shapes."""
    found, at = {}, 0
    for name, shape in shapes.items():
        found[name] = flat[at : at + prod(shape)].reshape(shape)
        at += prod(shape)
    return found


def layer_forward(w: Arrays, x: Array, heads: int, keep: Keep) -> tuple[Array, Arrays]:
    """(y, saved) for x [b, s, h]; y is not kept yet: the caller knows what for."""
    a = keep(KEPT, _norm(x, w["norm1"]))
    q, k, v = (keep(KEPT, _linear(a, w[f"w{n}"], w[f"b{n}"])) for n in "qkv")  # [b, s, heads e]
    p = keep(KEPT, attention_weights(q, k, heads))  # [b, heads, s, s]
    c = keep(KEPT, _merged(_up(p) @ _by_head(v, heads)))
    x2 = keep(KEPT, _up(x) + _linear(c, w["wo"], w["bo"]))
    m = keep(KEPT, _norm(x2, w["norm2"]))
    z = keep(KEPT, _linear(m, w["w1"], w["b1"]))  # [b, s, ffn]
    g = keep(KEPT, gelu(_up(z)))
    y = _up(x2) + _linear(g, w["w2"], w["b2"])
    return y, {
        "x": x,
        "a": a,
        "q": q,
        "k": k,
        "v": v,
        "p": p,
        "c": c,
        "x2": x2,
        "m": m,
        "z": z,
        "g": g,
    }


def layer_backward(
    w: Arrays, grads: Arrays, saved: Arrays, dy: list[Array], heads: int, keep: Keep, add: Add
) -> Array:
    """dx; adds to ``grads``. Takes what it needs out of ``saved``, and dy out of its list, so that
    a tensor is gone when its last use is over."""

    def linear_back(dout: Array, name: str, into: str, last: bool = True) -> Array:
        """The gradient of the input, not kept yet."""
        x = saved.pop(into) if last else saved[into]
        flat_dout, flat_x = (_up(a).reshape(-1, a.shape[-1]) for a in (dout, x))
        add(grads[f"w{name}"], flat_x.T @ flat_dout)
        add(grads[f"b{name}"], flat_dout.sum(axis=0))
        return _up(dout) @ _up(w[f"w{name}"]).T

    d = dy.pop()
    dg = keep(GRADIENT, linear_back(d, "2", "g"))
    dz = keep(GRADIENT, gelu_grad(_up(dg), _up(saved.pop("z"))))
    del dg
    dm = keep(GRADIENT, linear_back(dz, "1", "m"))
    del dz
    d2 = keep(GRADIENT, _up(d) + _norm_back(dm, saved.pop("x2"), w["norm2"], grads["norm2"], add))
    del d, dm
    dc = keep(GRADIENT, linear_back(d2, "o", "c"))
    p = saved.pop("p")
    dp = keep(GRADIENT, _by_head(dc, heads) @ _by_head(saved.pop("v"), heads).swapaxes(-1, -2))
    dv = keep(GRADIENT, _merged(_up(p).swapaxes(-1, -2) @ _by_head(dc, heads)))
    del dc
    ds = keep(GRADIENT, _softmax_grad(_up(dp), _up(p)))
    del dp, p
    scale = (saved["q"].shape[-1] // heads) ** -0.5
    dq = keep(GRADIENT, _merged(_up(ds) @ _by_head(saved.pop("k"), heads)) * scale)
    dk = _merged(_up(ds).swapaxes(-1, -2) @ _by_head(saved.pop("q"), heads)) * scale
    dk = keep(GRADIENT, dk)
    del ds
    da = linear_back(dq, "q", "a", last=False) + linear_back(dk, "k", "a", last=False)
    da = keep(GRADIENT, da + linear_back(dv, "v", "a"))
    del dq, dk, dv
    dx = _norm_back(da, saved.pop("x"), w["norm1"], grads["norm1"], add)
    return keep(GRADIENT, _up(d2) + dx)


def attention_weights(q: Array, k: Array, heads: int) -> Array:
    """softmax(q k^T / sqrt(e)) [b, heads, s, s], each token looking at itself and those before."""
    q, k = _by_head(q, heads), _by_head(k, heads)
    xp, s = array_namespace(q), q.shape[-2]
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores += xp.triu(xp.full((s, s), -np.inf, np.float32), 1)
    scores = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)


def embed(w: Arrays, ids: Array, first: int = 0) -> Array:
    """[b, s, h] for ids [b, s], not kept yet. The rows held here begin with token ``first``; a
    token of another device's rows is zero here."""
    rows, here = _local(w["tokens"], ids, first)
    x = _up(w["tokens"])[rows] * here[..., None]
    return x + _up(w["positions"][: ids.shape[1]]) if "positions" in w else x


def embed_grad(grads: Arrays, dx: Array, ids: Array, add: Add, first: int = 0) -> None:
    """None; adds to the gradients of the embedding."""
    rows, here = _local(grads["tokens"], ids, first)
    dx = _up(dx)
    total = array_namespace(dx).zeros(grads["tokens"].shape, dx.dtype)
    array_namespace(dx).add.at(total, rows, dx * here[..., None])
    add(grads["tokens"], total)
    if "positions" in grads:
        add(grads["positions"][: ids.shape[1]], dx.sum(axis=0))


def head_forward(w: Arrays, x: Array, keep: Keep) -> Arrays:
    """What the head saves, the logits in single precision among it; ``x`` is kept already."""
    f = keep("head activations", _norm(x, w["norm"]))
    logits = _up(f) @ _up(w["tokens"]).T
    return {"x": x, "f": f, "logits": keep("logits", logits)}


def head_backward(
    w: Arrays, grads: Arrays, saved: Arrays, targets: Array, keep: Keep, add: Add, weight: float
) -> tuple[float, Callable[[], Array]]:
    """(the loss, the rest of the backward, which returns dx). The mean cross entropy of
    ``targets`` [b, s], times ``weight``. In between is the moment with all the logits."""
    logits = saved.pop("logits")
    xp = array_namespace(logits)
    p = xp.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    hot = xp.arange(p.shape[-1]) == targets[..., None]
    loss = -float((xp.log(p + 1e-30) * hot).sum()) / targets.size * weight
    dlogits = keep("logit gradients", (p - hot) * (weight / targets.size))
    del logits, p, hot

    def rest() -> Array:
        nonlocal dlogits
        f, flat = _up(saved.pop("f")), _up(dlogits).reshape(-1, dlogits.shape[-1])
        add(grads["tokens"], flat.T @ f.reshape(-1, f.shape[-1]))
        df = keep(GRADIENT, _up(dlogits) @ _up(w["tokens"]))
        dlogits = None
        return keep(GRADIENT, _norm_back(df, saved.pop("x"), w["norm"], grads["norm"], add))

    return loss, rest


# -- inside the kernels ----------------------------------------------------------------------------


def _up(a: Array) -> Array:
    """``a`` in single precision, or double if it is that."""
    return a if a.dtype == np.float64 else a.astype(np.float32, copy=False)


def _linear(x: Array, w: Array, b: Array) -> Array:
    return _up(x) @ _up(w) + _up(b)


def _by_head(a: Array, heads: int) -> Array:
    """[b, s, heads e] as [b, heads, s, e]."""
    b, s, inner = a.shape
    return _up(a).reshape(b, s, heads, inner // heads).swapaxes(1, 2)


def _merged(a: Array) -> Array:
    """[b, heads, s, e] as [b, s, heads e]."""
    b, heads, s, e = a.shape
    return a.swapaxes(1, 2).reshape(b, s, heads * e)


def _softmax_grad(dp: Array, p: Array) -> Array:
    return p * (dp - (dp * p).sum(axis=-1, keepdims=True))


def _normed(x: Array) -> tuple[Array, Array]:
    """(x with mean 0 and variance 1, by what it was divided)."""
    x = _up(x)
    x = x - x.mean(axis=-1, keepdims=True)
    deviation = array_namespace(x).sqrt((x * x).mean(axis=-1, keepdims=True) + _SMALL)
    return x / deviation, deviation


def _norm(x: Array, w: Array) -> Array:
    normed, _ = _normed(x)
    return normed * (1 + _up(w[0])) + _up(w[1])


def _norm_back(dy: Array, x: Array, w: Array, grad: Array, add: Add) -> Array:
    """The gradient of x, not kept yet; the statistics are computed again."""
    normed, deviation = _normed(x)
    dy = _up(dy)
    add(grad[0], (dy * normed).sum(axis=(0, 1)))
    add(grad[1], dy.sum(axis=(0, 1)))
    d = dy * (1 + _up(w[0]))
    along = (d * normed).mean(axis=-1, keepdims=True)
    return (d - d.mean(axis=-1, keepdims=True) - normed * along) / deviation


def _local(rows: Array, ids: Array, first: int) -> tuple[Array, Array]:
    """(row numbers within ``rows``, whether each token has a row there)."""
    at = ids - first
    here = (at >= 0) & (at < len(rows))
    return at * here, here
