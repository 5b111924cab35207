"""The exercise on Cannon's shifts: the algorithm, without its skew, with too many shifts, by reads.

Holds `tiledask.lab.exercises.products.shifts`.
"""

import numpy as np
import pytest
from oracles.judged import assert_illegal, missed, targets
from oracles.tasks import cannon

from tiledask.lab.tasks import cannon_by_shifts


def test_cannon_is_solved_with_two_blocks_in_the_skew_and_all_in_each_step():
    result = cannon_by_shifts().check(cannon())
    assert result
    assert targets(result)["blocks moved on 3 x 3"] == (2 * (6 + 2 * 9), 48, None)


def summa(row, column, a, b):
    parts = zip(row.all_gather(a[None]), column.all_gather(b[None]), strict=True)
    return sum(left @ above for left, above in parts)


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (cannon(skewed=False), ["wrong blocks of C"]),
        (cannon(further=1), ["blocks moved on 3 x 3"]),
        (summa, ["calls that are no shift"]),
        (lambda row, column, a, b: np.zeros((4, 2)), ["wrong blocks of C"]),
    ],
)
def test_what_is_wrong_is_told_apart(answer, wrong):
    exercise = cannon_by_shifts()
    found = missed(exercise.check(answer))
    assert found == wrong


def test_what_is_no_algorithm_is_refused_and_nothing_is_quiet():
    exercise = cannon_by_shifts()
    assert_illegal(exercise, lambda row, column, a, b: a, "a block of C has [4, 2] numbers")
    assert_illegal(exercise, 3, "a function such as def cannon")
    assert_illegal(exercise, lambda row, column, a, b: None, "is a return missing")


def test_ranks_of_a_row_that_shift_by_different_places_are_told_so():
    """A row and a column exchanged in the skew: each waits for a block that nobody sends."""

    def swapped(row, column, a, b):
        if row.rank:
            a = row.sendrecv(a, (row.rank - row.rank) % row.size, (2 * row.rank) % row.size)
        return a @ b

    exercise = cannon_by_shifts()
    assert_illegal(exercise, swapped, "all ranks of a row shift equally often")
