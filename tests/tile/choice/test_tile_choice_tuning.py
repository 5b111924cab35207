"""Tiles measured here: the order beside the predicted one, what is remembered, what goes wrong.

Holds `tiledask.tile.cache`, `tiledask.tile.choice.at_hand`, `tiledask.tile.choice.chosen`,
`tiledask.tile.choice.timing`, `tiledask.tile.choice.tuning` and
`tiledask.tile.choice.tuning_cache`.
"""

import json
import os
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import DeadlineError, KernelError
from tiledask.tile import probe
from tiledask.tile.choice import rank_correlation, timing
from tiledask.tile.choice.at_hand import cpu_name, described
from tiledask.tile.choice.tuning_cache import key_of, recall, remember, remembered_file
from tiledask.tile.cuda.hopper_tile import HopperTile

TILES = [8, 16, 32, 64]
HERE = {"progress": False, "repeats": 3}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("TILEDASK_CACHE", str(tmp_path / "mine"))
    return tmp_path / "mine"


# -- measured on this CPU ------------------------------------------------------------------------


@pytest.mark.long
def test_every_tile_is_measured_and_the_order_compared():
    found = td.tile.tune("tiled", 128, 128, 128, "float32", TILES, **HERE)
    assert {trial.tile for trial in found.trials} == {(t,) * 3 for t in TILES}
    measured = [trial.measured for trial in found.trials]
    assert measured == sorted(measured)
    assert measured[0] > 0
    assert {trial.repeats for trial in found.trials} == {3}
    for trial in found.trials:
        assert trial.predicted == td.tile.traffic(128, 128, 128, trial.tile, 4).total
    # 4096 tile products take Python far longer than 8
    assert found.best.tile[0] >= 32
    assert found.correlation > 0.5
    text = repr(found)
    assert f"rank correlation of predicted and measured order: {found.correlation:.2f}" in text
    assert "on a CPU only the bytes are predicted, not the time" in text
    assert found._repr_html_().count("<tr>") == 1 + len(TILES)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types_are_measured_too(dtype):
    found = td.tile.tune("tiled", 40, 30, 20, dtype, [8, 16], **HERE)
    assert found.dtype == dtype
    size = td.tile.as_dtype(dtype).itemsize
    assert found.trials[0].predicted == td.tile.traffic(40, 30, 20, found.best.tile, size).total


@pytest.mark.long
def test_a_retuned_tile_is_never_slower_than_the_one_carried_over():
    found = td.tile.tune("tiled", 128, 128, 128, "float32", [64, 128], carried=4, **HERE)
    (carried,) = [trial for trial in found.trials if trial.tile == (4, 4, 4)]
    assert found.best.measured <= carried.measured
    assert found.gain == carried.measured / found.best.measured > 1
    assert "the tile carried over, 4x4x4, takes" in repr(found)
    alone = td.tile.tune("tiled", 64, 64, 64, "float32", [], carried=64, **HERE)
    assert (alone.gain, alone.best.tile) == (1, (64, 64, 64))


def test_by_default_the_kernels_own_tile_is_among_them():
    found = td.tile.tune("tiled", 32, 32, 32, save=False, **HERE)
    assert td.tile.kernels["tiled"].tile in {trial.tile for trial in found.trials}
    assert len(found.trials) >= 4
    assert (found.file, remembered_file().exists()) == ("", False)


def test_each_round_has_fresh_numbers_and_all_tiles_get_the_same(monkeypatch):
    seen = []

    def spy(a, b, kernel, tile, out, **more):
        seen.append((tile, a.copy(), b.copy()))
        return td.tile.matmul(a, b, kernel, tile, out, **more)

    monkeypatch.setattr(timing, "matmul", spy)
    td.tile.tune("tiled", 8, 9, 10, "float32", [4, 8], **HERE)
    assert [tile[0] for tile, *_ in seen] == [4, 4, 8, 8, 4, 8, 4, 8], "each warms up once"
    rounds = seen[:4], seen[4:6], seen[6:]
    for one in rounds:
        assert all(np.array_equal(a, one[0][1]) for _, a, _ in one)
    for one, two in pairwise(rounds):
        assert not (one[0][1] == two[0][1]).any()
        assert not (one[0][2] == two[0][2]).any()
    assert abs(np.concatenate([a.ravel() for _, a, _ in seen])).mean() == pytest.approx(0.8, 0.2)


