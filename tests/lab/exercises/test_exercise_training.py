"""Exercises on training: traffic, uneven copies, a loss scale, a faulty run, how often to save."""

from itertools import permutations

import numpy as np
import pytest
from oracles.judged import missed

import tiledask as td
from tiledask.lab.tasks import (
    faulty_run,
    ranks_on_hosts,
    save_intervals,
    scale_rule,
    step_traffic,
    uneven_copies,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# -- traffic of a step -----------------------------------------------------------------------------


def by_hand(shape, m=2, b=8, h=32, layers=3, s=16, vocabulary=50):
    """A step's traffic in float32 by the formulas that the walkthrough teaches. The first stage
    waits most where it has more layers than the last, which has the head besides."""
    (dp, tp, pp), alone = shape, shape[2] == 1
    first = -(-layers // pp)
    replicated = s * h + layers * 6 * h + 2 * h
    size = vocabulary * h + s * h + layers * (12 * h * h + 13 * h) + 2 * h + h * vocabulary
    of_tensor = 1 + 4 * first + 3 * alone  # the head: dx, and the loss's two
    barriers = m * of_tensor * (tp > 1) + (2 + first + alone) * (dp > 1)
    if pp == layers > 1:  # as many layers on the last: it has dx and the loss's two, not one
        barriers = m * (4 + 3) * (tp > 1) + 2 * (dp > 1)
    return {
        "tensor": 2 * (tp - 1) * 4 * ((4 * layers + 2) * b * s * h + 3 * b * s),
        "pipeline": 2 * (pp - 1) * 4 * tp * b * s * h,
        "data": 2 * (dp - 1) * 4 * (size + (tp - 1) * replicated),
        "barriers": barriers,
    }


@pytest.mark.parametrize(
    "shape", [(2, 2, 2), (1, 1, 1), (2, 1, 1), (1, 2, 1), (3, 2, 2), (2, 2, 3)]
)
def test_the_formulas_are_what_a_step_moves(shape):
    answer = by_hand(shape)
    assert step_traffic(shape).check(answer), missed(step_traffic(shape).check(answer))


def test_the_busiest_stage_is_not_always_the_first_and_no_hint_says_so():
    exercise, right = step_traffic((2, 2, 3)), by_hand((2, 2, 3))
    first = right | {"barriers": 2 * (1 + 4) + 3}
    assert missed(exercise.check(first)) == ["barriers"]
    said = " ".join(exercise.hint().text for _ in exercise.hints)
    assert "first stage" not in said
    assert "of each stage" in said


def test_a_byte_too_many_is_seen():
    exercise, right = step_traffic(), by_hand((2, 2, 2))
    for name in right:
        result = exercise.check(right | {name: right[name] + 1})
        (wrong,) = missed(result)
        assert name in wrong
        assert "is too high, but near" in result.reason
        assert f"{right[name]:,}" not in f"{result.reason} {result._repr_html_()}"
    forgotten = right | {"data": right["data"] - 8 * (16 * 32 + 20 * 32)}  # on both tensor ranks
    assert missed(exercise.check(forgotten)) == ["data parallel, bytes"]


# -- uneven copies ---------------------------------------------------------------------------------


def weighed(group, gradient, rows, total):
    return group.all_reduce(gradient * (rows / total))


def test_the_bytes_are_those_of_one_all_reduce():
    (_, bytes_sent) = uneven_copies().check(weighed).targets
    assert bytes_sent.best == bytes_sent.got == 2 * 2 * 784 * 10 * 8


# -- the loss scale --------------------------------------------------------------------------------


def every(interval):
    """Half after an overflow, twice after as many steps without."""

    def rule(scale, good, finite):
        if not finite:
            return scale / 2, 0
        return (2 * scale, 0) if good + 1 == interval else (scale, good + 1)

    return rule


def test_a_scale_is_too_small_only_where_the_loss_says_so():
    small = [
        (target.met, "too small" in target.where)
        for rule in (every(4), every(2000))
        for target in scale_rule().check(rule).targets[1:]
    ]
    assert small == [(True, False), (True, False), (True, False), (False, True)]


# -- the faulty run --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def suspects():
    return faulty_run(0)


def test_only_one_answer_is_right(suspects):
    """And no format's envelope betrays it: all verdicts are "round-off"."""
    right = [name for name in suspects.runs if suspects.check(name)]
    assert len(right) == 1
    wrong = next(name for name in suspects.runs if name not in right)
    assert missed(suspects.check(wrong)) == ["sound runs accused", "faulty runs at large"]
    assert set(suspects.table["verdict in its format"]) == {"round-off"}
    assert suspects.table.format[right[0]] == "bfloat16"


def test_what_runs_are_printed_as_does_not_answer(suspects):
    words = {repr(run).partition("dtype")[2].count("=") for run in suspects.runs.values()}
    assert words == {1}
    assert "tiny" not in repr(suspects.runs)


def test_float64_tells(suspects):
    apart = {name: suspects.again(name).max() for name in suspects.runs}
    (right,) = (name for name in suspects.runs if suspects.check(name))
    assert apart.pop(right) > 1e-7
    assert max(apart.values()) < 1e-14


@pytest.mark.parametrize("seed", [1, 2])
def test_another_seed_is_another_task(suspects, seed):
    other = faulty_run(seed)
    assert other.runs != suspects.runs
    assert sum(map(bool, map(other.check, other.runs))) == 1


# -- ranks on hosts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "hosts"),
    [((1, 2, 2), "AABB"), ((1, 2, 2), "AAAB"), ((2, 2, 1), "AABBCC"), ((2, 2, 2), "AAABBBBB")],
)
def test_the_fewest_bytes_between_hosts_are_those_of_the_best_way_of_all(shape, hosts):
    model = td.GPT(td.load_text("tales").vocabulary, hidden=32, layers=3, heads=4, sequence=16)
    traffic = td.training_program(model, shape, batch=8, microbatches=2).traffic
    ways = {way[: np.prod(shape)] for way in permutations(hosts)}
    between = {"".join(way): traffic.on(way).between_hosts for way in ways}
    exercise, least = ranks_on_hosts(shape, hosts), min(between.values())
    for way, moved in between.items():
        (target,) = exercise.check(way).targets
        assert (target.got, target.wanted) == (moved, least)
    assert len({*between.values()}) > 1


# -- how often to save -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        ((57, 3220, 57), []),
        ((50, 2800, 55), []),
        ((57, 3220, 69), ["C"]),
        ((54, 1073, 57), ["B"]),  # one MTBF for both
        ((9, 1, 57), ["A", "B"]),
    ],
)
def test_each_level_has_a_root_and_a_dear_save_more(answer, missing):
    exercise = save_intervals()
    found = exercise.check(answer)
    assert [name[0] for name in missed(found)] == missing
    assert bool(found) == (not missing)
