"""One judged task: the first offence in words, hints one by one, and what is kept of it."""

import pytest
from ipywidgets import widget

import tiledask as td
from tiledask.errors import ConfigError, PartitionError
from tiledask.lab.learner.kept import TASKS, Kept, here
from tiledask.lab.tasks.result import Target, UnsolvedError
from tiledask.lab.tasks.task import JudgedTask


def judged(answer):
    if not isinstance(answer, int):
        raise ConfigError("an answer is a whole number")
    if answer < 0:
        raise PartitionError("layer 3 is missing")
    return [Target("seconds", 10, answer, 8), Target("bytes", 5_000, 100 * answer, None)]


@pytest.fixture
def task(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEDASK_PROGRESS", str(tmp_path))
    monkeypatch.setenv("JPY_SESSION_NAME", "07_cut.ipynb")
    words = {"name": "cut", "title": "A cut", "question": "Cut.", "form": "a number"}
    return JudgedTask(**words, judge=judged, hints=("look", "count", "nearly"))


@pytest.mark.parametrize(
    ("answer", "reason", "stars"),
    [
        ("x", "Not an answer: an answer is a whole number", 0),
        (-1, "Not legal: layer 3 is missing", 0),
        (11, "Not yet: seconds 11, target at most 10: near, 1 too much.", 1),
        (60, "Not yet: seconds 60, target at most 10: 50 too much; 1 more below.", 1),
        (600, "Not yet: seconds 600, target at most 10: far, 60 times as much; 1 more below.", 1),
        (9, "Solved: every target is met.", 2),
        (8, "Solved: every target is met.", 3),
    ],
)
def test_the_first_offence_in_words(task, answer, reason, stars):
    result = task.check(answer)
    assert (result.reason, result.stars, bool(result)) == (reason, stars, stars >= 2)
    assert ("best possible" in result._repr_html_()) == (stars >= 2)


def test_hints_come_one_by_one_and_stars_are_kept(task, tmp_path):
    offered = "One more "
    assert offered in task.result(11)._repr_html_()
    assert [str(task.hint())[:11] for _ in range(4)] == [f"Hint {n} of 3" for n in (1, 2, 3, 3)]
    assert offered not in task.result(11)._repr_html_()  # all were seen
    for answer in (None, 9, 8, "x"):  # not attempted does not count, and what was reached stays
        task.check(answer)
    task.result(11)  # kept of nothing
    kept = Kept("07_cut", tmp_path / "07_cut.json")
    known = {"hints": 3, "tries": 3, "stars": 3, "solved": True}
    assert (kept.all(), kept.all(TASKS)) == ({}, {"cut": known})
    assert here().get("cut", TASKS) == known


@pytest.mark.parametrize("shown", [lambda task: task, lambda task: task.check(60)])
def test_a_button_below_a_task_or_its_result_gives_the_next_hint(task, shown):
    bundle = shown(task)._repr_mimebundle_()
    view = bundle["application/vnd.jupyter.widget-view+json"]
    words, button = widget._instances[view["model_id"]].children
    assert (button.description, "hint()" in words.value) == ("Hint (3 left)", False)
    for text, left in (("look", 2), ("count", 1), ("nearly", 0)):
        button.click()
        assert words.value.count(text) == 1
        assert (button.description, button.disabled) == (f"Hint ({left} left)", not left)
    assert set(task._repr_mimebundle_()) == set(task.check(9)._repr_mimebundle_())  # none is left
    assert set(task.check(9)._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_a_function_that_asserts_is_the_judge_of_an_exercise():
    def judge(answer):
        assert answer > 1, f"{answer} is too little"
        return "more than one"

    task = td.task(judge)
    assert not task.check(None).attempted
    wrong, right = task.check(1), task.check(2)
    assert (wrong.reason, wrong.stars) == ("Not yet: 1 is too little.", 0)
    assert (right.reason, right.stars) == ("Solved: more than one.", 3)
    assert here().get("exercise", TASKS)["solved"]
    with pytest.raises(UnsolvedError, match="1 is too little"):
        task.result(1).require()
    assert task.check("one").reason.startswith("Not yet: TypeError: '>' not supported between")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def sums(group):\n    return group.all_reduce(1 / 0)", "your line 2: ZeroDivisionErr"),
        ("def sums(group):\n    yield 1\n    assert 0, 'mine.'", "your line 3: mine."),
        ("def sums(group):\n    if group.rank:\n        group.barrier()", "your line 3: Coll"),
        ("def sums(g):\n    def part():\n        1 / 0\n    part()", "your line 3: ZeroDivisionE"),
        ("def sums():\n    return 3", "TypeError: sums() takes 0 positional arguments but 1 was"),
    ],
)
def test_what_an_answer_raises_is_one_sentence_with_its_line(source, words):
    names = {}
    exec(compile(source, "a cell", "exec"), names)

    def judge(answer):
        for each in td.run_threads(lambda rank: answer(rank.group()), 2).results:
            assert sum(each or (3,)) == 3, "not 3"
        return "3"

    reason = td.task(judge).check(names["sums"]).reason
    assert reason.startswith(f"Not yet: {words}")
    assert "\n" not in reason
    assert not reason.endswith("..")
