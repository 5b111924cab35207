"""bfloat16 on a GPU in one pass over memory, where CuPy makes one for each operation.

Below is what is done with each element, in float32 and rounded once; CuPy makes kernels of it.
bfloat16 goes in and out as its bits: CuPy's kernels compute with no such type.
"""

import re
from functools import cache
from typing import Any

import numpy as np

from tiledask.tile.backend import Array, as_dtype, cupy_module, name_of

__all__ = ["run", "takes", "total"]

_PREAMBLE = """
__device__ inline float up(float x) { return x; }
__device__ inline float up(unsigned short x) { return __uint_as_float(unsigned(x) << 16); }
__device__ inline unsigned short down(float x) {  // to nearest, ties to even
    const unsigned bits = __float_as_uint(x);
    return x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
"""

_ELEMENTWISE = """
add(uint16 x, uint16 y) -> uint16 sum: sum = down(up(x) + up(y))
swiglu(uint16 gate, uint16 other) -> uint16 y:
    const float x = up(gate); y = down(x * sigmoid(x) * up(other))
swiglu_grad(uint16 dy, uint16 gate, uint16 other) -> uint16 dgate, uint16 dother:
    const float d = up(dy), x = up(gate), s = sigmoid(x);
    dgate = down(d * up(other) * (s * (1.0f + x * (1.0f - s)))); dother = down(d * x * s)
rotate(uint16 left, uint16 right, float32 cos, float32 sin) -> uint16 x, uint16 y:
    const float l = up(left), r = up(right);
    x = down(l * cos - r * sin); y = down(l * sin + r * cos)
softmax(float32 x, float32 largest, float32 exponentials) -> uint16 p:
    p = down(expf(x - largest) / exponentials)
softmax_grad(float32 dp, uint16 p, float32 along, float32 scale) -> uint16 ds:
    ds = down((dp - along) * up(p) * scale)
scaled(uint16 x, uint16 w, float32 inverse) -> uint16 y: y = down(up(x) * inverse * up(w))
scaled_grad(uint16 dy, uint16 x, uint16 w, float32 inverse, float32 along) -> uint16 dx:
    dx = down((up(dy) * up(w) - up(x) * inverse * along) * inverse)
adam(G g, float32 scale, float32 factor, float32 beta1, float32 rest1, float32 beta2, float32 rest2,
     float32 begun2, float32 tiny, float32 rate, float32 left)
        -> float32 m, float32 v, float32 w, uint16 rounded:
    const float x = up(g) / scale * factor;
    m = beta1 * m + rest1 * x; v = beta2 * v + rest2 * x * x;
    w = w * left - rate * m / (sqrtf(v / begun2) + tiny); rounded = down(w)
"""
"""name(what goes in) -> what comes out, and may be read before: what is done with each element."""

_SUMS = """
exponentials(float32 x, float32 largest): expf(x - largest)
products(float32 dp, uint16 p): dp * up(p)
squares(uint16 x): up(x) * up(x)
scaled_along(uint16 dy, uint16 x, uint16 w, float32 inverse): up(dy) * up(w) * up(x) * inverse
scaled_weights(uint16 dy, uint16 x, float32 inverse): up(dy) * up(x) * inverse
"""
"""name(what goes in): what of each element is summed."""


def takes(x: Any) -> bool:
    """Whether ``x`` is an array of bfloat16 on a GPU."""
    return type(x) is not np.ndarray and hasattr(x, "dtype") and name_of(x.dtype) == "bfloat16"


def run(name: str, *arguments: Any) -> Array:
    """What the kernel makes of arrays and numbers; arrays to write it to may follow them."""
    made = _elementwise(name)(*(x.view("u2") if takes(x) else x for x in arguments))
    return made if isinstance(made, tuple) else made.view(as_dtype("bfloat16"))


def total(name: str, *arrays: Any, axis: int = -1) -> Array:
    """The sum in float32 along an axis, which stays."""
    bits = (x.view("u2") if takes(x) else x for x in arrays)
    return _sum(name)(*bits, axis=axis, keepdims=True)


def _rows(text: str) -> dict[str, tuple[str, ...]]:
    """name -> (what goes in, what comes out if it is said, what is done) of a table above."""
    rows = re.findall(r"^(\w+)\(([^)]*)\)(?:\s*-> ([^:]*))?:(.*(?:\n .*)*)", text, re.M)
    return {name: tuple(filter(None, row)) for name, *row in rows}


@cache
def _elementwise(name: str) -> Any:
    kernel = cupy_module().ElementwiseKernel
    return kernel(*_rows(_ELEMENTWISE)[name], f"tiledask_{name}", preamble=_PREAMBLE)


@cache
def _sum(name: str) -> Any:
    kernel, (given, each) = cupy_module().ReductionKernel, _rows(_SUMS)[name]
    how = "a + b", "sum = a", "0", f"tiledask_{name}"
    return kernel(given, "float32 sum", each, *how, preamble=_PREAMBLE)
