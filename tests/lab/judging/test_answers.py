"""Some 300 answers to all tasks, right, near, wrong and malformed, judged as a learner has to read.

What each is worth is in tests/golden/judged*.json.gz; here is what holds for all of them.
"""

import re

import numpy as np
import pytest
from golden.course import answer_of
from golden.sets import SETS
from oracles.tasks import EXERCISES, FOUND, task

from tiledask.errors import ConfigError, PartitionError
from tiledask.lab.exercises.exercise import Exercise
from tiledask.lab.judging.result import WRONG
from tiledask.lab.plots.style import canvas
from tiledask.lab.puzzles import puzzle_names

BEGINS = ("Solved: ", "Not yet: ", "Not legal: ", "Not an answer: ")
ALONE = [*puzzle_names(), *EXERCISES]
ODD = (
    3.7,
    "?",
    b"1",
    (),
    [],
    {},
    {"a": 1},
    {1: {2}},
    object(),
    np.arange(4),
    ([[128], 128, 32], 3),
    int,
    float("nan"),
    -1,
    [[]],
    ["x"],
    "1 " * 9,
)
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


def is_kept_secret(result) -> None:
    """Until every target is met the best is named nowhere."""
    assert result or "best" not in f"{result.score} {result._repr_html_()}"


@pytest.mark.few(16)
@pytest.mark.parametrize("name", ALONE)
def test_answers_are_judged_as_a_learner_has_to_read(name, one_thread):
    judge = task(name)
    assert judge.result(None).reason == "Not attempted yet."
    rows = typed(name)
    assert not all(solved for _, solved, _ in rows)
    for answer, solved, legal in rows:
        result = judge.result(answer)
        assert result.reason.startswith(
            "Solved" if solved else "Not yet: " if legal else BEGINS[2:]
        ), (name, answer, result.reason)
        is_kept_secret(result)
    for answer in ODD:
        result = judge.result(answer)
        assert result.attempted
        assert result.reason.startswith(BEGINS)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ALONE)
def test_a_task_and_what_is_no_answer_are_drawn(name, one_thread):
    for answer in (None, "?"):
        assert task(name).draw(answer).to_png().startswith(b"\x89PNG")


@pytest.mark.parametrize("error", [ValueError("operands could not be broadcast"), KeyError("x")])
def test_a_mistake_of_ours_is_no_verdict_on_an_answer(error):
    def broken(answer):
        raise error

    for drawn in (None, broken):
        it = Exercise(name="broken", judging=broken, drawing=drawn, read=lambda answer: answer)
        with pytest.raises(type(error)):
            it.check(3)
        with pytest.raises(type(error)):
            it.draw(3)


@pytest.mark.parametrize("refused", [ConfigError("a"), PartitionError("b")])
def test_what_is_refused_is_drawn_as_the_task_and_its_title_says_so(refused):
    def picky(answer):
        if answer is not None:
            raise refused
        return canvas(1, "Three bars")

    task = Exercise(name="picky", judging=picky, drawing=picky, read=lambda answer: answer)
    assert task.draw(3).get_suptitle() == "Three bars\nthe task: your answer cannot be drawn"
    assert task.draw().get_suptitle() == "Three bars"


# -- what a task says before the first answer ------------------------------------------------------


def numbers(text: str) -> set[float]:
    """Every number in ``text``; 1F1B and 3F2 are none."""
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])", text)
    return {float(number.replace(",", "").rstrip(".")) for number in found}


IN_WORDS = {
    WRONG: "all of it is to be right",
    "latencies at which GPipe is not ahead": "finishes before it",
}
"""Targets that a question asks for without their number."""


@pytest.mark.parametrize("name", ALONE)
def test_a_task_asks_says_how_to_answer_and_has_three_hints_that_do_not(name, one_thread):
    judge = task(name)
    assert judge.question
    assert judge.form
    assert len(judge.hints) == len(set(judge.hints)) == 3
    answer = FOUND[name](judge)
    shown = " ".join(judge.hints)
    assert not re.search(rf"(?<!\w){re.escape(str(answer).lower())}(?!\w)", shown.lower())
    asked = numbers(judge.question)
    told, percent = numbers(shown) - asked, {number / 100 for number in asked}
    for target in judge.result(answer).targets:
        close = any(abs(n - target.wanted) <= 1e-3 * n for n in asked | percent)
        exercise = isinstance(judge, Exercise)  # the walkthrough has their numbers
        assert exercise or target.least or close or target.name in IN_WORDS, target
        said = numbers(f"{judge.question} {judge.form} {shown}")
        assert not target.least or target.wanted not in said, target
        if target.best and target.best > 4:  # 2 and 3 are in many sentences
            assert target.best not in told, target
