"""Tiles measured here: the order beside the predicted one, and what goes wrong.

Holds `tiledask.tile.choice.tuning`.
"""

import pytest

import tiledask as td
from tiledask.errors import KernelError

TILES = [8, 16, 32, 64]
HERE = {"progress": False, "repeats": 3}


def test_every_tile_is_measured_and_the_order_compared():
    found = td.tile.tune("tiled", 128, 128, 128, "float32", TILES, **HERE)
    assert {trial.tile for trial in found.trials} == {(t,) * 3 for t in TILES}
    measured = [trial.measured for trial in found.trials]
    assert measured == sorted(measured)
    assert measured[0] > 0
    for trial in found.trials:
        assert trial.predicted == td.tile.traffic(128, 128, 128, trial.tile, 4).total
    assert "the bytes are predicted, not the time" in repr(found)
    assert found._repr_html_().count("<tr>") == 1 + len(TILES)
    usual = td.tile.tune("tiled", 32, 32, 32, **HERE)
    assert td.tile.kernels["tiled"].tile in {trial.tile for trial in usual.trials}
    assert len(usual.trials) >= 4


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


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["smem_tiled", "mma_multistage", "wgmma_ws_persistent"])
def test_on_a_gpu(kernel):
    info = td.tile.kernels[kernel]
    if not info.available:
        with pytest.raises(KernelError, match="cannot run here"):
            td.tile.tune(kernel, 8, 8, 8)
        pytest.skip(f"{kernel} cannot run here: {info.why_not}")
    assert td.tile.tune(kernel, 2048, 2048, 2048, info.dtypes[-1], **HERE).trials
