"""Tiles measured here: the order beside the predicted one, and what goes wrong."""

import pytest

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile import probe

TILES = [8, 16, 32, 64]
HERE = {"progress": False, "repeats": 3}


# -- measured on this CPU ------------------------------------------------------------------------


def test_every_tile_is_measured_and_the_order_compared():
    found = td.tile.tune("tiled", 128, 128, 128, "float32", TILES, **HERE)
    assert {trial.tile for trial in found.trials} == {(t,) * 3 for t in TILES}
    measured = [trial.measured for trial in found.trials]
    assert measured == sorted(measured)
    assert measured[0] > 0
    for trial in found.trials:
        assert trial.predicted == td.tile.traffic(128, 128, 128, trial.tile, 4).total
    # 4096 tile products take Python far longer than 8
    assert found.trials[0].tile[0] >= 32
    order = sorted(trial.predicted for trial in found.trials)
    off = [n - order.index(trial.predicted) for n, trial in enumerate(found.trials)]
    rank = 1 - 6 * sum(d * d for d in off) / (len(off) * (len(off) ** 2 - 1))
    assert found.correlation == pytest.approx(rank)
    text = repr(found)
    assert f"rank correlation of predicted and measured order: {found.correlation:.2f}" in text
    assert found._repr_html_().count("<tr>") == 1 + len(TILES)


def test_by_default_the_kernels_own_tile_is_among_them():
    found = td.tile.tune("tiled", 32, 32, 32, **HERE)
    assert td.tile.kernels["tiled"].tile in {trial.tile for trial in found.trials}
    assert len(found.trials) >= 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "blas"}, "kernel 'blas' has no tile to choose; those that have: "),
        ({"kernel": "fast"}, "there is no kernel 'fast'"),
        ({"candidates": []}, "candidates is empty"),
        ({"candidates": [0]}, "tm must be a whole number of 1 or more, got 0"),
        ({"m": 0}, "m must be a whole number of 1 or more, got 0"),
        ({"repeats": 0}, "repeats must be a whole number of 1 or more, got 0"),
    ],
)
def test_what_cannot_be_tuned(arguments, message):
    with pytest.raises(KernelError, match=message):
        td.tile.tune(**{"kernel": "tiled", "m": 8, "n": 8, "k": 8, "progress": False, **arguments})


@pytest.mark.skipif(probe().usable, reason="this machine has a usable GPU")
def test_a_gpu_kernel_needs_a_gpu():
    with pytest.raises(KernelError, match=r"kernel 'smem_tiled' cannot run here: .+"):
        td.tile.tune("smem_tiled", 8, 8, 8)


@pytest.mark.gpu
@pytest.mark.skipif(not probe().usable, reason=f"no usable GPU: {probe().reason}")
@pytest.mark.parametrize("kernel", [k for k in td.tile.configs if k != "tiled"])
def test_on_a_gpu(kernel):
    info = td.tile.kernels.get(kernel)
    if info is None or not info.available:
        pytest.skip(f"{kernel} cannot run here: {info.why_not if info else 'not in the table'}")
    found = td.tile.tune(kernel, 2048, 2048, 2048, info.dtypes[-1], **HERE)
    assert found.trials
