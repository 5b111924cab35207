"""Sums and maxima of what several ranks bring, always in the same order.

The partial sums of a round are combined from the left, by rank. Every chunk is summed on one rank
and then copied, so all ranks have the same bits; with "direct" they are those of x0 + x1 + ...
"""

from collections.abc import Sequence

import numpy as np

from tiledask.errors import ConfigError
from tiledask.tile.backend import accumulator

__all__ = ["OPERATIONS", "check_operation", "combined", "sum_dtype"]

OPERATIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def combined(
    parts: Sequence[np.ndarray], op: str, dtype: np.dtype, spare: int | None = None
) -> np.ndarray:
    """``parts`` combined from the left in ``dtype``; whatever overflows is inf.

    A new array; or, if it has that type, part number ``spare`` (0 or 1), which nobody needs.

    >>> half = [np.array([60000, 1], np.float16)] * 2
    >>> combined(half, "sum", np.dtype("float16")), combined(half, "sum", np.dtype("float32"))
    (array([inf,  2.], dtype=float16), array([1.2e+05, 2.0e+00], dtype=float32))
    """
    operate, out = OPERATIONS[op], None
    if spare is not None and parts[spare].dtype == dtype:
        out = parts[spare]
    with np.errstate(over="ignore", invalid="ignore"):
        result: np.ndarray = operate(
            parts[0].astype(dtype, copy=False), parts[1].astype(dtype, copy=False), out=out
        )
        for part in parts[2:]:
            operate(result, part.astype(dtype, copy=False), out=result)
    return result


def check_operation(op: str) -> None:
    """Raise ConfigError if there is no such operation."""
    if op not in OPERATIONS:
        raise ConfigError(f"no operation {op!r}; there are {', '.join(OPERATIONS)}")


def sum_dtype(dtype: np.dtype, wide: bool) -> np.dtype:
    """The type in which ``dtype`` is summed: itself, or float32 for halves if ``wide``."""
    return accumulator(dtype.name) if wide else dtype