def test_the_median_counts(monkeypatch):
    """One disturbed round of three changes nothing."""
    taken = iter([1, 2, 9, 1, 1, 2])  # seconds of (8, 16) in each round

    def pretended(self, tile):
        return next(taken)

    monkeypatch.setattr(timing.Runs, "seconds", pretended)
    found = td.tile.tune("tiled", 8, 8, 8, "float32", [8, 16], **HERE)
    assert [(trial.tile[0], trial.measured) for trial in found.trials] == [(8, 1), (16, 2)]


def test_a_deadline_ends_the_measurement(monkeypatch):
    looks, stopwatch = iter(range(100)), iter(range(100))
    pretended = SimpleNamespace(
        monotonic=lambda: next(looks), perf_counter=lambda: float(next(stopwatch))
    )
    monkeypatch.setattr(timing, "time", pretended)
    found = td.tile.tune("tiled", 8, 8, 8, "float32", TILES, deadline=2.5, **HERE)
    assert [trial.tile[0] for trial in found.trials] == [8, 16]
    assert [(tile[0], why) for tile, why in found.refused] == [
        (32, "the deadline of 2.5 s had passed"),
        (64, "the deadline of 2.5 s had passed"),
    ]
    assert "not 64x64x64: the deadline of 2.5 s had passed" in repr(found)


def test_a_deadline_before_any_result_is_an_error():
    with pytest.raises(DeadlineError, match="waited 1e-09 s for a first tile to be measured"):
        td.tile.tune("tiled", 8, 8, 8, deadline=1e-9, **HERE)


def test_a_tile_that_the_kernel_refuses_is_listed(monkeypatch):
    once = timing.Runs.once

    def picky(self, tile):
        if tile == (16, 16, 16):
            raise KernelError("not built for 16")
        once(self, tile)

    monkeypatch.setattr(timing.Runs, "once", picky)
    found = td.tile.tune("tiled", 8, 8, 8, "float32", [8, 16], **HERE)
    assert found.refused == (((16, 16, 16), "not built for 16"),)
    with pytest.raises(KernelError, match="no tile can be measured: 16x16x16: not built for 16"):
        td.tile.tune("tiled", 8, 8, 8, "float32", [16], **HERE)


def test_progress_goes_to_the_error_stream(capfd):
    td.tile.tune("tiled", 8, 8, 8, "float32", [8], repeats=1)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "blas"}, "kernel 'blas' has no tile to choose; those that have: "),
        ({"kernel": "fast"}, "kernel 'fast' has no tile to choose"),
        ({"candidates": []}, "candidates is empty"),
        ({"candidates": [0]}, "tm must be a whole number of 1 or more, got 0"),
        ({"m": 0}, "m must be a whole number of 1 or more, got 0"),
        ({"repeats": 0}, "repeats must be a whole number of 1 or more, got 0"),
        ({"deadline": float("nan")}, "deadline above 0 s, got 5 and nan"),
    ],
)
def test_what_cannot_be_tuned(arguments, message):
    with pytest.raises(KernelError, match=message):
        td.tile.tune(**{"kernel": "tiled", "m": 8, "n": 8, "k": 8, "progress": False, **arguments})


@pytest.mark.skipif(probe().usable, reason="this machine has a usable GPU")
def test_a_gpu_kernel_needs_a_gpu():
    with pytest.raises(KernelError, match=r"kernel 'smem_tiled' cannot run here: .+"):
        td.tile.tune("smem_tiled", 8, 8, 8)
    with pytest.raises(KernelError, match=r"no GPU is at hand \(.+\); name one to predict for"):
        td.tile.tuned("smem_tiled", 8, 8, 8)


