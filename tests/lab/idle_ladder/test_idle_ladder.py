"""The idle-time ladder: what the working says, the simulator says, for any seed; and the judge."""

import re
from functools import cache
from html import unescape

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.idle_ladder.gap_kinds import gaps_of
from tiledask.lab.idle_ladder.ladder import LEVELS

SEEDS = 200


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
        told = [*task.hints, repr(task), task._repr_html_(), str(task.result(None))]
        if not result:
            told += [result.reason, str(result.to_dict()), result._repr_html_()]
        if "," in answer or ";" in answer:
            assert not [words for words in told if compact(answer) in compact(words)]
        else:  # one number, which may be another's too
            others = {*re.findall(r"\d+", f"{task.question} {stale}"), *map(str, range(10))}
            assert answer in others or answer not in re.findall(r"\d+", unescape(" ".join(told)))


def numbers(text):
    return set(re.findall(r"\d+(?:\.\d+)?", text))


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 10, 12])
def test_what_is_said_of_a_wrong_number_is_not_the_right_one(number):
    for seed in range(20):
        task, other = level(number, seed), level(number, seed + 1)
        values = [a.right for a in other.sheet.asked]
        for a in task.sheet.asked:
            for given in {*values, 0.0, 2 * a.right, *(value for value, _ in a.mistakes)}:
                said = numbers(a.remark(given)) - numbers(f"{a.what} {a.shown(given)}")
                right = numbers(a.shown(a.right))
                known = numbers(f"{task.question} counted from 0")
                assert not a.wrong(given) or not said & right - known


def test_what_is_said_of_a_gap_is_only_what_it_is_not():
    for seed in range(20):
        task, words = level(11, seed), worked(level(11, seed + 1))
        given = re.sub(r"\b[A-E] ", "", words).split(", ")
        result = task.result(given)
        named = set(task.sheet.words) & set(re.findall(r"[\w-]+", result.reason))
        assert named <= {given[task.sheet.wrong(given)[0]]}
    task = level(11)
    given = re.sub(r"\b[A-E] ", "", worked(task)).split(", ")
    given[0] = "drain" if given[0] != "drain" else "transfer"
    said = f"Not yet: gap A is not {given[0]!r}; the others are right."
    assert task.result(given).reason == said


@pytest.mark.parametrize("number", LEVELS)
def test_equal_seeds_are_equal_and_other_seeds_are_not(number):
    again = td.tasks.idle_level(number, 3)
    assert (again.question, again.lines) == (level(number, 3).question, level(number, 3).lines)
    assert len({level(number, seed).question for seed in range(12)}) > 6


def test_other_levels_and_seeds_are_refused():
    for given in ((0,), (13,), ("3",), (True,), (3, -1), (3, 1.5), (3, 10**9)):
        with pytest.raises(ConfigError, match=r"levels 1 to 12|seed must be"):
            td.tasks.idle_level(*given)


def test_a_gap_in_the_middle_is_a_neighbours_or_the_ways():
    """With equal stages and blocks that take no time, 1F1B has none there."""
    for p, m in ((2, 4), (3, 5), (4, 8), (5, 6)):
        run = td.simulate("1f1b", p, m)
        for w in range(p):
            first = run.end[(run.device == w) & (run.kind == "B")].min()
            last = run.start[(run.device == w) & (run.kind == "F")].max()
            assert not [gap for gap in gaps_of(run, w) if first <= gap.start and gap.end <= last]


# -- what people type ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "wanted", "typed"),
    [
        (3, "30 s, 42 s, 24 s, 39 s", ("30 42 24 39", [30, 42, 24, 39], "30s 42s 24 s 39s")),
        (3, "30 s, 42 s, 24 s, 39 s", ("worker 2: 42; worker 1: 30; 3: 24; worker 4: 39 s",)),
        (3, "30 s, 42 s, 24 s, 39 s", ({1: 30, 2: 42, 3: 24, 4: 39}, "30\n42\n24\n39")),
        (6, "1/2, 1/4, 24 s, 48 s", ("50 %, 0.25, 24, 48", "50 25% 24 s 48 s")),
        (12, "1, 4, 8", ("m = 1, m = 4, m = 8", "1 4 8", (1, 4, 8))),
    ],
)
def test_answers_are_read_as_they_are_meant(number, wanted, typed):
    task = level(number)
    right = worked(task)
    if number == 6:  # its numbers come from the seed, too
        T = int(right.split(", ")[2].split()[0])
        typed = [t.replace("24", f"{T}").replace("48", f"{2 * T}") for t in typed]
    else:
        assert right == wanted
    for answer in typed:
        assert task.result(answer).stars == 3, (answer, task.result(answer).reason)


