"""Rows that are alike, and the combinations that occur."""

import numpy as np
import pytest

from tiledask.plan.arrays import combinations, numbered


@pytest.mark.parametrize("largest", [3, 10**5, 2**40], ids=["listed", "sorted", "beyond 64 bits"])
def test_each_row_has_the_combination_that_it_is_said_to_have(largest: int) -> None:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, largest, (20, 4))
    drawn[:, 1:] = largest - 1  # what they differ in would be the first to leave 64 bits
    columns = list(drawn[rng.integers(0, 20, 500)].T)
    rows, which = combinations(columns)
    assert len(rows) == len({*zip(*(column.tolist() for column in columns), strict=True)})
    for column in columns:
        assert (column[rows][which] == column).all()


def test_words_are_numbered_by_where_they_first_stand() -> None:
    column = np.array([["none", "full"], ["full", "half"]])
    assert numbered(column).tolist() == [[0, 1], [1, 2]]
    assert numbered(column[:0]).shape == (0, 2)
    assert numbered(np.array([7, -1])).tolist() == [7, -1]
