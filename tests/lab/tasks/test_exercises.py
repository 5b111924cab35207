"""The walkthroughs' exercises: shifts, a faulty run."""

import numpy as np
import pytest
from oracles.tasks import cannon

import tiledask as td

pytestmark = pytest.mark.usefixtures("one_thread")


def missed(result):
    return [target.name for target in result.targets if not target.met]


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


def test_one_run_is_faulty_float64_tells_and_nothing_printed_does():
    suspects = td.task("faulty-run", seed=0)
    right = [name for name in suspects.runs if suspects.check(name)]
    assert len(right) == 1
    assert suspects.runs[right[0]].dtype == "bfloat16"
    wrong = next(name for name in suspects.runs if name not in right)
    assert missed(suspects.check(wrong)) == ["sound runs accused", "faulty runs at large"]
    apart = {name: suspects.again(name).max() for name in suspects.runs}
    assert apart.pop(right[0]) > 1e-7
    assert max(apart.values()) < 1e-14
    assert "tiny" not in f"{suspects.runs} {suspects}"
    assert "AdamW" not in f"{suspects.runs} {suspects}"
