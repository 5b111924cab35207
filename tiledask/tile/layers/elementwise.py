"""Activations: relu, gelu and silu element by element, and the gate of SwiGLU.

Each is computed in float32 for halves. `ACTIVATIONS` has them by name.
"""

from tiledask.errors import KernelError
from tiledask.tile import epilogue
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import LayerPair, layer, op
from tiledask.tile.layers.operands import rounded, wide

__all__ = ["ACTIVATIONS", "find_activation", "gelu", "gelu_grad", "relu", "relu_grad"]
__all__ += ["silu", "silu_grad", "swiglu", "swiglu_grad"]


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
    return rounded(epilogue.gelu(wide(x)), x)


@gelu.grad
def gelu_grad(dy: Array, x: Array) -> Array:
    """dx: dy times the derivative at x."""
    return rounded(epilogue.gelu_grad(wide(dy), wide(x)), dy)


@layer("x:* -> *")
def silu(x: Array) -> Array:
    """x / (1 + exp(-x)), also called swish (arXiv:1710.05941), of each element."""
    wider = wide(x)
    return rounded(wider * _sigmoid(wider), x)


@silu.grad
def silu_grad(dy: Array, x: Array) -> Array:
    """dx: dy times the derivative at x."""
    wider = wide(x)
    return rounded(wide(dy) * _silu_slope(wider, _sigmoid(wider)), dy)


ACTIVATIONS: dict[str, LayerPair] = {"relu": relu, "gelu": gelu, "silu": silu}


def find_activation(name: str) -> LayerPair:
    """The activation called ``name``; raises KernelError with the names there are."""
    if name not in ACTIVATIONS:
        raise KernelError(f"an activation is one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


@layer("gate:* up:* -> *", program=False)
def swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) up, element by element. Shazeer, arXiv:2002.05202."""
    wider = wide(gate)
    return rounded(wider * _sigmoid(wider) * wide(up), gate)


@swiglu.grad
def swiglu_grad(dy: Array, gate: Array, up: Array) -> tuple[Array, Array]:
    """(dgate, dup)."""
    gate, up, d = wide(gate), wide(up), wide(dy)
    s = _sigmoid(gate)
    return rounded(d * up * _silu_slope(gate, s), dy), rounded(d * gate * s, dy)


@op
def _swiglu(z: Array) -> Array:
    """Of gate and up side by side."""
    n = z.shape[-1] // 2
    return swiglu.forward(z[..., :n], z[..., n:])


@op
def _swiglu_grad(dy: Array, z: Array) -> Array:
    n = z.shape[-1] // 2
    return array_namespace(dy).concatenate(swiglu.backward(dy, z[..., :n], z[..., n:]), axis=-1)


def _sigmoid(x: Array) -> Array:
    # exp of what is negative never overflows, and nothing cancels on either side
    xp = array_namespace(x)
    e = xp.exp(-abs(x))
    return xp.where(x >= 0, 1, e) / (1 + e)


def _silu_slope(x: Array, sigmoid: Array) -> Array:
    return sigmoid * (1 + x * (1 - sigmoid))
