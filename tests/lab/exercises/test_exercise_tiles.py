"""Exercises on tiles: choose, name the level at fault, repair; all judged by arithmetic."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.judged import missed

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.exercises.products import levels
from tiledask.lab.exercises.products.kernel_repair import CountedOperand
from tiledask.lab.exercises.products.levels import BLOCKING, TILE, BlockRun
from tiledask.lab.exercises.products.tiles import SIDES, STAGES, STEPS, tile_of
from tiledask.lab.judging import UnsolvedError
from tiledask.lab.tasks import (
    block_and_tile,
    levels_at_fault,
    repaired_kernel,
    run_blocks,
    tile_within,
)

SIZE = (4096, 4096, 4096)


@pytest.fixture(scope="module")
def within():
    return tile_within(SIZE, "H200", limit=100_000, stages=4, intensity=80, steps=128)


def answers():
    return product(product(SIDES, SIDES, STEPS), STAGES)


# -- choose --------------------------------------------------------------------------------------


def test_tiles_are_those_of_the_kernel_where_it_ships_them():
    for device in ("H200", "L4"):
        known = td.tile.candidates("mma_multistage", device)
        for config in known:
            assert tile_of((config.block, config.stages)) == config
            alike = {replace(tile_of((config.block, s)), stages=config.stages) for s in STAGES}
            assert alike == {config}


def test_only_these_tiles_keep_to_the_limits_by_hand(within):
    """Bytes by the formula, and not by the judge's: 2 s m n k / FLOP per byte."""
    fitting = {
        answer
        for answer in answers()
        for (tm, tn, tk), stages in [answer]
        if stages >= 4
        and stages * (tm + tn) * tk * 2 <= 100_000
        and 2 * 4096**3 * (1 / tm + 1 / tn) <= 2 * 4096**3 / 80
        and 4096 / tk <= 128
        and (tm, tn) != (256, 256)  # 512 threads x 255 registers
    }
    solved = {a for a in answers() if a[1] >= 4 and within.check(a)}
    assert solved == fitting == {((128, 256, 32), 4), ((256, 128, 32), 4)}


def test_a_task_that_nothing_solves_is_refused():
    with pytest.raises(ConfigError, match="raise the limit of shared memory"):
        tile_within(SIZE, "H200", limit=20_000, stages=4, intensity=80, steps=128)


# -- block and tile ------------------------------------------------------------------------------


