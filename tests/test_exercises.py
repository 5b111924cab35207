"""The walkthroughs' exercises: right answers pass, wrong ones are told apart, nothing is stored."""

from itertools import product

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.exercises import (
    blocks_of,
    copies_that_fit,
    fewest_bytes,
    fewest_gpus,
    tasks_on_slots,
)
from tiledask.lab.exercises import slots as on_slots
from tiledask.lab.exercises.gpus import layouts_that_fit
from tiledask.lab.exercises.placements import bytes_planned, fewest_planned
from tiledask.lab.exercises.slots import least_load
from tiledask.lab.puzzles import UnsolvedError
from tiledask.plan.placement import Tiling

R, S0, S1 = td.Replicate(), td.Shard(0), td.Shard(1)


@pytest.fixture(scope="module")
def cluster():
    with td.start_cluster(workers=4, device="cpu", quiet=True) as cluster:
        yield cluster


@pytest.fixture
def slots(cluster, monkeypatch):
    monkeypatch.setattr(on_slots, "UNIT", 0.001)
    return tasks_on_slots(cluster)


@pytest.fixture(scope="module")
def product_exercise(cluster):
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (500, 1000)).astype(np.float32)
    a = rng.integers(-4, 5, (1000, 2000)).astype(np.float32)
    return fewest_bytes(cluster, x, a, mesh=(2, 2), limit=3_500_000)


def targets(result) -> dict:
    return {t.name: (t.got, t.wanted, t.best) for t in result.targets}


# -- all of them ---------------------------------------------------------------------------------


@pytest.mark.cluster
def test_what_is_not_attempted_is_quiet_and_false(slots, product_exercise):
    for exercise in (slots, fewest_gpus(), copies_that_fit(), product_exercise):
        result = exercise.check(None)
        assert not result
        assert not result.attempted
        assert result.reason == "Not attempted yet."
        with pytest.raises(UnsolvedError, match="Not attempted"):
            result.require()
        assert exercise.draw(None).to_png().startswith(b"\x89PNG")


@pytest.mark.cluster
def test_an_illegal_answer_says_what_is_wrong_and_is_still_drawn(slots, product_exercise):
    for exercise, answer, words in (
        (slots, (0,) * 8, "a tuple of 9 slots, each 0..3"),
        (slots, (0, 1, 2, 3, 4, 0, 1, 2, 3), "each 0..3"),
        (slots, (True,) * 9, "each 0..3"),
        (slots, "012301230", "a tuple of 9 slots"),
        (fewest_gpus(), 14, "an answer is a Layout"),
        (fewest_gpus(), td.Layout(tp=8, pp=2), "leave the node of 4 GPUs"),
        (fewest_gpus(), td.Layout(dp=8), 'the verdict is "no"'),
        (fewest_gpus(), td.Layout(tp=4, pp=5), 'the verdict is "no": the layout needs 20 devices'),
        (copies_that_fit(), (1, 2, 3), "four entries"),
        (copies_that_fit(), (0, 1, 2, 3), "from 1 to"),
        (copies_that_fit(), 8, "four entries"),
        (product_exercise, (S0, S1), "two tuples"),
        (product_exercise, ((S0,), (S1, R)), "needs one placement per axis"),
        (product_exercise, ((td.Partial(), R), (R, R)), "cannot be distributed as"),
        (product_exercise, ((td.Shard(2), R), (R, R)), "dimension 0..1"),
    ):
        result = exercise.check(answer)
        assert result.attempted
        assert not result.legal
        assert words in result.reason
        with pytest.raises(UnsolvedError):
            result.require()
        assert exercise.draw(answer).to_png().startswith(b"\x89PNG")


# -- tasks on slots ------------------------------------------------------------------------------


@pytest.mark.cluster
def test_the_best_placement_is_solved_and_longest_first_is_not(slots):
    assert slots.check((0, 1, 2, 2, 0, 1, 3, 3, 3)).best
    longest_first = slots.check((0, 1, 2, 3, 3, 2, 1, 0, 3))
    assert longest_first.legal
    assert "fullest slot 15, target at most 12: 3 too much" in longest_first.reason
    assert slots.draw((0, 1, 2, 2, 0, 1, 3, 3, 3)).axes


@pytest.mark.cluster
def test_the_load_is_what_the_workers_say_they_did(slots, monkeypatch):
    monkeypatch.setattr(
        on_slots, "_run_naps", lambda cluster, places, units: [(0, n) for n in units]
    )
    assert targets(slots.check((0, 1, 2, 2, 0, 1, 3, 3, 3))) == {
        "units in the fullest slot": (48, 12, 12)
    }


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_the_least_load_equals_every_placement_tried(slots):
    rng = np.random.default_rng(slots)
    for n in range(1, 7):
        units = tuple(rng.integers(1, 9, n).tolist())
        tried = (
            max(
                sum(u for u, s in zip(units, at, strict=True) if s == slot) for slot in range(slots)
            )
            for at in product(range(slots), repeat=n)
        )
        assert least_load(units, slots) == min(tried)


