"""The walkthroughs' exercises: right answers pass, wrong ones are told apart, nothing is stored."""

from contextlib import suppress
from itertools import product

import numpy as np
import pytest
from oracles.judged import targets

import tiledask as td
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.exercises import slots as on_slots
from tiledask.lab.exercises.products import placements as choreography
from tiledask.lab.exercises.products.placements import bytes_planned, fewest_planned
from tiledask.lab.exercises.slots import least_load
from tiledask.lab.tasks import (
    cheapest_choreography,
    copies_that_fit,
    fewest_bytes,
    four_terms,
    tasks_on_slots,
)
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import algorithms, grids, options_of, plan_product

R, S0, S1 = td.Replicate(), td.Shard(0), td.Shard(1)


@pytest.fixture
def slots(cluster, monkeypatch):
    monkeypatch.setattr(on_slots, "UNIT", 0.001)
    return tasks_on_slots(cluster)


IN_BLOCKS, IN_ROWS = (S0, S1), (S0, S0)


def drawn(*shapes, dtype=np.float32):
    """Whole numbers, so that products are exact."""
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]


@pytest.fixture(scope="module")
def product_exercise(cluster):
    return fewest_bytes(cluster, *drawn((500, 1000), (1000, 2000)), mesh=(2, 2), limit=3_500_000)


@pytest.fixture(scope="module")
def choice(cluster):
    given = {"placements": (IN_BLOCKS, IN_ROWS), "limit": 5_500_000}
    a, b = drawn((600, 3000), (3000, 600))
    return cheapest_choreography(cluster, a, b, mesh=(2, 2), **given)


# -- all of them ---------------------------------------------------------------------------------


# -- tasks on slots ------------------------------------------------------------------------------


@pytest.mark.cluster
def test_the_best_placement_is_solved_and_longest_first_is_not(slots):
    assert slots.check((0, 1, 2, 2, 0, 1, 3, 3, 3)).best
    longest_first = slots.check((0, 1, 2, 3, 3, 2, 1, 0, 3))
    assert longest_first.legal
    assert "fullest slot 15, target at most 12: 3 too much" in longest_first.reason


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
        loads = (
            [sum(u for u, s in zip(units, at, strict=True) if s == slot) for slot in range(slots)]
            for at in product(range(slots), repeat=n)
        )
        assert least_load(units, slots) == min(map(max, loads))


# -- fits ----------------------------------------------------------------------------------------


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
    assert exercise.check((*right[:3], right[3] - 1)).targets[0].got == 1
    assert targets(exercise.check((None,) * 4)) == {"ZeRO levels judged wrongly": (2, 0, 0)}


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


@pytest.mark.cluster
def test_planned_bytes_are_the_bytes_that_workers_receive(cluster):
    x, a = drawn((5, 6), (6, 7), dtype=np.float64)
    exercise = fewest_bytes(cluster, x, a, mesh=(2, 2), limit=10**6)
    rows, columns = (S1, R), (S0, S1)
    for px, pa in ((IN_ROWS, rows), (rows, columns), (columns, (R, S0)), ((R, S1), rows)):
        planned = bytes_planned(Tiling(x.shape, (2, 2), px), Tiling(a.shape, (2, 2), pa), 8)
        got = targets(exercise.check((px, pa)))
        assert got["MB between workers"][0] == planned / 1e6
        assert got["wrong numbers in Y"][0] == 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((4e11, 8e11, 24e11, 3.16e11), ""),
        ((4e11, 4e11, 24e11, 3.16e11), "gradients: 400 GB are too little"),
        ((4e11, 8e11, 24e11, 6.3e11), "activations: 630 GB are too much"),
    ],
)
def test_four_terms_are_judged_one_by_one(answer, said):
    exercise = four_terms(recipe="mixed-adam-18")
    result = exercise.check(answer)
    assert bool(result) == (not said)
    assert said in result.reason


def test_the_fewest_bytes_need_a_limit_that_holds_something():
    assert fewest_planned((4, 4), (4, 4), (2,), 4, limit=10**6) == 0
    with pytest.raises(ConfigError, match="no placements on a mesh of"):
        fewest_planned((4, 4), (4, 4), (2,), 4, limit=10)


# -- the cheapest choreography -------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("answer", "mb_held", "mb_moved", "missed"),
    [
        ({"algorithm": "2.5d", "grid": (2, 1, 2), "panel": 150}, 5.22, 15.84, ()),
        ({"algorithm": "2.5d", "grid": (2, 1, 2)}, 7.02, 15.84, ("held",)),  # panels too wide
        ({"algorithm": "2.5d", "panel": 100}, 5.04, 17.64, ("moved",)),  # the wrong way round
        ({"algorithm": "row_parallel", "panel": 16}, 5.76, 9.72, ("held",)),  # an addend too large
        ({"algorithm": "summa", "panel": 64}, 4.262, 18.0, ("moved",)),
        ({"algorithm": "gather"}, 7.92, 12.24, ("held",)),  # addends are left, and summed
    ],
)
def test_a_choreography_is_judged_by_bytes_and_memory(choice, answer, mb_held, mb_moved, missed):
    result = choice.check(answer)
    (held, moved, wrong) = result.targets
    assert (round(held.got, 3), moved.got, wrong.got) == (mb_held, mb_moved, 0)
    assert (held.met, moved.met) == ("held" not in missed, "moved" not in missed)
    assert bool(result) == (not missed)
    assert moved.best == moved.wanted == 15.84
    if missed:
        assert "too much" in result.reason


def test_the_fewest_bytes_are_those_of_every_option_tried(monkeypatch):
    monkeypatch.setattr(choreography, "NARROW", 1)
    dtype = np.dtype("f8")
    a, b = Tiling((7, 12), (2, 2), IN_BLOCKS), Tiling((12, 5), (2, 2), IN_ROWS)
    tried = []
    for name in algorithms:
        panels = range(1, 13) if "panel" in options_of(name) else (None,)
        shapes = (*grids(4, 2), *grids(4, 3)) if "grid" in options_of(name) else (None,)
        for panel, grid in product(panels, shapes):
            with suppress(PlacementError):
                plan = plan_product(name, a, b, panel=panel, grid=grid)
                tried.append((choreography.held(plan, dtype), choreography.moved(plan, 8)))
    assert len(tried) > 100
    limits = sorted({limit for limit, _ in tried})[::2]
    found = {limit: choreography._fewest(a, b, dtype, limit) for limit in limits}
    assert len(set(found.values())) > 3, "too few different optima to tell much: take other shapes"
    for limit, fewest in found.items():
        assert fewest == min(moved for held, moved in tried if held <= limit)


def test_a_choreography_needs_a_limit_that_holds_something():
    a = Tiling((8, 8), (2, 2), IN_BLOCKS)
    with pytest.raises(ConfigError, match=r"no choice .* stays within 10 bytes a worker"):
        choreography._fewest(a, a, np.dtype("f4"), 10)
