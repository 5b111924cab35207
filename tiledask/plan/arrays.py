"""Numbers that may be many: the types of one value or an array of them, and rows that are alike."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Columns", "Values", "combinations", "stacked", "unbeaten"]

Array = NDArray[Any]
Values = float | Array
"""One number, or an array with one for each layout that is looked at at once."""
Columns = dict[str, Array]


def stacked(*values: Values) -> Array:
    """Numbers and arrays of them, one below the other; the last axis is that of the layouts."""
    return np.stack(np.broadcast_arrays(*map(np.atleast_1d, values)))


def combinations(columns: Sequence[Array]) -> tuple[Array, Array]:
    """(a row of each combination of the columns that occurs; which of these each row has). Whole
    numbers of 0 or more are in their order, words in that in which they first stand."""
    code, codes = np.zeros(columns[0].shape, np.int64), 1
    for given in columns:
        column = given
        if given.dtype.kind not in "bi":
            column, many = np.full(given.shape, -1), 0
            while column.min(initial=0) < 0:
                column[given == given.flat[column.argmin()]] = many
                many += 1
        many = int(column.max()) + 1
        if codes * many >= 2**62:
            code = np.unique(code, return_inverse=True)[1]
            codes = int(code.max()) + 1
        code, codes = code * many + column, codes * many
    if codes > 2**22:
        _, rows, which = np.unique(code, return_index=True, return_inverse=True)
        return rows, which
    there = np.zeros(codes, np.bool_)
    there[code] = True
    which = np.searchsorted(np.flatnonzero(there), code)
    rows = np.empty(1 + which.max(), np.int64)
    rows[which] = np.arange(len(code))
    return rows, which


def unbeaten(rows: Array) -> list[int]:
    """Which rows have no other that is as small in all columns, sorted; of equal ones one."""
    kept: list[int] = []
    left = np.lexsort(rows.T[::-1])  # so that nothing later beats an earlier one
    while len(left):
        kept.append(int(left[0]))
        left = left[~(rows[left[0]] <= rows[left]).all(axis=1)]
    return kept
