"""Activations: relu, gelu and silu element by element, and the gate of SwiGLU.

Each is computed in float32 for halves. `ACTIVATIONS` has them by name.
"""

from collections.abc import Callable
from typing import NamedTuple

from tiledask.errors import KernelError
from tiledask.tile import epilogue
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.operands import check_floats, rounded, wide

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "find_activation",
    "gelu",
    "gelu_grad",
    "relu",
    "relu_grad",
    "silu",
    "silu_grad",
    "swiglu",
    "swiglu_grad",
]


def relu(x: Array) -> tuple[Array, Array]:
    """(max(x, 0), kept); keeps y, which the next layer keeps anyway. The slope at 0 is 0.

    >>> import numpy as np
    >>> relu(np.array([-1.0, 2.0]))[0].tolist()
    [0.0, 2.0]
    """
    y = rounded(check_floats(x=x).maximum(wide(x), 0), x)
    return y, y


def relu_grad(dy: Array, kept: Array) -> Array:
    """dx of `relu`."""
    return rounded(wide(dy) * (wide(kept) > 0), dy)


def gelu(x: Array) -> tuple[Array, Array]:
    """(x times the normal distribution function of x, kept), in its tanh form; keeps x.

    >>> import numpy as np
    >>> gelu(np.array([0.0, 1.0]))[0].round(4).tolist()
    [0.0, 0.8412]
    """
    check_floats(x=x)
    return rounded(epilogue.gelu(wide(x)), x), x


def gelu_grad(dy: Array, kept: Array) -> Array:
    """dx of `gelu`."""
    return rounded(epilogue.gelu_grad(wide(dy), wide(kept)), dy)


def silu(x: Array) -> tuple[Array, Array]:
    """(x / (1 + exp(-x)), kept); keeps x. Also called swish (arXiv:1710.05941).

    >>> import numpy as np
    >>> silu(np.array([-1000.0, 0.0, 1.0]))[0].round(4).tolist()
    [-0.0, 0.0, 0.7311]
    """
    check_floats(x=x)
    return rounded(wide(x) * _sigmoid(wide(x)), x), x


def silu_grad(dy: Array, kept: Array) -> Array:
    """dx of `silu`."""
    return rounded(wide(dy) * _silu_slope(wide(kept)), dy)


class KeptGate(NamedTuple):
    """What `swiglu` keeps."""

    gate: Array
    up: Array


def swiglu(gate: Array, up: Array) -> tuple[Array, KeptGate]:
    """(silu(gate) up, kept), element by element; keeps both. Shazeer, arXiv:2002.05202.

    >>> import numpy as np
    >>> swiglu(np.array([0.0, 1.0]), np.array([5.0, 2.0]))[0].round(4).tolist()
    [0.0, 1.4621]
    """
    check_floats(gate=gate, up=up)
    if gate.shape != up.shape:
        raise KernelError(
            f"gate and up are multiplied element by element, got {gate.shape} and {up.shape}; "
            f"split the fused output in the middle of its last axis"
        )
    y = wide(gate) * _sigmoid(wide(gate)) * wide(up)
    return rounded(y, gate), KeptGate(gate, up)


def swiglu_grad(dy: Array, kept: KeptGate) -> tuple[Array, Array]:
    """(dgate, dup) of `swiglu`."""
    gate, up, d = wide(kept.gate), wide(kept.up), wide(dy)
    dgate, dup = d * up * _silu_slope(gate), d * gate * _sigmoid(gate)
    return rounded(dgate, dy), rounded(dup, dy)


class Activation(NamedTuple):
    """A function of one array and its gradient."""

    forward: Callable[[Array], tuple[Array, Array]]
    """The function: x -> (y, kept)."""
    grad: Callable[[Array, Array], Array]
    """Its gradient: (dy, kept) -> dx."""


ACTIVATIONS = {
    "relu": Activation(relu, relu_grad),
    "gelu": Activation(gelu, gelu_grad),
    "silu": Activation(silu, silu_grad),
}


def find_activation(name: str) -> Activation:
    """The activation called ``name``; raises KernelError with the names there are."""
    if name not in ACTIVATIONS:
        raise KernelError(f"an activation is one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


def _sigmoid(x: Array) -> Array:
    # exp of what is negative never overflows, and nothing cancels on either side
    xp = array_namespace(x)
    e = xp.exp(-abs(x))
    return xp.where(x >= 0, 1, e) / (1 + e)


def _silu_slope(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))
