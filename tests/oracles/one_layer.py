"""A layer of a GPT-2 by itself, forward and backward, tensor by tensor: one long function.

    x --norm-- a --q,k,v-- softmax(q k) v -- c --wo--(+x)-- x2 --norm-- m --w1-- z --gelu-- g --w2--(+x2)-- y

Norm weights are stored as their distance from one. ``keep(tensor, value)`` gives what is kept.
"""  # noqa: E501

import numpy as np

from tiledask.tile.epilogue import gelu, gelu_grad

KEPT, GRADIENT = "activations", "activation gradients"
_SMALL = 1e-5


def layer_shapes(hidden, inner, ffn):
    """Shapes of a layer's weights; ``inner`` and ``ffn`` are one device's heads x head width and
    MLP width.

    >>> from math import prod
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


def layer_forward(w, x, heads, keep):
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


def layer_backward(w, grads, saved, dy, heads, keep, add):
    """dx; adds to ``grads``. Takes what it needs out of ``saved``, and dy out of its list, so that
    a tensor is gone when its last use is over."""

    def linear_back(dout, name, into, last=True):
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


def attention_weights(q, k, heads):
    """softmax(q k^T / sqrt(e)) [b, heads, s, s], each token looking at itself and those before."""
    q, k = _by_head(q, heads), _by_head(k, heads)
    xp, s = np, q.shape[-2]
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores += xp.triu(xp.full((s, s), -np.inf, np.float32), 1)
    scores = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)


# -- inside the kernels ----------------------------------------------------------------------------


def _up(a):
    """``a`` in single precision, or double if it is that."""
    return a if a.dtype == np.float64 else a.astype(np.float32, copy=False)


def _linear(x, w, b):
    return _up(x) @ _up(w) + _up(b)


def _by_head(a, heads):
    """[b, s, heads e] as [b, heads, s, e]."""
    b, s, inner = a.shape
    return _up(a).reshape(b, s, heads, inner // heads).swapaxes(1, 2)


def _merged(a):
    """[b, heads, s, e] as [b, s, heads e]."""
    b, heads, s, e = a.shape
    return a.swapaxes(1, 2).reshape(b, s, heads * e)


def _softmax_grad(dp, p):
    return p * (dp - (dp * p).sum(axis=-1, keepdims=True))


def _normed(x):
    """(x with mean 0 and variance 1, by what it was divided)."""
    x = _up(x)
    x = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((x * x).mean(axis=-1, keepdims=True) + _SMALL)
    return x / deviation, deviation


def _norm(x, w):
    normed, _ = _normed(x)
    return normed * (1 + _up(w[0])) + _up(w[1])


def _norm_back(dy, x, w, grad, add):
    """The gradient of x, not kept yet; the statistics are computed again."""
    normed, deviation = _normed(x)
    dy = _up(dy)
    add(grad[0], (dy * normed).sum(axis=(0, 1)))
    add(grad[1], dy.sum(axis=(0, 1)))
    d = dy * (1 + _up(w[0]))
    along = (d * normed).mean(axis=-1, keepdims=True)
    return (d - d.mean(axis=-1, keepdims=True) - normed * along) / deviation
