"""Exercises on products and tiles: runs on workers, planted faults, every choice tried.

Holds `tiledask.lab.exercises.products` and `tiledask.lab.exercises.tiles`.
"""

from contextlib import suppress
from itertools import product

import numpy as np
import pytest
from oracles.judged import missed
from oracles.tasks import task, tile_loop

import tiledask as td
from tiledask.errors import PlacementError
from tiledask.lab.exercises import products
from tiledask.lab.exercises.tiles import SIDES, STAGES, STEPS
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import algorithms, grids, options_of, plan_product

S0, S1 = td.Shard(0), td.Shard(1)
IN_BLOCKS, IN_ROWS = (S0, S1), (S0, S0)

# -- on workers ------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("answer", "mb_held", "mb_moved", "missed"),
    [
        ({"algorithm": "2.5d", "grid": (2, 1, 2), "panel": 150}, 5.22, 15.84, ()),
        ({"algorithm": "2.5d", "grid": (2, 1, 2)}, 7.02, 15.84, ("held",)),  # panels too wide
        # the wrong way round
        ({"algorithm": "2.5d", "grid": (1, 2, 2), "panel": 100}, 5.04, 17.64, ("moved",)),
        ({"algorithm": "row_parallel", "panel": 16}, 5.76, 9.72, ("held",)),  # an addend too large
        ({"algorithm": "gather"}, 7.92, 12.24, ("held",)),  # addends are left, and summed
    ],
)
def test_a_choreography_is_judged_by_bytes_and_memory(cluster, answer, mb_held, mb_moved, missed):
    (held, moved, wrong) = task("choreography", cluster).check(answer).targets
    assert (round(held.got, 3), moved.got, wrong.got) == (mb_held, mb_moved, 0)
    assert (held.met, moved.met) == ("held" not in missed, "moved" not in missed)
    assert moved.best == moved.wanted == 15.84


def test_the_fewest_bytes_are_those_of_every_option_tried(monkeypatch):
    monkeypatch.setattr(products, "NARROW", 1)
    dtype = np.dtype("f8")
    a, b = Tiling((7, 12), (2, 2), IN_BLOCKS), Tiling((12, 5), (2, 2), IN_ROWS)
    tried = []
    for name in algorithms:
        panels = range(1, 13) if "panel" in options_of(name) else (None,)
        shapes = (*grids(4, 2), *grids(4, 3)) if "grid" in options_of(name) else (None,)
        for panel, grid in product(panels, shapes):
            with suppress(PlacementError):
                plan = plan_product(name, a, b, panel=panel, grid=grid)
                tried.append((products.held(plan, dtype).peak, products.moved(plan, 8)))
    assert len(tried) > 100
    limits = sorted({limit for limit, _ in tried})[::2]
    plans = list(products.by_every_algorithm(a, b))
    found = {limit: products.fewest(plans, dtype, limit) for limit in limits}
    assert len(set(found.values())) > 3, "too few different optima to tell much: take other shapes"
    for limit, fewest in found.items():
        assert fewest == min(moved for held, moved in tried if held <= limit)


# -- tiles -----------------------------------------------------------------------------------------


def test_only_these_tiles_keep_to_the_limits_by_hand():
    """Bytes by the formula, and not by the judge's: 2 s m n k / FLOP per byte."""
    fitting = {
        ((tm, tn, tk), stages)
        for (tm, tn, tk), stages in product(product(SIDES, SIDES, STEPS), STAGES)
        if stages >= 4
        and stages * (tm + tn) * tk * 2 <= 100_000
        and 2 * 4096**3 * (1 / tm + 1 / tn) <= 2 * 4096**3 / 80
        and 4096 / tk <= 128
        and (tm, tn) != (256, 256)  # 512 threads x 255 registers
    }
    answers = product(product(SIDES, SIDES, STEPS), STAGES[2:])
    solved = {answer for answer in answers if task("tile-within").result(answer)}
    assert solved == fitting == {((128, 256, 32), 4), ((256, 128, 32), 4)}


# -- kernels ---------------------------------------------------------------------------------------


def tiled(times=np.matmul, wider=0, again=False):
    """A tile loop that multiplies by ``times``; parts of B too wide, or all of it twice."""

    def kernel(a, b, tile):
        (m, k), n, (tm, tn, tk) = a.shape, b.shape[1], tile
        c = np.zeros((m, n), a.dtype)
        for i, j, p in product(range(0, m, tm), range(0, n, tn), range(0, k, tk)):
            left, right = a[i : i + tm, p : p + tk], b[p : p + tk, j : j + tn + wider]
            c[i : i + tm, j : j + tn] += times(left, right)[:, :tn]
            if again:
                times(left, right)
        return c

    return kernel


SUMS, LARGE = "wrong elements of C", "products larger than a tile"
LOADS = "bytes loaded beside the formula"


@pytest.mark.parametrize(
    ("kernel", "faults"),
    [
        (tiled(), []),
        (tiled(np.dot), []),
        (tiled(lambda x, y: x.dot(y)), []),
        (tiled(lambda x, y: np.matmul(x, y, out=np.empty((len(x), y.shape[1]), "f4"))), []),
        (tiled(wider=1), [LARGE, LOADS]),
        (tiled(again=True), [LOADS]),
        (lambda a, b, tile: tile_loop(a, b, tile, adds=False), [SUMS]),
        (lambda a, b, tile: np.asarray(a) @ np.asarray(b), [LOADS]),
    ],
)
def test_products_are_seen_however_they_are_written(kernel, faults):
    assert missed(task("repaired-kernel").result(kernel)) == faults