def test_no_tile_of_any_depth_loads_less_than_the_best():
    """By the formula: a block of 500 x 500 and all of k, a megabyte each."""
    tiles = (
        (-(-500 // rows) + -(-500 // columns), rows, columns)
        for rows, columns in product(range(1, 501), repeat=2)
        if 4 * (rows * columns + rows + columns) <= 16_000
    )
    assert min(tiles)[0] == 17


def test_a_block_and_tile_that_no_mesh_allows_is_refused():
    with pytest.raises(ConfigError, match="no mesh of 8 workers moves 9 MB or fewer; the best mo"):
        block_and_tile((2000, 1000, 500), 8, cache=16_000, between=9e6, loaded=18e6)


# -- which level is at fault ---------------------------------------------------------------------


def made(busy, waited=(0.0, 0.0), flops=100):
    """A run of two workers; FLOP of each are those of a product of this size."""
    traffic = tuple(td.tile.traffic(1, 1, f // 2, 1, 4) for f in (flops, flops))
    return BlockRun(1, traffic, tuple(busy), tuple(waited), (0, 0))


def test_the_parts_of_a_makespan_add_up_by_hand():
    # a good tile does 100 FLOP in 1 s: the mean of 4 and 2 is 3, so 2 s were lost in the tiles,
    # and the longer worker took 1 s more than the mean
    run = made((4.0, 2.0))
    assert run.lost(100.0) == {BLOCKING: 1.0, TILE: 2.0}
    assert run.at_fault(100.0) == TILE
    assert run.utilisation == 0.75
    late = made((4.0, 2.0), waited=(0.0, 9.0))
    assert late.lost(100.0) == {BLOCKING: 8.0, TILE: 2.0}
    assert late.at_fault(100.0) == BLOCKING


positive = st.floats(0.01, 100)


@given(st.tuples(positive, positive), st.tuples(positive, positive), positive)
@settings(max_examples=100, deadline=None)
def test_what_is_lost_and_the_ideal_are_the_makespan(busy, waited, rate):
    run = made(busy, waited)
    assert sum(run.lost(rate).values()) + 100 / rate == pytest.approx(run.makespan)


def test_levels_are_judged_by_the_measurements_alone():
    runs = {"slow": made((4.0, 4.0)), "uneven": made((4.0, 0.5))}
    exercise = levels_at_fault(runs, rate=50.0)
    assert exercise.check({"slow": TILE, "uneven": BLOCKING}).best
    wrong = exercise.check({"slow": BLOCKING, "uneven": BLOCKING})
    assert missed(wrong) == ["levels named wrongly (slow)"]
    assert "slow: 0 s are lost at the level blocking, 2 s at the other" in wrong.reason
    # the same names with the measurements exchanged: the other answer is right
    turned = levels_at_fault({"slow": runs["uneven"], "uneven": runs["slow"]}, rate=50.0)
    assert turned.check({"slow": BLOCKING, "uneven": TILE})
    assert not turned.check({"slow": TILE, "uneven": BLOCKING})


@pytest.mark.parametrize(("name", "level"), [("I", TILE), ("II", BLOCKING), ("IV", TILE)])
@pytest.mark.parametrize("slow", range(4))
def test_a_worker_half_as_slow_again_changes_no_level_at_fault(name, level, slow):
    """Else the machine answers, and not what the reader sees. Small tiles: 2.5 times a good one's
    seconds, measured 5 times. III has its blocks to wait for, which another load makes longer."""
    rows, tile = levels._PRODUCTS[name]["rows"], levels._PRODUCTS[name]["tile"]
    per_row = 1.0 if tile == 256 else 2.5
    busy = [r * per_row * (1.5 if worker == slow else 1.0) for worker, r in enumerate(rows)]
    traffic = tuple(td.tile.traffic(1, 1, r, 1, 4) for r in rows)
    run = BlockRun(tile, traffic, tuple(busy), (0.0,) * 4, (0,) * 4)
    assert run.at_fault(rate=2.0) == level


@pytest.fixture(scope="module")
def runs(cluster):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype("f4") for s in ((1024, 256), (256, 512)))
    even = (256,) * 4
    return {
        "good": run_blocks(cluster, a, b, even, tile=256),
        "small": run_blocks(cluster, a, b, even, tile=8),
        "uneven": run_blocks(cluster, a, b, (928, 32, 32, 32), tile=256),
        "far": run_blocks(cluster, a, b, even, tile=256, home=1),
    }


@pytest.mark.cluster
def test_the_levels_are_independent_on_workers(runs):
    """The tile moves no byte between workers, the blocking no FLOP per byte in whole tiles."""
    good, small, uneven, far = runs.values()
    assert small.received == good.received == uneven.received == (0,) * 4
    assert far.received == tuple(256 * 256 * 4 * (slot != 1) for slot in range(4))
    assert {t.tile_intensity for t in good.traffic + uneven.traffic + far.traffic} == {64.0}
    assert {t.intensity for t in small.traffic} == {2.0}
    assert good.flops == small.flops == far.flops == (2 * 256 * 256 * 512,) * 4
    assert uneven.flops[0] == 29 * uneven.flops[1]
    assert good.waited == (0.0,) * 4
    assert min(far.waited[0], *far.waited[2:]) > 0 == far.waited[1]
    assert all(seconds > 0 for run in runs.values() for seconds in run.busy)


@pytest.mark.cluster
def test_a_small_tile_and_an_uneven_split_are_told_apart(runs):
    rate = runs["good"].rate
    assert runs["small"].at_fault(rate) == TILE
    assert runs["uneven"].at_fault(rate) == BLOCKING


@pytest.mark.cluster
def test_rows_that_do_not_add_up_are_refused(cluster):
    a = np.ones((8, 4), "f4")
    for rows in ((2, 2, 2), (2, 2, 2, 3), (8, 0, 0, 0), (2, 2, 2, 1, 1)):
        with pytest.raises(ConfigError, match="1 or more for each of up to 4 workers, 8 in all"):
            run_blocks(cluster, a, a.T, rows, tile=2)


# -- repair --------------------------------------------------------------------------------------


def tile_loop(fault=None):
    """A tile loop in NumPy, with one ``fault`` planted."""

    def kernel(a, b, tile):
        (m, k), n, (tm, tn, tk) = a.shape, b.shape[1], tile
        c = np.zeros((m, n), a.dtype)
        for i in range(0, m - tm + 1 if fault == "rows" else m, tm):
            for j in range(0, n - tn + 1 if fault == "columns" else n, tn):
                for p in range(0, k - tk + 1 if fault == "k" else k, tk):
                    if fault == "overwrites":
                        c[i : i + tm, j : j + tn] = 0
                    wide = tn + 1 if fault == "wide" else tn
                    part = a[i : i + tm, p : p + tk] @ b[p : p + tk, j : j + wide]
                    c[i : i + tm, j : j + tn] += part[:, : c[i : i + tm, j : j + tn].shape[1]]
                    if fault == "twice":
                        a[i : i + tm, p : p + tk] @ b[p : p + tk, j : j + tn]
        return c

    return kernel


def test_a_right_kernel_is_solved():
    assert repaired_kernel(tile_loop("rows")).check(tile_loop()).best
    assert repaired_kernel().check(tile_loop()).best


@pytest.mark.parametrize(
    "times", [np.matmul, np.dot, lambda x, y: x.dot(y), lambda x, y: x.copy() @ y]
)
def test_a_kernel_may_multiply_as_numpy_does(times):
    def kernel(a, b, tile):
        (m, k), n, c = a.shape, b.shape[1], np.zeros((len(a), b.shape[1]), a.dtype)
        tm, tn, tk = tile
        for i, j, p in product(range(0, m, tm), range(0, n, tn), range(0, k, tk)):
            c[i : i + tm, j : j + tn] += times(a[i : i + tm, p : p + tk], b[p : p + tk, j : j + tn])
        return c

    assert repaired_kernel().check(kernel).best


@pytest.mark.parametrize("fault", ["rows", "columns", "k", "overwrites", "wide", "twice"])
def test_every_planted_fault_is_found(fault):
    exercise = repaired_kernel(tile_loop(fault))
    result = exercise.check(tile_loop(fault))
    assert result.legal
    assert not result
    by_sum = "wrong elements of C" in missed(result)
    assert by_sum == (fault not in ("wide", "twice"))
    if not by_sum:  # right, and not tile by tile
        assert "bytes loaded beside the formula" in missed(result)
        assert ("products larger than a tile" in missed(result)) == (fault == "wide")
    with pytest.raises(UnsolvedError):
        result.require()


def test_the_library_in_place_of_tiles_is_seen():
    exercise = repaired_kernel(tile_loop("rows"))
    for kernel, why in (
        (lambda a, b, tile: a @ b, "larger than a tile load less"),
        (
            lambda a, b, tile: np.asarray(a) @ np.asarray(b),
            "what is counted is @, np.matmul and np.dot",
        ),
    ):
        result = exercise.check(kernel)
        said = str([target.remarks for target in result.targets])
        assert why in said
        assert "never multiplied" not in said
        assert "bytes loaded beside the formula" in missed(result)
        assert "wrong elements of C" not in missed(result)


def test_counted_operands_behave_as_arrays():
    log = []
    a = CountedOperand.of(np.arange(6.0).reshape(2, 3), log)
    b = np.ones((3, 2))
    assert (a @ b).tolist() == [[3.0, 3.0], [12.0, 12.0]]
    assert log == [((2, 3), (3, 2))]
    total = np.zeros((2, 3))
    total += 2 * a[:, :]
    assert total.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    assert len(log) == 1
    out = np.empty((2, 2))
    assert np.matmul(a, b, out=out) is out
    assert (out.tolist(), len(log)) == ([[3.0, 3.0], [12.0, 12.0]], 2)
