"""Rotary position embedding: pairs of a head's columns turn by an angle that grows with position.

    columns   0  1 .. w/2-1 | w/2 .. w-1 | w .. e-1
    pair      (j, j + w/2)  by position base^(-2j/w)     the rest passes

Column j is paired with j + w/2, as in checkpoints of Hugging Face. The paper, Su et al.
(arXiv:2104.09864), pairs 2j with 2j + 1: the same after a permutation of columns of wq and wk.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, accumulator, array_namespace, as_dtype, namespace, to_numpy
from tiledask.tile.layers.by_name import layer
from tiledask.tile.layers.operands import check_integers, rounded, wide

__all__ = ["Angles", "rotary_angles", "rotate", "rotate_grad"]


class Angles(NamedTuple):
    """What turns a head's columns: cosine and sine [tokens, w/2] of each angle."""

    cos: Array
    sin: Array


def rotary_angles(
    positions: Any,
    width: int,
    base: float = 10_000.0,
    dtype: DTypeLike = "float32",
    xp: str = "numpy",
) -> Angles:
    """The angles of tokens at ``positions`` [tokens], of heads whose first ``width`` columns turn.

    Positions are any integers: a slice of a sequence begins where it begins. Angles are computed
    in float64 and rounded to the accumulator of ``dtype`` only as sine and cosine, because float32
    angles of far positions are wrong in the third digit.

    >>> rotary_angles(np.arange(2), 4).sin.round(4).tolist()
    [[0.0, 0.0], [0.8414999842643738, 0.009999999776482582]]
    """
    check_integers("positions", positions)
    if positions.ndim != 1:
        raise KernelError(f"positions are a row, one for each token, got {positions.shape}")
    if width < 2 or width % 2:
        raise KernelError(
            f"columns turn in pairs, so width is 2, 4, ..., got {width}; for a head of odd width "
            f"pass {max(2, width - 1)}: the rest passes"
        )
    frequencies = base ** (-2.0 * np.arange(width // 2) / width)
    angles = to_numpy(positions)[:, None] * frequencies  # [tokens, width/2]
    module, kind = namespace(xp), accumulator(as_dtype(dtype))
    return Angles(*(module.asarray(f(angles).astype(kind)) for f in (np.cos, np.sin)))


@layer("x:*te -> *te", program=False)
def rotate(x: Array, angles: Angles) -> Array:
    """x [..., tokens, e], turned.

    >>> x = np.array([[1.0, 0.0]])
    >>> rotate(x, rotary_angles(np.array([1]), 2, dtype="float64"))[0].round(4).tolist()
    [[0.5403, 0.8415]]
    """
    tokens, half = angles.cos.shape
    if x.shape[-2] != tokens or x.shape[-1] < 2 * half:
        raise KernelError(
            f"angles are of {tokens} tokens and {2 * half} columns, got x {x.shape}, whose last "
            f"axes are tokens and columns; make rotary_angles of the positions of x"
        )
    return rounded(_turned(wide(x), *angles), x)


@rotate.grad
def rotate_grad(dy: Array, angles: Angles) -> Array:
    """dx: turned back, for the transpose of a rotation is its inverse."""
    return rounded(_turned(wide(dy), angles.cos, -angles.sin), dy)


def _turned(x: Array, cos: Array, sin: Array) -> Array:
    half = cos.shape[-1]
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = [left * cos - right * sin, left * sin + right * cos, rest]
    return array_namespace(x).concatenate(turned, axis=-1)
