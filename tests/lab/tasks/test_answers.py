"""Some 300 answers to all tasks, right, near, wrong and malformed, judged as a learner has to read.

What each is worth is in tests/golden/judged*.json.gz; here is what holds for all of them.
"""

import re

import numpy as np
import pytest
from golden.course import answer_of
from golden.sets import SETS
from oracles.tasks import EXERCISES, FOUND, cannon, task

import tiledask as td
from tiledask.lab.tasks import puzzle_names
from tiledask.lab.tasks.result import WRONG
from tiledask.lab.tasks.task import JudgedTask

pytestmark = pytest.mark.usefixtures("one_thread")

BEGINS = ("Solved: ", "Not yet: ", "Not legal: ", "Not an answer: ")
ALONE = [*puzzle_names(), *EXERCISES]
ODD = [3.7, "?", b"1", (), [], {}, {"a": 1}, {1: {2}}, object(), np.arange(4), int, -1, [[]], ["x"]]
ODD += [([[128], 128, 32], 3), float("nan"), "1 " * 9]
"""What nobody would call an answer; one of them may be one to a task, and none is a traceback."""


def typed(name: str) -> list[tuple]:
    """(answer, whether it solves the task, whether it is legal) of the golden rows of a task."""
    rows = [*SETS["judged"].stored().values(), *SETS["judged_long"].stored().values()]
    mine = [(given, values) for given, values in rows if given["task"] == name]
    return [
        (answer_of(given), values["solved"], values["legal"])
        for given, values in mine
        if given["answer"] != "right"
    ]


@pytest.mark.few(16)
@pytest.mark.parametrize("name", ALONE)
def test_answers_are_judged_as_a_learner_has_to_read(name):
    judge = task(name)
    assert judge.result(None).reason.startswith("Not attempted yet")
    rows = typed(name)
    assert rows, "add wrong answers, and a right one, to the golden set judged"
    assert not all(solved for _, solved, _ in rows)
    for answer, solved, legal in rows:
        result = judge.result(answer)
        assert result.reason.startswith(
            "Solved" if solved else "Not yet: " if legal else BEGINS[2:]
        ), (name, answer, result.reason)
        # until every target is met the best is named nowhere
        assert result or "best" not in f"{result.score} {result._repr_html_()}"
    for answer in ODD:
        result = judge.result(answer)
        assert result.attempted
        assert result.reason.startswith(BEGINS)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ALONE)
def test_a_task_and_what_is_no_answer_are_drawn(name):
    for answer in (None, "?"):
        assert task(name).draw(answer).to_png().startswith(b"\x89PNG")


def test_a_mistake_of_ours_is_no_verdict_on_an_answer():
    def broken(answer):
        raise ValueError("operands could not be broadcast")

    it = JudgedTask(name="broken", title="Broken", question="?", form="3", judge=broken)
    with pytest.raises(ValueError, match="operands"):
        it.check(3)


# -- what a task says before the first answer ------------------------------------------------------


def numbers(text: str) -> set[float]:
    """Every number in ``text``; 1F1B and 3F2 are none."""
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])", text)
    return {float(number.replace(",", "").rstrip(".")) for number in found}


@pytest.mark.parametrize("name", ALONE)
def test_a_task_asks_says_how_to_answer_and_has_three_hints_that_do_not(name):
    judge = task(name)
    assert judge.question
    assert judge.form
    assert len(judge.hints) == len(set(judge.hints)) == 3
    assert name in FOUND, "an answer that is right stands in tests/oracles/tasks.py"
    answer = FOUND[name](judge)
    shown = " ".join(judge.hints)
    assert not re.search(rf"(?<!\w){re.escape(str(answer).lower())}(?!\w)", shown.lower())
    asked = numbers(judge.question)
    told, percent = numbers(shown) - asked, {number / 100 for number in asked}
    for target in judge.result(answer).targets:
        close = any(abs(n - target.wanted) <= 1e-3 * n for n in asked | percent)
        exercise = name in EXERCISES  # the notebook has their numbers
        assert exercise or target.least or close or target.name == WRONG, target
        said = numbers(f"{judge.question} {judge.form} {shown}")
        assert not target.least or target.wanted not in said, target
        if target.best and target.best > 4:  # 2 and 3 are in many sentences
            assert target.best not in told, target


# -- the notebooks' exercises: shifts, a faulty run ---------------------------------------------


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
