"""Rows that are alike, the combinations that occur, and rows that no other one beats."""

import numpy as np
import pytest

from tiledask.plan.arrays import combinations, numbered, unbeaten


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
    assert numbered(column, ("full", "none")).tolist() == [[1, 0], [0, -1]]
    assert numbered(column[:0]).shape == (0, 2)


@pytest.mark.parametrize("same", [0, 1, 2], ids=["none the same", "one", "two"])
@pytest.mark.parametrize("kind", ["i8", "f8"])
def test_what_no_row_beats_is_what_looking_at_all_pairs_finds(same: int, kind: str) -> None:
    rng = np.random.default_rng(same)
    for many in range(40):
        rows = rng.integers(0, 6, (many, 3)).astype(kind)
        rows[:, :same] = rows[:1, :same]
        found = [
            n
            for n, row in enumerate(rows)
            if not any(
                (other <= row).all() and ((other < row).any() or at < n)
                for at, other in enumerate(rows)
            )
        ]
        assert unbeaten(rows) == sorted(found, key=lambda n: rows[n].tolist())
