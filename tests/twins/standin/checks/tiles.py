"""Products and layers on the stand-in; launches that are wrong are told, and not computed."""

import cupy as cp
import numpy as np
import pytest
from cupy import StandInFault
from cupy.cuda.runtime import CUDARuntimeError

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile import as_dtype, functions
from tiledask.tile.cuda import launch, tensor_map
from tiledask.tile.cuda.hopper_tile import HopperTile
from tiledask.tile.layers.mlp import mlp, mlp_grad, mlp_parameters

KERNELS = [
    ("cublas", "float32"),
    ("cublas", "float64"),
    ("cublas", "bfloat16"),
    ("smem_tiled", "float32"),
    ("sgemm_warptiled", "float32"),
    ("mma_multistage", "float16"),
    ("mma_multistage", "bfloat16"),
    ("wgmma_ws_persistent", "float16"),
    ("wgmma_ws_persistent", "bfloat16"),
]


def drawn(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(as_dtype(dtype))


@pytest.mark.parametrize(("kernel", "dtype"), KERNELS)
@pytest.mark.parametrize("layout", ["CCC", "FCC", "CFF", "FFF", "SSS"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["", "batch"])
def test_a_product_with_everything(kernel, dtype, layout, batch):
    a, b, c = (
        drawn((*batch, 70, 33), dtype),
        drawn((*batch, 33, 150), dtype, 1),
        drawn((*batch, 70, 150), dtype, 2),
    )
    bias = drawn((150,), "float32", 3)
    wide = np.float64 if dtype == "float64" else np.float32
    expected = functions.gelu(0.5 * (a.astype(wide) @ b.astype(wide)) + 2 * c.astype(wide) + bias)

    def laid(x, how):
        if how == "F":
            return cp.asarray(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2)
        if how == "S":
            room = cp.empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
            room[..., ::2] = cp.asarray(x)
            return room[..., ::2]
        return cp.asarray(x)

    a, b, out = (laid(x, how) for x, how in zip((a, b, c), layout, strict=True))
    td.tile.matmul(
        a,
        b,
        kernel,
        out=out,
        alpha=0.5,
        beta=2.0,
        bias=cp.asarray(bias.astype(wide)),
        activation="gelu",
    )
    error = np.abs(out.get().astype(np.float64) - expected)
    eps = {"bfloat16": 2**-8, "float16": 2**-11}.get(dtype, 2**-18)
    assert (error <= 4 * eps * (1 + np.abs(expected))).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_layer_and_its_gradients(dtype):
    x, dy = drawn((5, 12), dtype), drawn((5, 12), dtype, 1)
    shapes = mlp_parameters(12, 48)
    weights = {name: drawn(shapes[name].shape, dtype, i) for i, name in enumerate(shapes)}
    y, kept = mlp(x, weights)
    dx, gradients = mlp_grad(dy, kept, weights)
    there = {name: cp.asarray(w) for name, w in weights.items()}
    Y, kept = mlp(cp.asarray(x), there)
    DX, found = mlp_grad(cp.asarray(dy), kept, there)
    eps = {"bfloat16": 2**-6, "float16": 2**-9}.get(dtype, 2**-18)
    pairs = [(Y, y), (DX, dx), *((found[name], gradients[name]) for name in weights)]
    for got, expected in pairs:
        assert type(got) is cp.ndarray
        assert got.dtype == expected.dtype
        expected = expected.astype("f4")
        assert np.abs(got.get().astype("f4") - expected).max() <= eps * np.abs(expected).max()


@pytest.fixture
def spoilt(monkeypatch):
    """Changes arguments by name on their way to a kernel."""

    def plant(**changes):
        kernel_of = launch._kernel

        def kernel(*asked):
            found = kernel_of(*asked)
            call = type(found).__call__

            def spoil(grid, block, args, **how):
                names = [name for _, name in found.parameters]
                args = [changes.get(n, lambda v: v)(v) for n, v in zip(names, args, strict=True)]
                return call(found, changes.get("grid", lambda g: g)(grid), block, args, **how)

            return spoil

        monkeypatch.setattr(launch, "_kernel", kernel)

    return plant


def multiply(kernel="smem_tiled", dtype="float32"):
    a, b = cp.asarray(drawn((64, 48), dtype)), cp.asarray(drawn((48, 80), dtype, 1))
    cp.get_default_memory_pool().free_all_blocks()
    return td.tile.matmul(a, b, kernel).get(), a.get() @ b.get()


def test_a_stride_too_long_leaves_the_allocation(spoilt):
    spoilt(a_row=lambda s: np.int64(s * 100_000))
    with pytest.raises(CUDARuntimeError, match="cudaErrorIllegalAddress"):
        multiply()


def test_another_stride_gives_another_product(spoilt):
    spoilt(b_row=lambda s: np.int64(s - 1))
    got, expected = multiply()
    assert not np.allclose(got, expected, rtol=1e-3)


def test_an_argument_of_another_size_is_told(spoilt):
    spoilt(m=lambda m: np.int64(m))
    with pytest.raises(StandInFault, match=r"m is int of 4 bytes, got 8"):
        multiply()


def test_a_grid_that_leaves_tiles_out_is_told(spoilt):
    spoilt(grid=lambda grid: (grid[0] - 1, *grid[1:]))
    with pytest.raises((StandInFault, CUDARuntimeError), match="grid"):
        multiply("sgemm_warptiled")


def test_a_pointer_of_the_host_is_told(spoilt):
    host = np.zeros((64, 80), np.float32)
    spoilt(c=lambda _: np.uint64(host.ctypes.data))
    with pytest.raises(CUDARuntimeError, match="IllegalAddress"):
        multiply()


def test_a_map_of_another_matrix_is_told(spoilt):
    other = cp.zeros((64, 8), as_dtype("bfloat16"))
    spoilt(
        map_a=lambda _: tensor_map.encode(
            "bfloat16", other.data.ptr, (8, 64, 1), (16, 1024), (64, 64, 1)
        )
    )
    with pytest.raises(StandInFault, match="map of A"):
        multiply("wgmma_ws_persistent", "bfloat16")


SPLITS = {
    "arrived": (lambda x: cp.ones(x.shape, x.dtype), (StandInFault, "begin at 0")),
    "partials": (lambda x: x[1:], (CUDARuntimeError, "end beyond their allocation")),
}


@pytest.mark.parametrize("what", [None, *SPLITS])
def test_memory_of_slices_that_is_not_as_the_kernel_needs_it_is_told(spoilt, what):
    a, b = (cp.asarray(drawn(shape, "bfloat16")) for shape in ((130, 300), (300, 136)))
    if what is None:
        got = td.tile.matmul(a, b, "wgmma_ws_persistent", tile=HopperTile(splits=2)).get()
        assert np.allclose(got.astype("f4"), a.get().astype("f4") @ b.get().astype("f4"), 0.02, 0.2)
        return
    change, (error, match) = SPLITS[what]
    spoilt(**{what: change})
    with pytest.raises(error, match=match):
        td.tile.matmul(a, b, "wgmma_ws_persistent", tile=HopperTile(splits=2))


def test_a_map_that_the_driver_refuses():
    with pytest.raises(KernelError, match="refuses a tensor map"):
        tensor_map.encode("bfloat16", 8, (8, 8, 1), (16, 128), (8, 8, 1))
