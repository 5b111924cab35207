"""The feed-forward layer: up, activation, down; plain, or gated as in SwiGLU.

    mlp          x --w_1-- z --gelu-- g --w_2-- y
    swiglu_mlp   x --w_gate-- silu --(times)-- g --w_down-- y
                 '---w_up-------------'

Weights go by name. The gate and up matrices are apart, or side by side as w_gate_up
[h, gate | up]; one device's columns of that are its columns of both halves. Biases are b_1, b_2,
b_gate, b_up or b_gate_up, and b_down, where they are there. A device that holds some of the inner
columns, and their rows of the last matrix, computes its term of the sum.

w_1 and an activation that kernels can end with are one product, finished in the accumulators:
g = gelu(x w_1 + b_1), and z = x w_1 + b_1, which the backward needs, is written on the way.
"""

from tiledask.errors import KernelError
from tiledask.tile.backend import HALVES, Array, array_namespace
from tiledask.tile.epilogue import ACTIVATIONS as ENDINGS
from tiledask.tile.layers.activations import find_activation, gated, gated_grad
from tiledask.tile.layers.by_name import Saved
from tiledask.tile.layers.linear import (
    Arrays,
    apply,
    apply_grad,
    check_linear,
    check_weights,
    fuse,
    linear,
)
from tiledask.tile.layers.operands import by_token, rounded, wide
from tiledask.tile.layers.parameters import Parameter, matrix
from tiledask.tile.product import matmul
from tiledask.tile.table import kernels

__all__ = [
    "activated_linear",
    "fuse_gate_up",
    "kernel_for",
    "mlp",
    "mlp_grad",
    "mlp_parameters",
    "swiglu_mlp",
    "swiglu_mlp_grad",
    "swiglu_mlp_parameters",
]

_HOPPER = "wgmma_ws_persistent"


def mlp_parameters(hidden: int, inner: int, bias: bool = True) -> dict[str, Parameter]:
    """The weights of `mlp` by name, with deviations of 1/sqrt(rows).

    >>> {name: p.shape for name, p in mlp_parameters(4, 16).items()}
    {'w_1': (4, 16), 'b_1': (16,), 'w_2': (16, 4), 'b_2': (4,)}
    """
    return matrix("_1", hidden, inner, bias) | matrix("_2", inner, hidden, bias)


def mlp(x: Array, weights: Arrays, activation: str = "gelu") -> tuple[Array, Saved]:
    """(y [..., h], saved) for x [..., h]: w_2 activation(w_1 x), by its name.

    >>> import numpy as np
    >>> w = {"w_1": np.array([[1.0, -1.0]]), "w_2": np.array([[1.0], [1.0]])}
    >>> mlp(np.array([[-3.0]]), w, "relu")[0].tolist()
    [[3.0]]
    """
    check_weights(weights, ["_1", "_2"])
    g, bent = activated_linear(x, weights["w_1"], weights.get("b_1"), activation)
    return apply(g, weights, "_2"), {"x": x, "g": g, "bent": bent, "activation": activation}


def mlp_grad(dy: Array, saved: Saved, weights: Arrays) -> tuple[Array, Arrays]:
    """(dx, the gradient of each weight by its name)."""
    grads: Arrays = {}
    dg = apply_grad(dy, saved["g"], weights, "_2", grads)
    dz = find_activation(saved["activation"]).grad(dg, saved["bent"])
    return apply_grad(dz, saved["x"], weights, "_1", grads), grads


def swiglu_mlp_parameters(
    hidden: int, inner: int, fused: bool = False, bias: bool = False
) -> dict[str, Parameter]:
    """The weights of `swiglu_mlp` by name, with deviations of 1/sqrt(rows).

    >>> {name: p.shape for name, p in swiglu_mlp_parameters(4, 10, fused=True).items()}
    {'w_gate_up': (4, 20), 'w_down': (10, 4)}
    """
    into = {"_gate_up": 2 * inner} if fused else {"_gate": inner, "_up": inner}
    made: dict[str, Parameter] = {}
    for name, columns in into.items():
        made |= matrix(name, hidden, columns, bias)
    return made | matrix("_down", inner, hidden, bias)