# -- ranks ---------------------------------------------------------------------------------------


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=9))
def test_rank_correlation_is_spearmans(pairs):
    from scipy.stats import spearmanr

    x, y = zip(*pairs, strict=True)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert np.isnan(rank_correlation(x, y))
    else:
        assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic)


def test_no_order_no_correlation():
    assert np.isnan(rank_correlation([1], [2]))
    assert np.isnan(rank_correlation([1, float("nan")], [2, 3]))
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == -1


# -- remembered ----------------------------------------------------------------------------------


def test_what_was_tuned_is_used_next_time():
    before = td.tile.tuned("tiled", 100, 100, 100)
    assert (before.tile, before.source) == (td.tile.kernels["tiled"].tile, "default")
    assert "nothing was measured" in before.why
    found = td.tile.tune("tiled", 100, 100, 100, "float32", TILES, **HERE)
    assert found.file == str(remembered_file())
    after = td.tile.tuned("tiled", 128, 65, 99)  # the same size class
    assert (after.tile, after.source) == (found.best.tile, "measured")
    assert "for 100x100x100" in after.why
    for other in ((129, 100, 100, "float32"), (100, 100, 100, "float64")):
        assert td.tile.tuned("tiled", *other).source == "default"


def test_where_it_is_remembered(monkeypatch, tmp_path):
    assert remembered_file() == tmp_path / "mine" / "tuned.json"
    monkeypatch.delenv("TILEDASK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert remembered_file() == tmp_path / "xdg" / "tiledask" / "tuned.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert remembered_file() == tmp_path / ".cache" / "tiledask" / "tuned.json"


def test_tiles_are_kept_side_by_side_and_nothing_else_stays(cache):
    remember("a", (1, 2, 3), 0.5, (9, 9, 9))
    remember("b", (4, 5, 6), 0.25, (9, 9, 9))
    remember("a", (7, 8, 9), 0.125, (9, 9, 9))
    assert recall("a")[0] == (7, 8, 9)
    assert recall("b")[0] == (4, 5, 6)
    assert recall("b")[1]["seconds"] == 0.25
    assert recall("c") is None
    how = HopperTile((128, 128, 64), stages=4, cluster=1, raster=16, staged=False, blocks=128)
    remember("d", how, 0.5, (9, 9, 9))
    assert recall("d")[0] == how
    assert [path.name for path in cache.iterdir()] == ["tuned.json"]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"tiles": 3}', "\x00", '{"tiles": {}, "tiles": 1}']
)
def test_a_file_that_cannot_be_read_is_said_and_replaced(cache, content):
    cache.mkdir()
    remembered_file().write_text(content)
    with pytest.warns(UserWarning, match=r"tuned\.json: is ignored, and replaced when"):
        assert td.tile.tuned("tiled", 8, 8, 8).source == "default"
    with pytest.warns(UserWarning, match="is ignored"):
        remember("a", (1, 2, 3), 0.5, (9, 9, 9))
    assert recall("a")[0] == (1, 2, 3)


def test_tiles_that_another_may_have_written_are_said_and_ignored(cache):
    """As all files of the cache are (test_cuda_offline.py)."""
    remember("a", (1, 2, 3), 0.5, (9, 9, 9))
    path = remembered_file()
    path.symlink_to(path.rename(cache.parent / "planted.json"))
    with pytest.warns(UserWarning, match=r"tuned\.json: is ignored"):
        assert recall("a") is None
    with pytest.warns(UserWarning, match="is ignored"):
        remember("a", (4, 5, 6), 0.5, (9, 9, 9))
    assert recall("a")[0] == (4, 5, 6)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("entry", [3, {}, {"tile": [1, 2]}, {"tile": [0, 1, 1]}, {"tile": "wide"}])