def test_blanks_commas_and_semicolons_part_the_words_of_level_2_alike():
    for seed in range(20):
        task = level(2, seed)
        words = re.split(r"[,;] ", worked(task))
        half = len(words) // 2
        rows = " ".join(words[:half]), " ".join(words[half:])
        named = re.sub(r"(\d)", r"worker \1", "; ".join(rows))
        for answer in ("; ".join(rows), "\n".join(rows), " ".join(rows), rows, named):
            assert task.result(answer).stars == 3, (seed, answer, task.result(answer).reason)


def test_a_timetable_in_many_forms():
    task = level(1)
    assert (task.sheet.workers, task.sheet.slots) == (4, 18)
    rows = [list(row) for row in task.sheet.right]
    lines = [" ".join(row) for row in rows]
    for answer in (
        rows,
        "\n".join(lines),
        "; ".join(lines).lower().replace(".", "idle"),
        "\n".join(line.replace("0", "").replace(" ", "") for line in lines),
        {f"worker {n}": line for n, line in enumerate(lines, 1)},
        [[" ".join(row[:-1]), row[-1]] for row in rows],
        ["|".join(f"1x{word}" for word in row) for row in rows],
    ):
        assert task.result(answer).stars == 3, (answer, task.result(answer).reason)


@pytest.mark.parametrize(
    ("number", "answer", "words"),
    [
        (1, "x", "4 lines (or parts between ;), as in 'F0 . . B0; . F0 B0 .' for 2; got 1"),
        (1, "F0; F0; F0; F0", "worker 1 has 1 slots filled in, and there are 18"),
        (1, "F0 x; F0; F0; F0", "worker 1: a slot has F0, B0 or a dot for idle"),
        (1, "F1; F1; F1; F1", "you counted the batch from 1; it is number 0 here"),
        (1, "worker 0: F; 1: F; worker 2: F; 3: F", "you counted workers from 0"),
        (2, "1, 2", "words are asked for, as in 'works, 1; 2, works'; got 2"),
        (3, "1, 2", "4 numbers are asked for, between commas, as in '6 s, 6 s, 6 s, 6 s'"),
        (3, "1, 2, x, 4", "worker 3's idle time is a number of seconds, as in 6 s or 6; got 'x'"),
        (3, "0: 1, 1: 2, 2: 3, 3: 4", "you counted workers from 0; here they count from 1"),
        (3, "15, 42, 24, 39", "that is how long worker 1 works"),
        (3, "30, 42, 24, 40", "worker 4's idle time is not 40 s: too high, near"),
        (3, "30, 42, 240, 39", "worker 3's idle time is not 240 s: too high, far"),
        (3, "30, 42, 24, 45", "that is how long the whole batch takes"),
        (3, "20, 42, 24, 39", "that is its wait while the batch goes back"),
        (5, "1, 2 %, 3", "2 numbers are asked for"),
        (8, "x", "the number of micro-batches is a whole number, as in 8; got 'x'"),
        (8, "0", "there are 1 to 200 micro-batches here; got 0"),
        (8, "1", "% idle, more than"),
        (8, "200", "micro-batches 200: far, more than is needed"),
        (9, "3, 5 s", "the batch is cut into 1, 2, 4, 8, 16 and 32 parts; got 3"),
        (9, "1, 5 s", "with 1 micro-batches the time is not 5 s: too low, far"),
        (11, "x, drain, drain, drain, drain", "one of warm-up, transfer, imbalance,"),
        (12, "1, 4, 11", "that counts the rounds, m + p - 1, and not only m"),
    ],
)
def test_a_wrong_answer_is_told_where_and_why(number, answer, words):
    result = level(number).result(answer)
    assert not result
    assert words in result.reason


