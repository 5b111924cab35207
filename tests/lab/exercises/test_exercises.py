"""The walkthroughs' exercises: right answers pass, wrong ones are told apart, nothing is stored.

Holds `tiledask.lab.exercises.planning.fewest_gpus`, `tiledask.lab.exercises.planning.four_terms`,
`tiledask.lab.exercises.products.choreography`, `tiledask.lab.exercises.products.placements` and
`tiledask.lab.exercises.slots`.
"""

from contextlib import suppress
from itertools import product

import numpy as np
import pytest
from oracles.judged import assert_illegal, assert_quiet, assert_still_drawn, targets

import tiledask as td
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.exercises import slots as on_slots
from tiledask.lab.exercises.planning.fewest_gpus import layouts_that_fit
from tiledask.lab.exercises.products import choreography
from tiledask.lab.exercises.products.placements import bytes_planned, fewest_planned
from tiledask.lab.exercises.slots import least_load
from tiledask.lab.tasks import (
    cheapest_choreography,
    copies_that_fit,
    fewest_bytes,
    fewest_gpus,
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


@pytest.mark.cluster
def test_what_is_not_attempted_is_quiet_and_false(slots, product_exercise, choice):
    assert_quiet(slots, fewest_gpus(), copies_that_fit(), four_terms(), product_exercise, choice)


def refused(slots, product_exercise, choice):
    """(exercise, answer, words) of answers that are none."""
    return (
        (slots, (0,) * 8, "a tuple of 9 slots, each 0..3"),
        (slots, (0, 1, 2, 3, 4, 0, 1, 2, 3), "each 0..3"),
        (slots, (True,) * 9, "each 0..3"),
        (slots, "012301230", "a tuple of 9 slots"),
        (fewest_gpus(), 14, "an answer is a td.Layout"),
        (fewest_gpus(), td.Layout(tp=8, pp=2), "leave the node of 4 GPUs"),
        (fewest_gpus(), td.Layout(dp=8), 'the verdict is "no"'),
        (fewest_gpus(), td.Layout(tp=4, pp=5), 'the verdict is "no": the layout needs 20 devices'),
        (copies_that_fit(), (1, 2, 3), "a tuple of four, for ZeRO 0, 1, 2 and 3"),
        (copies_that_fit(), (0, 1, 2, 3), "GPUs from 1 to 1,048,576, or None"),
        (copies_that_fit(), 8, "a tuple of four"),
        (four_terms(), (1e9, 1e9, "6e9", 1e9), "four numbers of bytes"),
        (four_terms(), (1e9, 1e9, 6e9), "four numbers of bytes"),
        (product_exercise, (S0, S1), "two tuples"),
        (product_exercise, ((S0,), (S1, R)), "needs one placement per axis"),
        (product_exercise, ((td.Partial(), R), (R, R)), "cannot be distributed as"),
        (product_exercise, ((td.Shard(2), R), (R, R)), "dimension 0..1"),
        (choice, "summa", "a dict of td.matmul's arguments"),
        (choice, {"panel": 64}, "algorithm, and where it takes them"),
        (choice, {"algorithm": "summa", "kernel": "loops"}, "panel, grid or replication"),
        (choice, {"algorithm": "sumo"}, "td.algorithms has local"),
        (choice, {"algorithm": "cannon", "panel": 64}, "cannon has no option panel"),
        (choice, {"algorithm": "2.5d", "grid": (2, 2)}, "a grid of 3 extents"),
        (choice, {"algorithm": "summa", "grid": 4}, "a grid of 2 extents"),
        (choice, {"algorithm": "2.5d", "replication": 3}, "take one of 1, 2, 4"),
        (choice, {"algorithm": "summa", "panel": 0}, "a whole number of 1 or more columns"),
        (choice, {"algorithm": "local"}, "cannot be multiplied where it lies"),
    )


@pytest.mark.cluster
def test_an_illegal_answer_says_why(slots, product_exercise, choice):
    for exercise, answer, words in refused(slots, product_exercise, choice):
        assert_illegal(exercise, answer, words)


@pytest.mark.slow
@pytest.mark.cluster
def test_an_illegal_answer_is_still_drawn(slots, product_exercise, choice):
    assert_still_drawn(refused(slots, product_exercise, choice))


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
        loads = (
            [sum(u for u, s in zip(units, at, strict=True) if s == slot) for slot in range(slots)]
            for at in product(range(slots), repeat=n)
        )
        assert least_load(units, slots) == min(map(max, loads))


# -- fits ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_fewest_gpus_knows_more_than_the_smallest_fix():
    spec = td.load_cluster("16xA10")
    fix = td.fits(td.load_model("llama-2-13b"), td.Layout(dp=8), spec).smallest_fix.layout
    result = fewest_gpus().check(fix)
    assert targets(result) == {"GPUs": (16, 12, 12)}
    assert not result
    found = layouts_that_fit(td.load_model("llama-2-13b"), spec)
    best = [layout for layout in found if layout.devices == 12]
    assert best
    assert all(fewest_gpus().check(layout).best for layout in best)
    assert not [layout for layout in found if layout.devices < 12]
    assert all(td.fits(td.load_model("llama-2-13b"), la, spec).verdict == "fits" for la in found)


@pytest.mark.long
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
        assert product_exercise.draw(answer).axes


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
    assert exercise.draw(answer).axes


def test_the_fewest_bytes_need_a_limit_that_holds_something():
    assert fewest_planned((4, 4), (4, 4), (2,), 4, limit=10**6) == 0
    with pytest.raises(ConfigError, match="no placements on a mesh of"):
        fewest_planned((4, 4), (4, 4), (2,), 4, limit=10)


def test_blocks_cover_the_matrix_for_every_placement():
    for placements in product((R, S0, S1), repeat=2):
        tiling = Tiling((5, 7), (2, 2), placements)
        blocks = td.plots.Blocks.of(tiling)
        assert (blocks.rows[-1], blocks.columns[-1]) == (5, 7)
        owners = [rank for row in blocks.ranks for ranks in row for rank in ranks]
        assert sorted(owners) == [0, 1, 2, 3]
    tiny = td.plots.Blocks.of(Tiling((1, 3), (2,), (S0,)))
    assert tiny.ranks == [[(0,)]], "rank 1 holds nothing and is not drawn"


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
    assert choice.draw(answer).axes
    if missed:
        assert "too much" in result.reason


@pytest.mark.long
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


@pytest.mark.parametrize("name", [name for name in algorithms if "panel" in options_of(name)])
def test_the_width_of_a_panel_changes_the_memory_and_not_the_bytes(name):
    a, b = Tiling((60, 300), (2, 2), IN_BLOCKS), Tiling((300, 60), (2, 2), IN_ROWS)
    plans = [plan_product(name, a, b, panel=panel) for panel in (5, 16, 40, 300)]
    assert len({choreography.moved(plan, 4) for plan in plans}) == 1
    held = [choreography.held(plan, np.dtype("f4")) for plan in plans]
    assert held[0] == min(held) < held[-1]


@pytest.mark.parametrize("answer", [None, (0, 1, 2, 2, 0, 1, 3, 3, 3)])
def test_the_slots_and_their_target_are_drawn_before_the_tasks_are_placed(slots, answer):
    (axes,) = slots.draw(answer).axes
    rows = [tick.get_text() for tick in axes.get_yticklabels()]
    assert rows[:4] == [f"slot {s}" for s in range(4)]
    assert rows[4:] == ["not placed"] * (answer is None)
    assert [line.get_xdata()[0] for line in axes.lines if line.get_label() == "target: at most 12"]
