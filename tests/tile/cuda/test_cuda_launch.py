"""What a launch is made of, without a GPU: choice of a tile, copies of operands, tensor maps."""

import numpy as np
import pytest

from tiledask.errors import KernelError
from tiledask.tile.backend import as_dtype
from tiledask.tile.choice.config import hopper, hopper_tile
from tiledask.tile.cuda import launch
from tiledask.tile.cuda.operands import MatrixLayout, layout, padded


def cycles(m, n, k, way, multiprocessors):
    """Of the busiest cluster, by dealing out tile after tile."""
    columns, cluster = way.block[1], way.cluster
    step, end = {256: (1024, 2000), 128: (600, 1000)}[columns]
    tiles = len(range(0, m, 128 * cluster)) * len(range(0, n, columns))
    clusters = max(1, multiprocessors // cluster)
    busiest = len(range(0, tiles, clusters))
    return busiest * (len(range(0, k, 64)) * step * (1.04 if cluster == 1 else 1) + end)


SHAPES = [
    *((1024, 1024, 2**e) for e in range(6, 17)),
    *((3072, 3072, 8192), (2304, 2304, 8192), (4096,) * 3, (8192,) * 3, (128, 4096, 7168)),
    *((300, 700, 4000), (1, 1, 2**20), (130, 10**5, 4096), (384, 2048, 4096)),
    *((128 * rows, 2**17, 4096) for rows in (1, 2, 3, 4, 5, 7, 27, 28)),  # an odd row costs
]


@pytest.mark.parametrize("multiprocessors", [132, 114, 7, 1])
def test_the_tile_chosen_is_the_one_that_takes_least(multiprocessors):
    for m, n, k in SHAPES:
        took = cycles(m, n, k, hopper_tile(m, n, k, multiprocessors), multiprocessors)
        ways = [hopper(t, c) for t in (256, 128) for c in (1, 2)[: 1 + (m > 128)]]
        assert took == min(cycles(m, n, k, way, multiprocessors) for way in ways), (m, n, k)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("step", [1, 2])
def test_a_copy_holds_the_same_numbers_nan_too(dtype, step):
    """Off its boundary or without neighbours; halves are copied as integers."""
    around = (np.arange(1400).reshape(20, 70) % 97).astype(as_dtype(dtype))
    around[3, 5] = np.nan
    x = around[:, 1:61:step]
    copied = padded(x)
    assert layout(copied).boundary == 16
    np.testing.assert_array_equal(copied.astype("f4"), x.astype("f4"))


@pytest.mark.parametrize(
    ("kernel", "rows", "words"),
    [("sgemm_warptiled", 2**31, "up to 2147483136 rows"), ("smem_tiled", 2**21, "2097120 rows")],
)
def test_what_a_launch_cannot_count_is_refused(kernel, rows, words):
    a, b = (MatrixLayout("float32", 4, many, 8, 8, 1, 16) for many in (rows, 8))
    ending = tuple(dict.fromkeys(("PAIRS", "HAS_BETA"), 0).items())
    with pytest.raises(KernelError, match=words):
        launch._plan(kernel, a, b, a, (32, 32, 32), ending, 0)
