"""Activations: relu and gelu element by element, and the gate of SwiGLU.

Each is computed in float32 for halves. `ACTIVATIONS` has them by name.
"""

from tiledask.errors import KernelError
from tiledask.tile import epilogue
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import LayerPair, layer, op
from tiledask.tile.layers.operands import rounded, wide

__all__ = ["ACTIVATIONS", "find_activation", "gelu", "gelu_grad", "relu", "relu_grad"]
__all__ += ["swiglu", "swiglu_grad"]


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


ACTIVATIONS: dict[str, LayerPair] = {"relu": relu, "gelu": gelu}


def find_activation(name: str) -> LayerPair:
    """The activation called ``name``; raises KernelError with the names there are."""
    if name not in ACTIVATIONS:
        raise KernelError(f"an activation is one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


@layer("gate:* up:* -> *")
def swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) up, element by element, with silu(x) = x sigmoid(x). Shazeer, arXiv:2002.05202."""
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
    n = z.shape[-1] // 2
    return array_namespace(dy).concatenate(swiglu.backward(dy, z[..., :n], z[..., n:]), axis=-1)


def _sigmoid(x: Array) -> Array:
    # exp of what is negative never overflows, and nothing cancels on either side
    xp = array_namespace(x)
    e = xp.exp(-abs(x))
    return xp.where(x >= 0, 1, e) / (1 + e)
