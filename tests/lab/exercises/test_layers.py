"""Exercises on split layers, rows and programs; each judged by runs, and here by brute force.

Holds `tiledask.lab.exercises.layers` and `tiledask.lab.exercises.programs`.
"""

from itertools import combinations

import numpy as np
import pytest
from oracles.judged import missed, targets
from oracles.tasks import BACK, FORTH, cannon, skipping, task

import tiledask as td
from tiledask.lab.exercises.layers import PLACES

pytestmark = pytest.mark.usefixtures("one_thread")


def test_no_sum_fewer_and_one_pair_alone_is_right():
    sums = task("fewest-sums")
    few = [(), *((place,) for place in PLACES), *combinations(PLACES, 2)]
    assert [chosen for chosen in few if sums.result(chosen)] == [("y", "dnormed")]


LOANS = {0: (3, 4), 1: (2, 6), 2: (4, 5, 9, 10), 3: (8,)}
"""Of 11 rows on 4 ranks, windows of 5 rows, stride 2, two rows of zeros at both ends."""


def test_the_loans_suffice_and_each_of_them_is_needed():
    rows = task("borrowed-rows")
    assert rows.check(LOANS).best
    for rank, mine in LOANS.items():
        for row in mine:
            fewer = LOANS | {rank: tuple(r for r in mine if r != row)}
            lost = targets(rows.check(fewer))["output rows that lack an input row"]
            assert lost[0] > lost[1] == 0
    wide = {0: (3, 4), 1: (1, 2, 6, 7), 2: (4, 5, 9, 10), 3: (7, 8)}  # halos of two rows
    assert "rows borrowed 12, target at most 9: 3 too much" in rows.check(wide).reason


def test_the_fewest_loans_are_those_of_every_set_tried():
    exercise = td.task("borrowed-rows", (3, 2), 3, 1, (1, 1))
    found = [
        (len(zero) + len(one), zero, one)
        for n in range(3)
        for zero in combinations((3, 4), n)
        for m in range(4)
        for one in combinations((0, 1, 2), m)
        if exercise.check({0: zero, 1: one}).targets[0].met
    ]
    assert min(found) == (2, (3,), (2,))
    assert exercise.check({0: (3,), 1: (2,)}).targets[1].wanted == 2


# -- a skip connection -----------------------------------------------------------------------------


def test_each_half_that_is_missing_is_named_and_a_relay_counts_by_who_made_it():
    exercise = td.task("skip-connection")
    for changes, words in ((FORTH, "0B.0 reads nothing that 2B.0"), (BACK, "2F.0 reads nothing")):
        result = exercise.check(skipping(*changes))
        assert words in result.reason
        assert targets(result)["inputs that actions lack"][0] == 4
    relay = (
        ("send x2 to 2 @to_2", "send x2 to 2 @to_2\n    send x1 to 2 @to_2"),
        FORTH[1],
        ("kept2 = do forward x2", "x1 = recv from 1 @from_1\n    kept2 = do forward x2 x1"),
    )
    assert exercise.check(skipping(*relay, *BACK))


# -- Cannon ----------------------------------------------------------------------------------------


def summa(row, column, a, b):
    parts = zip(row.all_gather(a[None]), column.all_gather(b[None]), strict=True)
    return sum(left @ above for left, above in parts)


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (cannon(), []),
        (cannon(skewed=False), ["wrong blocks of C"]),
        (cannon(further=1), ["blocks moved on 3 x 3"]),
        (summa, ["calls that are no shift"]),
        (lambda row, column, a, b: np.zeros((4, 2)), ["wrong blocks of C"]),
    ],
)
def test_shifts_that_are_wrong_are_told_apart(answer, wrong):
    assert missed(td.task("cannon").check(answer)) == wrong
