"""Layers of each token by itself: x w + b, activations, the gate of SwiGLU, normalisation.

Of halves each is computed in float32, statistics too, and rounded once. (Some programs round x /
rms to halves before they multiply by w; their last bit differs.)
"""

from tiledask.errors import KernelError
from tiledask.tile import elementwise, fused
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import LayerPair, layer, op
from tiledask.tile.layers.operands import by_token, multiply, rounded, wide

__all__ = ["ACTIVATIONS", "find_activation", "gelu", "gelu_grad", "layer_norm", "layer_norm_grad"]
__all__ += ["linear", "linear_grad", "linear_grad_input", "linear_grad_weight", "relu", "relu_grad"]
__all__ += ["rms_norm", "rms_norm_grad", "swiglu", "swiglu_grad"]


@layer("x:*i w:io b:o -> *o")
def linear(x: Array, w: Array, b: Array | None = None, turned: bool = False) -> Array:
    """x w + b [..., out] for x [..., in], w [in, out] and b [out], or no b.

    Of halves the whole sum, b included, is float32 and rounded once. A program's w may be
    [out, in], ``turned``.

    >>> import numpy as np
    >>> linear(np.ones((2, 3)), np.ones((3, 1)), np.ones(1))[0].tolist()
    [[4.0], [4.0]]
    """
    return multiply(x, w.T if turned else w, b)


@op
def linear_grad_input(dy: Array, w: Array, turned: bool = False) -> Array:
    """dx = dy w^T [..., in]: the half of the backward that the layer before waits for."""
    return multiply(dy, w if turned else w.T)


@op
def linear_grad_weight(
    dy: Array, x: Array, turned: bool = False, bias: bool = True
) -> tuple[Array, Array | None]:
    """(dw [in, out], db [out]) = (x^T dy, the sum of dy): the half that nobody waits for.

    Without a ``bias`` db is None.
    """
    dy, x = by_token(dy), by_token(x)
    db = rounded(wide(dy).sum(axis=0), dy) if bias else None
    dw = multiply(x.T, dy)
    return dw.T if turned else dw, db


@linear.grad
def linear_grad(
    dy: Array, x: Array, w: Array, b: Array | None = None
) -> tuple[Array, Array, Array | None]:
    """(dx, dw, db); db is None where b is."""
    return linear_grad_input(dy, w), *linear_grad_weight(dy, x, bias=b is not None)


# -- activations ----------------------------------------------------------------------------------


@layer("x:* -> *")
def relu(x: Array) -> Array:
    """The larger of x and 0, element by element."""
    return rounded(array_namespace(x).maximum(wide(x), 0), x)


@relu.grad
def relu_grad(dy: Array, y: Array) -> Array:
    """dx; the slope at 0 is 0. It reads y, which the next layer saves anyway."""
    return rounded(wide(dy) * (wide(y) > 0), dy)


@layer("x:* -> *")
def gelu(x: Array) -> Array:
    """`td.tile.gelu`, in the tanh form, of each element."""
    return rounded(elementwise.gelu(wide(x)), x)


@gelu.grad
def gelu_grad(dy: Array, x: Array) -> Array:
    """dx: dy times the derivative at x."""
    return rounded(elementwise.gelu_grad(wide(dy), wide(x)), dy)


ACTIVATIONS: dict[str, LayerPair] = {"relu": relu, "gelu": gelu}


