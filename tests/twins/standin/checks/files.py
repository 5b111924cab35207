"""Panels from files to a GPU and tiles back: the same numbers, bytes and checksums, however cut.

Holds `tiledask.distributed.out_of_core.gpu_files`.
"""

import cupy as cp
import numpy as np
import pytest

from tiledask.distributed.out_of_core import gpu_files
from tiledask.distributed.out_of_core.stored import create_array, open_array

REGION = ((3, 64), (16, 49))


def array_in(folder, kind, dtype, shape=(80, 64)):
    """A stored matrix of some numbers, and these."""
    made = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    if kind == "F":
        np.save(folder / "x.npy", np.asfortranarray(made))
        return open_array(folder / "x.npy"), made
    path = folder / ("x.zarr" if kind == "zarr" else "x.npy")
    array = create_array(path, shape, dtype, chunks=(16, 16) if kind == "zarr" else None)
    array.write(tuple((0, n) for n in shape), made)
    return array, made


@pytest.fixture(params=[1, 500, 10**6], autouse=True)
def slab(request, monkeypatch):
    """Lines of their own, a few, all at once."""
    monkeypatch.setattr(gpu_files, "SLAB", request.param)


@pytest.mark.parametrize("kind", ["C", "F", "zarr"])
def test_a_panel_comes_to_the_gpu(kind, tmp_path):
    array, made = array_in(tmp_path, kind, "f2")
    region = ((16, 64), (16, 48)) if kind == "zarr" else REGION
    there = cp.empty(tuple(b - a for a, b in region), "f2", order=array.order)
    wanted = made[tuple(slice(*ends) for ends in region)]
    assert gpu_files.load(array, region, there) == wanted.nbytes  # chunks too, each once
    np.testing.assert_array_equal(there.get(), wanted)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("kind", ["C", "F", "zarr"])
def test_a_tile_goes_to_its_file_rounded_with_its_checksum(kind, dtype, tmp_path):
    array, made = array_in(tmp_path, kind, dtype)
    region = ((16, 64), (16, 48)) if kind == "zarr" else REGION
    place = tuple(slice(*ends) for ends in region)
    c = np.random.default_rng(1).standard_normal(made[place].shape).astype("f4")
    check = gpu_files.store(array, region, cp.asarray(np.asarray(c, order=array.order)))
    made[place] = c.astype(dtype)
    np.testing.assert_array_equal(array[:, :], made)
    assert check == array.check_of(region)


def test_a_file_that_was_cut_short_is_an_error(tmp_path):
    array, _ = array_in(tmp_path, "C", "f4")
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-4000])
    with pytest.raises(Exception, match=r"ended at byte \d+ while it was read"):
        gpu_files.load(array, ((0, 80), (0, 64)), cp.empty((80, 64), "f4"))
