"""The linear layer and its activation in one product, finished in the kernel's accumulators.

g = activation(x w + b)  and z = x w + b, which the backward needs, written on the way
"""

from tiledask.tile.backend import HALVES, Array, array_namespace
from tiledask.tile.epilogue import ACTIVATIONS as ENDINGS
from tiledask.tile.layers.activations import find_activation
from tiledask.tile.layers.linear import linear
from tiledask.tile.layers.operands import by_token, check_floats, check_shape
from tiledask.tile.product import matmul
from tiledask.tile.table import kernels

__all__ = ["activated_linear", "kernel_for"]

_HOPPER = "wgmma_ws_persistent"


def activated_linear(x: Array, w: Array, b: Array, activation: str) -> tuple[Array, Array]:
    """(g [..., out], what ``activation`` keeps) for x [..., in], w [in, out] and b [out] or None.

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
        return found.forward(linear(x, w, b)[0])
    check_floats(x=x, w=w, b=b)
    check_shape("w", w, (x.shape[-1], None), "as many rows as x has columns, by outputs")
    if b is not None:
        check_shape("b", b, (w.shape[1],), "one for each column of w")
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
