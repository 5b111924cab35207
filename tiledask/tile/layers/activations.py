"""Activations: relu, gelu and silu element by element, and the gate of SwiGLU.

Each is computed in float32 for halves. `ACTIVATIONS` has them by name.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tiledask.errors import KernelError
from tiledask.tile import epilogue
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import KERNELS, op
from tiledask.tile.layers.operands import check_floats, rounded, wide

__all__ = ["ACTIVATIONS", "Activation", "find_activation", "gated", "gated_grad"]


def _sigmoid(x: Array) -> Array:
    # exp of what is negative never overflows, and nothing cancels on either side
    xp = array_namespace(x)
    e = xp.exp(-abs(x))
    return xp.where(x >= 0, 1, e) / (1 + e)


def _silu_slope(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


@dataclass(frozen=True)
class Activation:
    """A function of one array, element by element, and its gradient.

    >>> import numpy as np
    >>> y, saved = ACTIVATIONS["relu"].forward(np.array([-1.0, 2.0]))
    >>> y.tolist(), ACTIVATIONS["relu"].grad(np.ones(2), saved).tolist()
    ([0.0, 2.0], [0.0, 1.0])
    """

    f: Callable[[Array], Array]
    f_grad: Callable[[Array, Array], Array]
    """(dy, x), or (dy, y) where y is saved, which the next layer saves anyway."""
    saves_y: bool = False

    def forward(self, x: Array) -> tuple[Array, Array]:
        """(y, saved): the function of each element."""
        check_floats(x=x)
        y = rounded(self.f(wide(x)), x)
        return y, y if self.saves_y else x

    def grad(self, dy: Array, saved: Array) -> Array:
        """dx of `forward`."""
        return rounded(self.f_grad(wide(dy), wide(saved)), dy)


ACTIVATIONS = {
    # the slope at 0 is 0
    "relu": Activation(
        lambda x: array_namespace(x).maximum(x, 0), lambda dy, y: dy * (y > 0), saves_y=True
    ),
    # in the tanh form
    "gelu": Activation(epilogue.gelu, epilogue.gelu_grad),
    # x / (1 + exp(-x)), also called swish (arXiv:1710.05941)
    "silu": Activation(lambda x: x * _sigmoid(x), lambda dy, x: dy * _silu_slope(x)),
}
KERNELS |= {name: lambda z, found=found: found.forward(z)[0] for name, found in ACTIVATIONS.items()}
KERNELS |= {f"{name}_grad": found.grad for name, found in ACTIVATIONS.items()}


def find_activation(name: str) -> Activation:
    """The activation called ``name``; raises KernelError with the names there are."""
    if name not in ACTIVATIONS:
        raise KernelError(f"an activation is one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


def gated(gate: Array, up: Array) -> Array:
    """silu(gate) up, element by element. Shazeer, arXiv:2002.05202.

    >>> import numpy as np
    >>> gated(np.array([0.0, 1.0]), np.array([5.0, 2.0])).round(4).tolist()
    [0.0, 1.4621]
    """
    check_floats(gate=gate, up=up)
    if gate.shape != up.shape:
        raise KernelError(
            f"gate and up are multiplied element by element, got {gate.shape} and {up.shape}; "
            f"split the fused output in the middle of its last axis"
        )
    return rounded(wide(gate) * _sigmoid(wide(gate)) * wide(up), gate)


def gated_grad(dy: Array, gate: Array, up: Array) -> tuple[Array, Array]:
    """(dgate, dup)."""
    gate, up, d = wide(gate), wide(up), wide(dy)
    return rounded(d * up * _silu_slope(gate), dy), rounded(d * gate * _sigmoid(gate), dy)


@op
def _swiglu(z: Array) -> Array:
    n = z.shape[-1] // 2
    return gated(z[..., :n], z[..., n:])


@op
def _swiglu_grad(dy: Array, z: Array) -> Array:
    n = z.shape[-1] // 2
    return array_namespace(dy).concatenate(gated_grad(dy, z[..., :n], z[..., n:]), axis=-1)