def test_an_entry_that_is_no_tile_is_said_and_ignored(cache, entry):
    cache.mkdir()
    key = key_of(cpu_name(), "tiled", "float32", 8, 8, 8)
    remembered_file().write_text(json.dumps({"tiles": {key: entry}}))
    with pytest.warns(UserWarning, match=r"is not one: .*; measure it again"):
        assert td.tile.tuned("tiled", 8, 8, 8).source == "default"


def test_a_write_that_fails_leaves_the_old_file_and_no_other(cache, monkeypatch):
    remember("a", (1, 2, 3), 0.5, (9, 9, 9))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device; set TILEDASK_CACHE"):
        assert remember("a", (4, 5, 6), 0.5, (9, 9, 9)) is None
    assert recall("a")[0] == (1, 2, 3)
    assert [path.name for path in cache.iterdir()] == ["tuned.json"]


def test_a_folder_that_cannot_be_made_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEDASK_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot be written: Not a directory"):
        found = td.tile.tune("tiled", 8, 8, 8, "float32", [8], **HERE)
    assert found.file == ""


# -- devices -------------------------------------------------------------------------------------


DRIVERS = {
    "NVIDIA H200": (150, "H200"),
    "NVIDIA H100 80GB HBM3": (85, "H100"),
    "NVIDIA A100-SXM4-40GB": (42, "A100-40GB"),
    "NVIDIA A100-SXM4-80GB": (85, "A100-80GB"),
    "Tesla T4": (16, "T4"),
    **{f"NVIDIA {name}": (size, name) for name, size in (("L4", 24), ("L40S", 48), ("A10", 24))},
    "NVIDIA B200": (190, "B200"),
}


@pytest.mark.parametrize("name", DRIVERS)
def test_drivers_names_are_known(name):
    gigabytes, shipped = DRIVERS[name]
    assert described(name, gigabytes * 10**9, {}).name == shipped


def test_what_the_driver_says_counts():
    facts = {"multiProcessorCount": 114, "l2CacheSize": 50 * 2**20, "regsPerMultiprocessor": 0}
    pcie = described("NVIDIA H100 PCIe", 80 * 10**9, facts)
    assert (pcie.name, pcie.multiprocessors, pcie.registers) == ("H100", 114, 65536)
    assert described("NVIDIA GeForce RTX 4090", 24 * 10**9, facts) is None
    assert described("NVIDIA A1000", 6 * 10**9, facts) is None


def test_a_tile_for_a_named_device_is_predicted():
    found = td.tile.tuned("smem_tiled", 4096, 4096, 4096, "float32", "H200")
    assert found.source == "predicted"
    built = td.tile.kernels["smem_tiled"].tiles or ((16,) * 3, (32,) * 3)
    assert found.tile in built
    best = td.tile.order(4096, 4096, 4096, td.tile.candidates("smem_tiled", "H200"), "H200")[0]
    assert (found.tile, found.why) == (best.config.block, repr(best))
    remember(key_of("H200", "smem_tiled", "float32", 8, 8, 8), (32,) * 3, 1.0, (8, 8, 8))
    assert td.tile.tuned("smem_tiled", 8, 8, 8, "float32", "H200").source == "measured"


@pytest.mark.gpu
@pytest.mark.skipif(not probe().usable, reason=f"no usable GPU: {probe().reason}")
@pytest.mark.parametrize("kernel", [k for k in td.tile.configs if k != "tiled"])
def test_on_a_gpu_times_are_above_the_bound(kernel):
    info = td.tile.kernels.get(kernel)
    if info is None or not info.available:
        pytest.skip(f"{kernel} cannot run here: {info.why_not if info else 'not in the table'}")
    found = td.tile.tune(kernel, 2048, 2048, 2048, info.dtypes[-1], **HERE)
    assert found.trials
    if found.by:
        assert all(not trial.measured < trial.predicted for trial in found.trials)
    assert td.tile.tuned(kernel, 2048, 2048, 2048, info.dtypes[-1]).source == "measured"
