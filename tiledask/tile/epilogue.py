"""The epilogue of a product, before it is stored: scaled, added to C, biased, activated.

    out = activation(alpha a @ b + beta out + bias)
                     '------- preactivation ------'

All of it in the type that is summed in (float32 for halves), and rounded once, when it is stored:
a kernel that owns a tile of C in an accumulator finishes it there, so that C crosses the memory
once. Others finish C where it lies, a piece at a time that stays in the cache.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tiledask.tile.backend import Array, array_namespace

__all__ = ["PIECE_BYTES", "Epilogue", "activation_bytes", "gelu", "gelu_grad"]
__all__ += ["pieces"]

_SLOPE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def gelu(x: Array) -> Array:
    """x times the normal distribution function of x, in its tanh form, element by element.

    The tanh form (Hendrycks and Gimpel, arXiv:1606.08415, section 2) differs from the exact one
    by less than 5e-4 everywhere; NumPy has no error function for the exact one.

    >>> import numpy as np
    >>> gelu(np.array([-10.0, 0.0, 1.0, 10.0])).round(4).tolist()
    [-0.0, 0.0, 0.8412, 10.0]
    """
    y = _tanh_part(x)
    y += 1
    y *= x
    y *= 0.5
    return y


def gelu_grad(dy: Array, x: Array) -> Array:
    """The gradient of `gelu` at x: dy times its derivative there."""
    t = _tanh_part(x)
    slope = 1 - t * t  # of tanh; then of all that depends on x by way of it
    slope *= x
    inner = x * x
    inner *= 3 * _CUBIC
    inner += 1
    inner *= _SLOPE
    slope *= inner
    slope += t
    slope += 1
    slope *= dy
    slope *= 0.5
    return slope


def _tanh_part(x: Array) -> Array:
    # x * x * x and not x ** 3, which is many times slower; in place, for each new array is a way
    # through memory
    t = x * x
    t *= x
    t *= _CUBIC
    t += x
    t *= _SLOPE
    return array_namespace(x).tanh(t, out=t) if t.ndim else array_namespace(x).tanh(t)


PIECE_BYTES = {"numpy": 2**17, "cupy": 2**24}
"""Bytes of the piece that is finished at a time: some of a core's second cache, of a GPU's L2."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What a kernel does to alpha a @ b, beside storing it; by default nothing.

    >>> Epilogue(beta=1.0).loads_c, Epilogue(activation="gelu").elementwise
    (True, True)
    """

    alpha: float = 1.0  # The product is multiplied by it
    beta: float = 0.0  # What C held is multiplied by it and added; with 0 it is not read
    bias: Array | None = None  # [n] in the type that is summed in, added to every row
    activation: str | None = None  # Or "gelu"
    preactivation: Array | None = None  # Like C: receives what the activation is applied to

    @property
    def loads_c(self) -> bool:
        """Whether C is read too."""
        return self.beta != 0

    @property
    def elementwise(self) -> bool:
        """Whether there is more to do than BLAS does with its alpha and beta."""
        return self.bias is not None or self.activation is not None

    def finish(self, c: Array, i: int = 0, j: int = 0) -> None:
        """None, once ``c``, the tile of C [rows, columns] at (i, j), is biased and activated.

        ``c`` holds alpha a @ b + beta C in the type that is summed in, and is changed in place;
        the preactivation is stored on the way.

        >>> import numpy as np
        >>> c = np.zeros((2, 3))
        >>> Epilogue(bias=np.arange(4.0)).finish(c, j=1)
        >>> c.tolist()
        [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
        """
        for rows, columns in _pieces(c) if self.elementwise else ():
            piece = c[rows, columns]
            there = slice(i + rows.start, i + rows.stop), slice(j + columns.start, j + columns.stop)
            if self.bias is not None:
                piece += self.bias[there[1]]
            if self.preactivation is not None:
                self.preactivation[there] = piece
            if self.activation is not None:
                piece[...] = gelu(piece)


def activation_bytes(m: int, n: int, itemsize: int, arrays: str = "numpy") -> int:
    """Bytes that `Epilogue.finish` allocates at one time for an activation of a row-major [m, n].

    >>> activation_bytes(4096, 4096, itemsize=4)
    131072
    """
    height, width = _piece(m, n, PIECE_BYTES[arrays] // itemsize)
    return height * width * itemsize  # `gelu` holds one array of a piece's size


def _piece(lines: int, length: int, most: int) -> tuple[int, int]:
    """(lines, elements of one) of a piece of ``most`` elements at most."""
    width = min(length, most)
    return min(lines, most // width), width


def _pieces(c: Array) -> Iterator[tuple[slice, slice]]:
    """(rows, columns) of pieces of ``c`` [m, n] that lie together: of whole rows where rows are
    contiguous, of whole columns where those are."""
    (m, n), most = c.shape, PIECE_BYTES[array_namespace(c).__name__] // c.itemsize
    if abs(c.strides[1]) <= abs(c.strides[0]):
        height, width = _piece(m, n, most)
    else:
        width, height = _piece(n, m, most)
    for top in range(0, m, height):
        for left in range(0, n, width):
            yield slice(top, min(m, top + height)), slice(left, min(n, left + width))


def pieces(x: Array) -> Iterator[slice]:
    """Slices of ``x`` [n], one behind the other, of as many bytes as the cache has room for.

    For what is done element by element, which so gives the same, to the bit, and whose values on
    the way stay in the cache.

    >>> import numpy as np
    >>> list(pieces(np.zeros(40_000)))
    [slice(0, 16384, None), slice(16384, 32768, None), slice(32768, 40000, None)]
    """
    step = PIECE_BYTES[array_namespace(x).__name__] // x.itemsize
    return (slice(at, min(at + step, len(x))) for at in range(0, len(x), step))
