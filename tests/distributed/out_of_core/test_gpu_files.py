"""How panels and tiles are cut on their way between files and a GPU.

Holds `tiledask.distributed.out_of_core.gpu_files`.
"""

import numpy as np
import pytest

from tiledask.distributed.out_of_core import gpu_files
from tiledask.distributed.out_of_core.stored import create_array
from tiledask.plan.products.regions import overlap, region_size

REGION = ((3, 64), (16, 49))


@pytest.mark.parametrize("slab", [1, 500, 10**6])
@pytest.mark.parametrize("chunks", [None, (16, 16)])
def test_parts_are_whole_lines_one_behind_the_other_and_chunks_are_in_one(
    chunks, slab, tmp_path, monkeypatch
):
    monkeypatch.setattr(gpu_files, "SLAB", slab)
    name = "x.zarr" if chunks else "x.npy"
    parts = gpu_files._parts(create_array(tmp_path / name, (80, 64), "f4", chunks), REGION)
    assert all(overlap(part, REGION) == part and part[1] == REGION[1] for part in parts)
    assert sum(map(region_size, parts)) == region_size(REGION)
    ends = [end for (_, end), _ in parts]
    assert ends == sorted(ends)
    assert not chunks or all(end % 16 == 0 for end in ends[:-1])
    assert len(parts) == 1 or slab < 10**6


def test_what_threads_bring_comes_in_the_order_of_the_parts(tmp_path):
    array = create_array(tmp_path / "x.npy", (80, 64), "f4")
    parts = [((n, n + 1), (0, 64)) for n in range(80)]
    for most in (1, 3, 8):
        assert gpu_files._on_threads(list, array, parts, most) == parts


@pytest.mark.gpu
def test_a_panel_goes_to_the_gpu_and_back(xp, tmp_path):
    if xp is np:
        pytest.skip("of arrays in host memory nothing is staged")
    array = create_array(tmp_path / "x.npy", (80, 64), "f2")
    made = np.random.default_rng(0).standard_normal((61, 33)).astype("f4")
    check = gpu_files.store(array, REGION, xp.asarray(made))
    assert check == array.check_of(REGION)
    there = xp.empty((61, 33), "f2")
    assert gpu_files.load(array, REGION, there) == 61 * 33 * 2
    np.testing.assert_array_equal(there.get(), made.astype("f2"))
