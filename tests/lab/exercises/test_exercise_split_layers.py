"""Exercises on split layers: sums placed, heads dealt, a layer too large; each judged by runs."""

from functools import partial
from itertools import product

import pytest
from oracles.judged import missed, targets
from oracles.tasks import ends, split_loss

from tiledask.lab.exercises.planning.layer_too_large import LEVELS, STRATEGIES, survived
from tiledask.lab.exercises.split_layers import layers as attention_heads
from tiledask.lab.exercises.split_layers import partial_sums
from tiledask.lab.tasks import (
    balanced_heads,
    f_and_g,
    fewest_sums,
    smoothed_loss,
)
from tiledask.tile.layers import cross_entropy

# -- sums -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sums():
    return fewest_sums(4)


def test_only_one_pair_of_sums_is_right(sums):
    places = partial_sums.FORWARD + partial_sums.BACKWARD
    pairs = [(a, b) for i, a in enumerate(places) for b in places[i + 1 :]]
    assert [pair for pair in pairs if sums.check(pair)] == [("y", "dnormed")]


# -- the loss -------------------------------------------------------------------------------------


def gathered(group, z, mine, targets, eps):
    """Right, and every rank sends all of its logits."""
    return cross_entropy(group.all_gather(z, dim=2), targets, smoothing=eps)[0]


def test_a_smoothed_loss_is_judged_by_its_losses_and_by_what_it_sends():
    exercise = smoothed_loss()
    assert exercise.check(split_loss)
    assert exercise.check(partial(split_loss, largest=False)).targets[0].got == 16  # large logits
    assert exercise.check(partial(split_loss, smooth=False)).targets[0].got == 14  # several ranks
    assert missed(exercise.check(gathered)) == ["elements sent by all ranks"]


def test_two_sums_make_a_layer_right_there_and_back_and_a_third_is_too_many():
    exercise, names = f_and_g(), ("y", "dy", "dx")
    found = {
        chosen: targets(exercise.check(ends(**dict(zip(names, chosen, strict=True)))))
        for chosen in product((False, True), repeat=3)
    }
    # of 12: y is wrong on 3 and 4 ranks without its sum, dx without its own, all behind dy with it
    wrong = {chosen: each["wrong results"][0] for chosen, each in found.items()}
    assert wrong == {(y, dy, dx): 2 * (not y) + 2 * (3 * dy or not dx) for y, dy, dx in found}
    sent = {chosen: each["bytes that each of 4 ranks sends"][0] for chosen, each in found.items()}
    assert sent == {chosen: 9216 * sum(chosen) for chosen in found}


def test_who_hands_the_whole_layer_to_every_rank_has_sums_too_large():
    def again(group, x, dy, w1, w2):
        y, *rest = ends(y=True, dx=True)(group, x, dy, w1, w2)
        return group.all_reduce(y), *rest

    result = f_and_g().check(again)
    assert "y is 3 x right on 3 ranks" in result.reason
    assert missed(result) == ["wrong results", "bytes that each of 4 ranks sends"]


def test_a_function_without_sums_is_drawn_with_its_partial_sums():
    (axes,) = f_and_g().draw(ends(y=False, dx=False)).axes
    words = [text.get_text() for text in axes.texts]
    assert words.count("right") == 8
    assert words.count("a partial sum") == 4


def test_on_one_rank_no_sum_is_needed():
    assert fewest_sums(1).check([])


def test_the_picture_says_what_the_ranks_have():
    states = partial_sums._states((), 4)
    of = {state: [p for p, s in states.items() if s == state] for state in partial_sums.STATES}
    assert of == {
        "whole": ["normed", "dout"],
        "a part": ["gate", "up", "activated", "dactivated", "dgate", "dup"],
        "a partial sum": ["y", "from_gate", "from_up", "dnormed", "dx_norm", "dw_norm"],
        "wrong": ["out", "dx"],
    }


# -- heads ----------------------------------------------------------------------------------------

IN_A_ROW = [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


@pytest.fixture(scope="module")
def heads():
    return balanced_heads()


@pytest.mark.parametrize(("query", "kv", "ranks"), [(4, 2, 3), (6, 2, 2), (6, 3, 3), (3, 1, 4)])
def test_the_least_imbalance_is_that_of_every_assignment(query, kv, ranks):
    """Each head to each rank, by brute force and by the task's formula written out again."""
    task = attention_heads._Task(query, kv, ranks, width=4, hidden=20, tokens=6)
    one, shared = 4 * 6 * 20 * 4 + 4 * 6 * 6 * 4, 4 * 6 * 20 * 4
    even = (query * one + kv * shared) / ranks
    worth = []
    for owners in product(range(ranks), repeat=query):
        held = [
            {(o, i * kv // query) for i, o in enumerate(owners) if o == r} for r in range(ranks)
        ]
        most = max(owners.count(r) * one + len(held[r]) * shared for r in range(ranks))
        worth.append((most / even, sum(map(len, held))))
    assert attention_heads._least(task) == min(worth)


def test_a_wrong_kv_head_is_caught(heads, monkeypatch):
    cut = attention_heads._cut
    monkeypatch.setattr(
        attention_heads, "_cut", lambda w, query, kv, width: cut(w, query, [0] * len(kv), width)
    )
    assert "wrong results" in missed(heads.check(IN_A_ROW))


# -- a layer too large ----------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_runs_end_where_arithmetic_says(ranks):
    """2.6 MB of weights, in whole columns or rows, times the arrays; y beside them; 2.4 MB."""
    y = 4 * 8 * 650
    for strategy in STRATEGIES:
        part, out = 2_600_000, y
        if strategy == "columns":
            part, out = 4 * 1000 * -(-650 // ranks), 4 * 8 * -(-650 // ranks)
        elif strategy == "rows":
            part = 4 * 650 * -(-1000 // ranks)
        fitting = [level for level, arrays in LEVELS.items() if arrays * part + out <= 2_400_000]
        assert survived(strategy, ranks) == (fitting[-1] if fitting else None), strategy
