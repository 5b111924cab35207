"""Our kernels on a GPU, against float64: every edge, layout and ending, in the middle of NaN."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from cuda_host.products import Case, is_right

import tiledask as td
from tiledask.tile.table import lookup

pytestmark = pytest.mark.gpu

OURS = ("smem_tiled", "sgemm_warptiled", "mma_multistage", "wgmma_ws_persistent")
VARIANTS = [
    (name, tile, dtype)
    for name in OURS
    for tile in lookup(name).tiles
    for dtype in (*lookup(name).dtypes, *(("tf32",) if lookup(name).tf32 else ()))
    if name != "mma_multistage" or tile[2] == (16 if dtype == "tf32" else 32)
]


@pytest.fixture
def cp(kernel):
    """CuPy, where it can run ``kernel``."""
    found = td.tile.kernels[kernel]
    if not found.available:
        pytest.skip(f"{kernel} cannot run here: {found.why_not}")
    return td.tile.namespace("cupy")


def run(a, b, out, epilogue, kernel, tile, precision):
    td.tile.matmul(
        a, b, kernel, tile, out, alpha=epilogue.alpha, beta=epilogue.beta, bias=epilogue.bias,
        activation=epilogue.activation, preactivation=epilogue.preactivation, precision=precision,
    )  # fmt: skip


def right(cp, kernel, tile, dtype, case):
    tf32 = dtype == "tf32"
    case = replace(
        case, dtype="float32" if tf32 else dtype, tf32=tf32, seed=np.random.randint(2**31)
    )
    precision = "tf32" if tf32 else None
    return is_right(partial(run, kernel=kernel, tile=tile, precision=precision), case, cp), case


@pytest.mark.parametrize(("kernel", "tile", "dtype"), VARIANTS)
def test_all_edges(cp, kernel, tile, dtype):
    extents = [(1, t - 1, t, t + 1, 2 * t + 3) for t in tile]
    for m, n, k in product(*extents):
        good, case = right(cp, kernel, tile, dtype, Case(m, n, k))
        assert good, case


@pytest.mark.parametrize(("kernel", "tile", "dtype"), VARIANTS)
@pytest.mark.parametrize("layouts", ["".join(x) for x in product("CF", repeat=3)] + ["SSS"])
@pytest.mark.parametrize("margin", [8, 1])
def test_all_layouts_and_endings(cp, kernel, tile, dtype, layouts, margin):
    base = Case(517, 771, 333, layouts, margin=margin)
    endings = (
        {}, {"alpha": -0.5, "beta": 2.0}, {"bias": True, "gelu": True},
        {"beta": 1.0, "bias": True, "gelu": True, "before": True},
    )  # fmt: skip
    for ending in endings:
        good, case = right(cp, kernel, tile, dtype, replace(base, **ending))
        assert good, case


@pytest.mark.parametrize(("kernel", "tile", "dtype"), VARIANTS)
@pytest.mark.parametrize("shared", ["", "a", "b"])
def test_batches(cp, kernel, tile, dtype, shared):
    good, case = right(
        cp, kernel, tile, dtype, Case(130, 260, 70, batch=7, shared=shared, bias=True)
    )
    assert good, case


@pytest.mark.parametrize(("kernel", "tile", "dtype"), VARIANTS)
def test_large_enough_to_fill_the_device_many_times(cp, kernel, tile, dtype):
    """Persistent blocks take many tiles, the raster has many bands, stages go round and round."""
    for out_dtype in ("", "float32"):
        good, case = right(
            cp, kernel, tile, dtype, Case(4099, 4227, 2051, margin=8, out_dtype=out_dtype)
        )
        assert good, case