def find_activation(name: str) -> LayerPair:
    """The activation called ``name``; raises KernelError with the names there are."""
    if name not in ACTIVATIONS:
        raise KernelError(f"an activation is one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


@layer("gate:* up:* -> *")
def swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) up, element by element, with silu(x) = x sigmoid(x). Shazeer, arXiv:2002.05202."""
    if fused.takes(gate):
        return fused.run("swiglu", gate, up)
    wider = wide(gate)
    return rounded(wider * _sigmoid(wider) * wide(up), gate)


@swiglu.grad
def swiglu_grad(dy: Array, gate: Array, up: Array) -> tuple[Array, Array]:
    """(dgate, dup)."""
    gate, up, d = wide(gate), wide(up), wide(dy)
    s = _sigmoid(gate)
    slope = s * (1 + gate * (1 - s))  # of silu
    return rounded(d * up * slope, dy), rounded(d * gate * s, dy)


@op
def _swiglu(z: Array) -> Array:
    """Of gate and up side by side."""
    n = z.shape[-1] // 2
    return swiglu.forward(z[..., :n], z[..., n:])


@op
def _swiglu_grad(dy: Array, z: Array) -> Array:
    n, xp = z.shape[-1] // 2, array_namespace(dy)
    if fused.takes(z):
        dz = xp.empty(z.shape, z.dtype)
        fused.run("swiglu_grad", dy, z[..., :n], z[..., n:], dz[..., :n], dz[..., n:])
        return dz
    return xp.concatenate(swiglu.backward(dy, z[..., :n], z[..., n:]), axis=-1)


def _sigmoid(x: Array) -> Array:
    # exp of what is negative never overflows, and nothing cancels on either side
    xp = array_namespace(x)
    e = xp.exp(-abs(x))
    return xp.where(x >= 0, 1, e) / (1 + e)


# -- normalisation over the width -----------------------------------------------------------------


@layer("x:*h w:h b:h -> *h", returns="inverse mean")
def layer_norm(
    x: Array, w: Array, b: Array | None = None, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(variance + eps) w + b over the last axis, w and b [width].

    Saves 1 / deviation and the mean [..., 1] of each token. Ba et al., arXiv:1607.06450.

    >>> import numpy as np
    >>> layer_norm(np.array([[1.0, 3.0]]), np.ones(2), np.zeros(2), eps=0.0)[0].tolist()
    [[-1.0, 1.0]]
    """
    wider = wide(x)
    mean = _mean(wider)
    y, inverse = _scaled(wider - mean, w, eps)
    if b is not None:
        y += wide(b)
    return rounded(y, x), inverse, mean


@layer_norm.grad
def layer_norm_grad(
    dy: Array, x: Array, inverse: Array, mean: Array, w: Array, b: Array | None = None
) -> tuple[Array, Array, Array | None]:
    """(dx, dw, db); db is None where b is.

    n = (x - mean) / deviation,  d = dy w
    dx = (d - mean(d) - n mean(d n)) / deviation
    """
    db = None if b is None else rounded(by_token(wide(dy)).sum(axis=0), dy)
    return *_gradients(dy, wide(x) - mean, inverse, w, True), db


@layer("x:*h w:h -> *h", returns="inverse")
def rms_norm(x: Array, w: Array, eps: float = 1e-6) -> tuple[Array, Array]:
    """x / sqrt(mean(x^2) + eps) w over the last axis, w [width]; saves 1 / the root [..., 1].

    Zhang and Sennrich, arXiv:1910.07467.
    """
    if fused.takes(x):
        mean = fused.total("squares", x) / x.shape[-1]
        inverse = 1 / array_namespace(x).sqrt(mean + eps)
        return fused.run("scaled", x, w, inverse), inverse
    y, inverse = _scaled(wide(x), w, eps)
    return rounded(y, x), inverse


@rms_norm.grad
def rms_norm_grad(dy: Array, x: Array, inverse: Array, w: Array) -> tuple[Array, Array]:
    """(dx, dw): dx = (d - n mean(d n)) / rms, with n = x / rms and d = dy w."""
    if fused.takes(dy):
        tokens = by_token(dy), by_token(x), by_token(inverse)
        dw = rounded(fused.total("scaled_weights", *tokens, axis=0)[0], dy)
        along = fused.total("scaled_along", dy, x, w, inverse) / dy.shape[-1]
        return fused.run("scaled_grad", dy, x, w, inverse, along), dw
    return _gradients(dy, wide(x), inverse, w, False)


def _scaled(x: Array, w: Array, eps: float) -> tuple[Array, Array]:
    """(x w over the root of the mean of squares, 1 / that root); eps keeps it away from zero."""
    inverse = 1 / array_namespace(x).sqrt(_mean(x * x) + eps)
    y = x * inverse
    y *= wide(w)
    return y, inverse


def _gradients(dy: Array, x: Array, inverse: Array, w: Array, centred: bool) -> tuple[Array, Array]:
    """(dx, dw) of `_scaled`, and of the mean that was taken off if x is ``centred``."""
    normed, d = x * inverse, wide(dy)
    dw = rounded(by_token(d * normed).sum(axis=0), dy)
    d = d * wide(w)
    along = _mean(d * normed)
    if centred:
        d -= _mean(d)
    normed *= along
    d -= normed
    d *= inverse
    return rounded(d, dy), dw


def _mean(x: Array) -> Array:
    """Of each token over its width."""
    total = x.sum(axis=-1, keepdims=True)
    total /= x.shape[-1]
    return total
