"""The linear layer: y = x w + b, with or without b."""

from typing import Any

from tiledask.tile.layers.operands import (
    by_token,
    check_floats,
    check_shape,
    multiply,
    rounded,
    wide,
)

__all__ = ["linear", "linear_grad", "linear_grad_input", "linear_grad_weight"]


def linear(x: Any, w: Any, b: Any = None) -> tuple[Any, Any]:
    """(y [..., out], kept) for x [..., in], w [in, out] and b [out], or no b; keeps x.

    Of halves the whole sum, b included, is float32 and rounded once.

    >>> import numpy as np
    >>> y, kept = linear(np.ones((2, 3)), np.ones((3, 1)), np.ones(1))
    >>> y.tolist()
    [[4.0], [4.0]]
    """
    check_floats(x=x, w=w, b=b)
    check_shape("w", w, (x.shape[-1], None), "as many rows as x has columns, by outputs")
    y = multiply(x, w)
    if b is not None:
        check_shape("b", b, (w.shape[1],), "one for each column of w")
        y += wide(b)
    return rounded(y, x), x


def linear_grad(dy: Any, kept: Any, w: Any, b: Any = None) -> tuple[Any, Any, Any]:
    """(dx, dw, db) of `linear`; db is None where b is.

    >>> import numpy as np
    >>> x, w = np.ones((2, 3)), np.ones((3, 1))
    >>> dx, dw, db = linear_grad(np.ones((2, 1)), x, w)
    >>> dx.shape, dw.tolist(), db
    ((2, 3), [[2.0], [2.0], [2.0]], None)
    """
    dw, db = linear_grad_weight(dy, kept)
    return linear_grad_input(dy, w), dw, None if b is None else db


def linear_grad_input(dy: Any, w: Any) -> Any:
    """dx = dy w^T [..., in]: the half of the backward that the layer before waits for."""
    check_floats(dy=dy, w=w)
    return rounded(multiply(dy, w.T), dy)


def linear_grad_weight(dy: Any, x: Any) -> tuple[Any, Any]:
    """(dw [in, out], db [out]) = (x^T dy, the sum of dy): the half that nobody waits for."""
    check_floats(dy=dy, x=x)
    check_shape("dy", dy, (*x.shape[:-1], None), "as many rows as x has")
    dy, x = by_token(dy), by_token(x)
    db = wide(dy).sum(axis=0)
    return rounded(multiply(x.T, dy), dy), rounded(db, dy)