def swiglu_mlp(x: Array, weights: Arrays) -> tuple[Array, Saved]:
    """(y [..., h], saved) for x [..., h]: w_down (silu(w_gate x) w_up x).

    >>> import numpy as np
    >>> w = {"w_gate_up": np.array([[1.0, 2.0]]), "w_down": np.array([[1.0]])}
    >>> swiglu_mlp(np.array([[1.0]]), w)[0].round(4).tolist()
    [[1.4621]]
    """
    fused = "w_gate_up" in weights
    check_weights(weights, ["_gate_up", "_down"] if fused else ["_gate", "_up", "_down"])
    if fused:
        z = apply(x, weights, "_gate_up")
        inner, odd = divmod(z.shape[-1], 2)
        if odd:
            raise KernelError(
                f"w_gate_up holds as many columns of gate as of up, got {z.shape[-1]} together; "
                f"pass one device's columns of both"
            )
        gate, up = z[..., :inner], z[..., inner:]
    else:
        gate, up = apply(x, weights, "_gate"), apply(x, weights, "_up")
    g = gated(gate, up)
    return apply(g, weights, "_down"), {"x": x, "g": g, "gate": gate, "up": up}


def swiglu_mlp_grad(dy: Array, saved: Saved, weights: Arrays) -> tuple[Array, Arrays]:
    """(dx, the gradient of each weight by its name)."""
    grads: Arrays = {}
    dg = apply_grad(dy, saved["g"], weights, "_down", grads)
    dgate, dup = gated_grad(dg, saved["gate"], saved["up"])
    if "w_gate_up" in weights:
        both = array_namespace(dgate).concatenate([dgate, dup], axis=-1)
        return apply_grad(both, saved["x"], weights, "_gate_up", grads), grads
    from_gate = apply_grad(dgate, saved["x"], weights, "_gate", grads)
    from_up = apply_grad(dup, saved["x"], weights, "_up", grads)
    return rounded(wide(from_gate) + wide(from_up), dy), grads


def fuse_gate_up(weights: Arrays) -> Arrays:
    """The same weights with gate and up side by side, as w_gate_up (and b_gate_up)."""
    return fuse(weights, ("_gate", "_up"), "_gate_up")


# -- one product and its activation ---------------------------------------------------------------


def activated_linear(x: Array, w: Array, b: Array, activation: str) -> tuple[Array, Array]:
    """(g [..., out], what ``activation`` saves) for x [..., in], w [in, out] and b [out] or None.

    One product with an epilogue where the kernels have one for the activation (GELU), so that z is
    written once and never read; of halves g comes from the float32 sums, not from z as rounded.
    Otherwise a product, and then the activation.

    >>> import numpy as np
    >>> g, z = activated_linear(np.ones((2, 3)), np.ones((3, 1)), None, "gelu")
    >>> g.round(4).tolist(), z.tolist()
    ([[2.9964], [2.9964]], [[3.0], [3.0]])
    """
    found = find_activation(activation)
    if activation not in ENDINGS or not (x.size and w.size):
        return found.forward(linear(x, w, b))
    check_linear(x, w, b)
    flat = by_token(x)
    g, z = (array_namespace(x).empty((flat.shape[0], w.shape[1]), x.dtype) for _ in range(2))
    matmul(flat, w, kernel_for(x), out=g, bias=b, activation=activation, preactivation=z)
    shape = (*x.shape[:-1], w.shape[1])
    return g.reshape(shape), z.reshape(shape)


def kernel_for(x: Array) -> str:
    """The kernel for products of x with an ending: ours for halves on Hopper, else the library's.

    >>> import numpy as np
    >>> kernel_for(np.ones(2))
    'blas'
    """
    on_gpu = array_namespace(x).__name__ == "cupy"
    return _HOPPER if on_gpu and x.dtype.name in HALVES and kernels[_HOPPER].available else "blas"