# -- fits ----------------------------------------------------------------------------------------


def test_fewest_gpus_knows_more_than_the_smallest_fix():
    spec = td.load_cluster("16xA10")
    fix = td.fits(td.load_model("llama-2-13b"), td.Layout(dp=8), spec).smallest_fix.layout
    result = fewest_gpus().check(fix)
    assert targets(result) == {"GPUs": (16, 14, 14)}
    assert not result
    found = layouts_that_fit(td.load_model("llama-2-13b"), spec)
    best = [layout for layout in found if layout.devices == 14]
    assert best
    assert all(fewest_gpus().check(layout).best for layout in best)
    assert not [layout for layout in found if layout.devices < 14]
    assert all(td.fits(td.load_model("llama-2-13b"), la, spec).verdict == "fits" for la in found)


def test_copies_that_fit_are_judged_stage_by_stage():
    exercise, model = copies_that_fit(), td.load_model("llama-2-13b")

    def fewest(zero: int) -> int | None:
        for dp in range(1, 200):
            layout = td.Layout(dp=dp, zero=zero, recompute="full")
            if td.fits(model, layout, td.load_cluster(f"{dp}xA100-40GB")).verdict == "fits":
                return dp
        return None

    right = tuple(fewest(zero) for zero in range(4))
    assert right[:2] == (None, None)
    assert right[2] > right[3] > 1
    assert exercise.check(right).best
    for stage, wrong in enumerate([(8, 64, None, None), tuple(n and n + 1 for n in right)]):
        assert not exercise.check(wrong), stage
    assert targets(exercise.check((*right[:3], right[3] - 1))) == {
        "ZeRO stages judged wrongly": (1, 0, 0)
    }
    assert targets(exercise.check((None,) * 4)) == {"ZeRO stages judged wrongly": (2, 0, 0)}


# -- the fewest bytes ----------------------------------------------------------------------------


@pytest.mark.cluster
def test_a_product_is_judged_by_the_bytes_that_moved(product_exercise):
    good = product_exercise.check(((S1, R), (S0, S1)))
    assert good.best
    assert targets(good) == {
        "MB of X and A on the fullest worker": (3.0, 3.5, None),
        "MB between workers": (4.0, 4.0, 4.0),
        "wrong numbers in Y": (0, 0, 0),
    }
    for answer, held, moved in (
        (((S0, S1), (S0, S1)), 2.5, 10.0),  # summa
        (((S1, S1), (S0, S0)), 2.5, 12.0),  # rows of A, addends of Y
        (((R, R), (S1, S1)), 4.0, 0.0),  # columns of A: X does not fit
    ):
        result = product_exercise.check(answer)
        assert not result
        assert targets(result)["MB of X and A on the fullest worker"][0] == held
        assert targets(result)["MB between workers"][0] == moved
        assert product_exercise.draw(answer).axes


@pytest.mark.cluster
def test_planned_bytes_are_the_bytes_that_workers_receive(cluster):
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, (5, 6)).astype(np.float64)
    a = rng.integers(-3, 4, (6, 7)).astype(np.float64)
    exercise = fewest_bytes(cluster, x, a, mesh=(2, 2), limit=10**6)
    for px, pa in [
        ((S0, S0), (S1, R)),
        ((S1, R), (S0, S1)),
        ((S0, S1), (R, S0)),
        ((R, S1), (S1, R)),
    ]:
        planned = bytes_planned(Tiling(x.shape, (2, 2), px), Tiling(a.shape, (2, 2), pa), 8)
        got = targets(exercise.check((px, pa)))
        assert got["MB between workers"][0] == planned / 1e6
        assert got["wrong numbers in Y"][0] == 0


def test_the_fewest_bytes_need_a_limit_that_holds_something():
    assert fewest_planned((4, 4), (4, 4), (2,), 4, limit=10**6) == 0
    with pytest.raises(ConfigError, match="no placements on a mesh of"):
        fewest_planned((4, 4), (4, 4), (2,), 4, limit=10)


def test_blocks_cover_the_matrix_for_every_placement():
    for placements in product((R, S0, S1), repeat=2):
        tiling = Tiling((5, 7), (2, 2), placements)
        blocks = blocks_of(tiling)
        assert (blocks.rows[-1], blocks.columns[-1]) == (5, 7)
        owners = [rank for row in blocks.ranks for ranks in row for rank in ranks]
        assert sorted(owners) == [0, 1, 2, 3]
    tiny = blocks_of(Tiling((1, 3), (2,), (S0,)))
    assert tiny.ranks == [[(0,)]], "rank 1 holds nothing and is not drawn"
