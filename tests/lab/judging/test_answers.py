"""Some 340 answers to all tasks, right, near, wrong and malformed, judged as a learner has to read.

Holds `tiledask.lab.puzzles.lost_time`.
"""

import re

import numpy as np
import pytest
from answers import ANSWERS
from oracles.tasks import EXERCISES, FOUND, NAMES, ON_WORKERS, task

from tiledask.errors import ConfigError, PartitionError
from tiledask.lab.exercises import slots
from tiledask.lab.judging import Exercise
from tiledask.lab.judging.result import WRONG
from tiledask.lab.plots.style import RED, canvas
from tiledask.lab.puzzles import puzzle_names

BEGINS = {
    "solved": "Solved: ",
    "not yet": "Not yet: ",
    "not legal": "Not legal: ",
    "not an answer": "Not an answer: ",
}
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


def judged_as_the_table_says(judge, name):
    right = judge.result(FOUND[name](judge))
    assert right.reason == "Solved: every target is met."
    assert right.stars >= 2
    for answer, verdict, words in ANSWERS[name]:
        result = judge.result(answer)
        said = f"{name}, {answer!r}: {result.reason}"
        assert result.reason.startswith(BEGINS[verdict]), said
        assert words in result.reason, said
        assert bool(result) == (verdict == "solved"), said
        assert result.legal == (verdict in ("solved", "not yet")), said
        # until every target is met the best is named nowhere
        if not result:
            assert "best" not in f"{result.score} {result._repr_html_()}", said
    for answer in ODD:
        result = judge.result(answer)
        assert result.attempted
        assert judge.result(answer).reason.startswith(tuple(BEGINS.values()))


def test_the_table_has_all_tasks_and_more_than_200_answers():
    assert set(ANSWERS) == set(NAMES) == set(FOUND)
    assert sum(map(len, ANSWERS.values())) > 200
    for name, rows in ANSWERS.items():
        verdicts = {verdict for _, verdict, _ in rows}
        assert "not yet" in verdicts or "not legal" in verdicts, name
        assert verdicts & {"not an answer", "not legal"}, name


@pytest.mark.few(16)
@pytest.mark.long
@pytest.mark.parametrize("name", ALONE)
def test_answers_are_judged_as_a_learner_has_to_read(name, one_thread):
    judged_as_the_table_says(task(name), name)


@pytest.mark.few(1)
@pytest.mark.cluster
@pytest.mark.parametrize("name", ON_WORKERS)
def test_answers_that_run_on_workers(name, cluster, monkeypatch):
    monkeypatch.setattr(slots, "UNIT", 0.001)
    judged_as_the_table_says(ON_WORKERS[name](cluster), name)


NOWHERE = {
    "the answer is a number or a name, and has no place in the drawing": (
        "fewest-microbatches when-gpipe-wins five-percent-idle "
        "fewest_gpus fewest_devices until_layerwise_moves_more step_traffic faulty_run "
        "copies_that_fit"
    ),
    "some offences are in no element of what is drawn": (
        "block_and_tile layer_too_large ranks_on_hosts repaired_kernel tile_within uneven_copies"
    ),
}
MARKED = [name for name in ALONE if name not in " ".join(NOWHERE.values()).split()]


def marks(figure) -> list[str]:
    """What is framed or hatched in red, and red names of rows."""
    parts = [part for axes in figure.axes for part in (*axes.get_children(), axes.title)]
    named = [str(part.get_gid()) for part in parts if str(part.get_gid()).startswith("wrong")]
    ticks = [tick for axes in figure.axes for tick in axes.get_yticklabels()]
    return named + [tick.get_text() for tick in ticks if tick.get_color() == RED]


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("name", MARKED)
def test_the_drawing_of_a_wrong_answer_marks_the_offence(name, one_thread):
    judge = task(name)
    assert marks(judge.draw(FOUND[name](judge))) == []
    if "shown" not in getattr(judge, "inputs", ()):  # a proposal to repair
        assert marks(judge.draw()) == []
    for answer, verdict, _ in ANSWERS[name]:
        if verdict in ("not yet", "solved"):
            assert bool(marks(judge.draw(answer))) == (verdict == "not yet"), (name, answer)


@pytest.mark.parametrize("error", [ValueError("operands could not be broadcast"), KeyError("x")])
def test_a_mistake_of_ours_is_no_verdict_on_an_answer(error):
    def broken(answer):
        raise error

    with pytest.raises(type(error)):
        Exercise(name="broken", measured=broken, drawn=broken).check(3)
    with pytest.raises(type(error)):
        Exercise(name="broken", measured=broken, drawn=broken).draw(3)


@pytest.mark.parametrize("refused", [ConfigError("a"), PartitionError("b")])
def test_what_is_refused_is_drawn_as_the_task_and_its_title_says_so(refused):
    def picky(answer):
        if answer is not None:
            raise refused
        return canvas(1, "Three bars")

    task = Exercise(name="picky", measured=picky, drawn=picky)
    assert task.draw(3).get_suptitle() == "Three bars\nthe task: your answer cannot be drawn"
    assert task.draw().get_suptitle() == "Three bars"


# -- what a task says before the first answer ------------------------------------------------------


def numbers(text: str) -> set[float]:
    """Every number in ``text``; 1F1B and 3F2 are none."""
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])", text)
    return {float(number.replace(",", "").rstrip(".")) for number in found}


IN_WORDS = {
    WRONG: "all of it is to be right",
    "seconds a step": "no slower than before, or than the fastest by so many percent",
    "microseconds at least": "as fast as any such tile",
    "latencies at which GPipe is not ahead": "finishes before it",
}
"""Targets that a question asks for without their number."""


def of_every_task(names, judge_of):
    for name in names:
        judge = judge_of(name)
        assert judge.question, name
        assert judge.form, name
        assert len(judge.hints) == len(set(judge.hints)) == 3, name
        answer = FOUND[name](judge)
        shown = " ".join(judge.hints)
        assert not re.search(rf"(?<!\w){re.escape(str(answer).lower())}(?!\w)", shown.lower()), name
        asked = numbers(judge.question)
        told, percent = numbers(shown) - asked, {number / 100 for number in asked}
        for target in judge.result(answer).targets:
            close = any(abs(n - target.wanted) <= 1e-3 * n for n in asked | percent)
            assert target.least or close or target.name in IN_WORDS, (name, target)
            said = numbers(f"{judge.question} {judge.form} {shown}")
            assert not target.least or target.wanted not in said, (name, target)
            if target.best and target.best > 4:  # 2 and 3 are in many sentences
                assert target.best not in told, (name, target)


@pytest.mark.long
def test_every_task_asks_says_how_to_answer_and_has_three_hints_that_do_not(one_thread):
    of_every_task(ALONE, task)


@pytest.mark.cluster
def test_tasks_on_workers_ask_and_hint_too(cluster):
    of_every_task(ON_WORKERS, lambda name: ON_WORKERS[name](cluster))
