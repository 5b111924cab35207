"""The linear layer: y = x w + b, with or without b."""

from tiledask.tile.backend import Array
from tiledask.tile.layers.by_name import layer, op
from tiledask.tile.layers.operands import by_token, multiply, rounded, wide

__all__ = ["linear", "linear_grad", "linear_grad_input", "linear_grad_weight"]


@layer("x:*i w:io b:o -> *o")
def linear(x: Array, w: Array, b: Array | None = None, turned: bool = False) -> Array:
    """x w + b [..., out] for x [..., in], w [in, out] and b [out], or no b.

    Of halves the whole sum, b included, is float32 and rounded once. A program's w may be
    [out, in], ``turned``.

    >>> import numpy as np
    >>> linear(np.ones((2, 3)), np.ones((3, 1)), np.ones(1))[0].tolist()
    [[4.0], [4.0]]
    """
    y = multiply(x, w.T if turned else w)
    if b is not None:
        y += wide(b)
    return rounded(y, x)


@op
def linear_grad_input(dy: Array, w: Array, turned: bool = False) -> Array:
    """dx = dy w^T [..., in]: the half of the backward that the layer before waits for."""
    return rounded(multiply(dy, w if turned else w.T), dy)


@op
def linear_grad_weight(
    dy: Array, x: Array, turned: bool = False, bias: bool = True
) -> tuple[Array, Array | None]:
    """(dw [in, out], db [out]) = (x^T dy, the sum of dy): the half that nobody waits for.

    Without a ``bias`` db is None.
    """
    dy, x = by_token(dy), by_token(x)
    db = rounded(wide(dy).sum(axis=0), dy) if bias else None
    dw = rounded(multiply(x.T, dy), dy)
    return dw.T if turned else dw, db


@linear.grad
def linear_grad(
    dy: Array, x: Array, w: Array, b: Array | None = None
) -> tuple[Array, Array, Array | None]:
    """(dx, dw, db); db is None where b is."""
    return linear_grad_input(dy, w), *linear_grad_weight(dy, x, bias=b is not None)
