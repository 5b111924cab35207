"""The idle-time ladder: what the working says, the simulator says, for any seed; and the judge."""

import json
import re
from functools import cache
from html import unescape

import pytest

import tiledask as td
from tiledask.cli import main
from tiledask.errors import ConfigError

LEVELS = range(1, 13)
SEEDS = 100


@cache
def level(number, seed=0):
    return td.tasks.idle_level(number, seed)


def worked(task):
    """The answer that the working ends in, worked out without the simulator."""
    return task.lines[-1].removeprefix("Answer: ")


def compact(text):
    return re.sub(r"[^a-z0-9./%]", "", text.lower())


@pytest.mark.few(2)
@pytest.mark.parametrize("number", LEVELS)
def test_the_working_ends_in_what_the_simulator_says_and_another_seeds_answer_is_wrong(number):
    tasks = [level(number, seed) for seed in range(SEEDS)]
    answers = [worked(task) for task in tasks]
    wrong = [t.seed for t, a in zip(tasks, answers, strict=True) if t.result(a).stars != 3]
    assert wrong == []
    stale = zip(tasks, answers[1:] + answers[:1], strict=True)
    assert sum(bool(task.result(answer)) for task, answer in stale) <= 0.05 * SEEDS
    assert len(set(answers)) >= 30
    assert max(map(len, answers)) < 200  # worked by hand


@pytest.mark.few(6)
@pytest.mark.parametrize("number", LEVELS)
def test_no_hint_form_or_verdict_says_the_answer(number):
    for seed in range(40):
        task = level(number, seed)
        answer, stale = worked(task), worked(level(number, seed + 1))
        result = task.result(stale)
        assert len(task.hints) == 3
        assert "  " not in " ".join([task.question, task.form, *task.hints, *task.lines])
        told = [*task.hints, repr(task), task._repr_html_(), str(task.result(None))]
        if not result:
            told += [result.reason, str(result.to_dict()), result._repr_html_()]
        if "," in answer or ";" in answer:
            assert not [words for words in told if compact(answer) in compact(words)]
        else:  # one number, which may be another's too
            others = {*re.findall(r"\d+", f"{task.question} {stale} {seed}"), *map(str, range(10))}
            assert answer in others or answer not in re.findall(r"\d+", unescape(" ".join(told)))


def test_other_levels_and_seeds_are_refused():
    for given in ((0,), (13,), ("3",), (True,), (3, -1), (3, 1.5), (3, 10**9)):
        with pytest.raises(ConfigError, match=r"levels 1 to 12|seed must be"):
            td.tasks.idle_level(*given)
    assert td.tasks.idle_level(3, 3).lines == level(3, 3).lines


# -- what people type ----------------------------------------------------------------------------


def test_answers_are_read_as_they_are_meant():
    for answer in ("30 42 24 39", [30, 42, 24, 39], "30s 42s 24 s 39s", "30\n42\n24\n39"):
        assert level(3).result(answer).stars == 3, answer
    assert level(12).result("m = 1, m = 4, m = 8").stars == 3
    rows = [row.split() for row in worked(level(1)).split("; ")]
    assert (len(rows), len(rows[0])) == (4, 18)
    lines = [" ".join(row) for row in rows]
    for answer in (
        rows,
        "\n".join(lines),
        "; ".join(lines).lower().replace(".", "idle"),
        [[" ".join(row[:-1]), row[-1]] for row in rows],
        ["|".join(f"1x{word}" for word in row) for row in rows],
    ):
        assert level(1).result(answer).stars == 3, answer


@pytest.mark.parametrize(
    ("number", "answer", "words"),
    [
        (1, "x", "4 are asked for: a line (or a part between ;)"),
        (1, "F0; F0; F0; F0", "worker 0 has 1 slots filled in, and there are 18"),
        (1, "F1; F1; F1; F1", "you counted the batch from 1; it is number 0 here"),
        (2, "1, 2", "'works, 0; 1, works'; got 2"),
        (3, "1, 2, x, 4", "worker 2's idle time is a number of seconds, as in 6 s or 6; got 'x'"),
        (2, "9 works" + 8 * " done", "there is no worker '9': workers count from 0 here"),
        (3, "15, 42, 24, 39", "that is how long worker 0 works"),
        (3, "30, 42, 24, 40", "worker 3's idle time is not 40 s: too high, near"),
        (3, "20, 42, 24, 39", "that is its wait while the batch goes back"),
        (8, "x", "the number of micro-batches is a whole number, as in 8; got 'x'"),
        (8, "200", "micro-batches 200: far, more than is needed"),
        (9, "3, 5 s", "the batch is cut into 1, 2, 4, 8, 16 and 32 parts; got 3"),
        (9, "1, 5 s", "with 1 micro-batches the time is not 5 s: too low, far"),
        (11, "x, drain, drain, drain, drain", "one of not yet filled, waits for a transfer,"),
        (12, "1, 4, 11", "that counts the rounds, m + p - 1, and not only m"),
    ],
)
def test_a_wrong_answer_is_told_where_and_why(number, answer, words):
    result = level(number).result(answer)
    assert not result
    assert words in result.reason


def test_a_share_may_be_rounded_and_a_number_nearly_the_best_is_two_stars():
    assert worked(level(5)) == "525 s, 5/6"
    assert [level(5).result(f"525 s, {share}").stars for share in ("83 %", "81 %")] == [3, 0]
    found = set()
    for seed in range(20):
        task = level(9, seed)
        (run,) = task.timelines.values()
        best = run.makespan
        for line in task.lines[:6]:  # "m = 4: (4 + 5) x ... = 99 s"
            m, own = re.search(r"m = (\d+):", line)[1], float(line.split()[-2])
            result = task.result(f"{m}, {own} s")
            assert result.stars == (3 if own <= best + 1e-3 else 2 if own <= 1.05 * best else 1)
            assert result.stars == 3 or f"{best:g}" not in result.reason
            found.add(result.stars)
    assert found == {1, 2, 3}


@pytest.mark.few(3)
@pytest.mark.parametrize("number", LEVELS)
def test_a_level_is_shown_and_judged_in_a_terminal(capsys, monkeypatch, tmp_path, number):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    task, typed = level(number, 7), ["puzzle", f"idle-{number}", "--seed", "7"]
    answer = worked(task)

    def run(*more):
        code = main([*typed, *more])
        return code, " ".join(capsys.readouterr().out.split())

    code, shown = run()
    assert (code, f"Level idle-{number}, seed 7: {task.title}" in shown) == (0, True)
    assert task.question in shown
    assert ("worker 0 F" in shown) == (number == 11)
    hints = [run("--hint")[1] for _ in range(3)]
    # the last hint leads to the working
    assert [f"Answer: {answer}" in said for said in (shown, *hints)] == [False] * 3 + [True]
    assert run("--answer", "x")[0] == 1
    code, shown = run("--answer", answer, "--json")
    assert (code, json.loads(shown)["results"][0]["stars"]) == (0, 3)