JUNK = ("", ",", "nan", "1e999", 10**400, "9" * 5000, [], [[1]], {}, {1: 2}, b"12", object(), True)
JUNK += (
    "1/0",
    "\N{VULGAR FRACTION ONE HALF}",
    "99x. " * 9,
    "F" + "9" * 30,
    "A A A A A",
    "0: 1, 1: 2",
)


@pytest.mark.parametrize("number", LEVELS)
def test_junk_is_refused_in_few_words(number):
    task = level(number)
    for answer in JUNK:
        result = task.result(answer)
        assert not result
        assert len(result.reason) < 400


def test_the_other_convention_is_recognised():
    for number in (2, 10):
        for seed in range(20):
            task = level(number, seed)
            if number == 2:
                numbered = worked(task)
                shifted = re.sub(r"\d", lambda m: f"{int(m[0]) - 1}", numbered)
                assert "you counted workers from 0" in task.result(shifted).reason
                continue
            end, slow, _ = worked(task).split(", ")
            asked = task.sheet.asked[2]
            idle = task.runs[0].timeline.idle_per_device
            if asked.worker + 1 < len(idle) and idle[asked.worker + 1] != asked.right:
                reason = task.result(f"{end}, {slow}, {idle[asked.worker + 1]:g} s").reason
                assert "did you count workers from 0?" in reason


def test_forgotten_transfers_and_costs_are_recognised():
    for seed in range(20):
        task = level(4, seed)
        run = task.runs[0].timeline
        busy = run.busy_per_device
        without = ", ".join(f"{sum(busy) - own:g} s" for own in busy)
        assert "that is without transfers" in task.result(without).reason
        once = ", ".join(f"{(sum(busy) + run.makespan) / 2 - own:g} s" for own in busy)
        assert "transfers are paid twice" in task.result(once).reason
        task = level(9, seed)
        m = task.sheet.best()
        run = task.sheet.run(m)
        assert "without any waiting" in task.result(f"{m}, {run.busy_per_device[0]} s").reason


def test_the_first_slot_that_is_off_is_named_with_its_reason():
    task = level(1)
    rows = [list(row) for row in task.sheet.right]
    both = [[*rows[0]], [rows[0][0], *rows[1][1:]], *rows[2:]]
    assert "worker 2 has F0 while worker 1 works too" in task.result(both).reason
    late = [[".", *rows[0][:-1]], *rows[1:]]
    said = task.result(late).reason
    assert "slot 1 is the first that is off: worker 1 idles there with all that it needs" in said
    assert "the last worker stands in the first line" in task.result(rows[::-1]).reason


def test_two_stars_are_for_a_rounded_share_and_for_nearly_the_best_number():
    for seed in range(50):
        task = level(7, seed)
        end, idle, _ = worked(task).split(", ")
        percent = 100 * task.runs[0].timeline.bubble_fraction
        off = abs(round(percent) / percent - 1)
        stars = task.result(f"{end}, {idle}, {round(percent)} %").stars
        assert stars == (3 if off <= 2e-3 else 2 if off <= 2e-2 else 0), (seed, percent)
    assert worked(level(5)) == "525 s, 5/6"
    result = level(5).result("525 s, 83 %")
    assert result.reason == "Right, rounded: the third star takes 5/6 or 83.33 %."
    assert "rounded off" not in f"{result.reason} {result.score} {result._repr_html_()}"
    found = set()
    for seed in range(50):
        task = level(9, seed)
        best = task.sheet.run(task.sheet.best()).makespan
        for m in task.sheet.options:
            own = task.sheet.run(m).makespan
            result = task.result(f"{m}, {own} s")
            assert result.stars == (3 if own == best else 2 if own <= 1.05 * best else 1)
            assert result.stars == 3 or f"{best:g}" not in result.reason
            shown = f"{result.reason} {result._repr_html_()}"
            assert ("every target is met" in shown) == (result.stars == 3)
            close = f"Close: {100 * (own / best - 1):.0f} % slower than the best m."
            assert (result.reason == close) == (result.stars == 2)
            assert result.stars != 2 or "least that will do" not in shown
            found.add(result.stars)
    assert found == {1, 2, 3}


def test_the_working_is_numbered_lines_in_text_and_in_html():
    task = level(3, 9)
    assert str(task.working()).startswith("1. The batch takes ")
    assert str(task.working()).endswith(f"Answer: {worked(task)}")
    assert task.working()._repr_html_().count("<li>") == len(task.lines)
