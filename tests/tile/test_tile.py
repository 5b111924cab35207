"""The products of one device: a @ b + beta out by every kernel against float64, the bytes that they
allocate and that tiles move, and what is refused.

Holds `tiledask.tile.product`, `tiledask.tile.table`, `tiledask.tile.levels` and
`tiledask.tile.numpy_kernels`.
"""

from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from gpu.gemm_cases import Variant, check, drawn_case
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.allocated import allocated
from twins import device_twin

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile import backend, numpy_kernels, product, table

SHAPES = st.tuples(*[st.integers(1, 9)] * 3)
ON_CPUS = ("loops", "tiled", "blas")
TYPES = ("float16", "bfloat16", "float32", "float64")
# -- the kernels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kernel", [*ON_CPUS, "cublas"])
def test_every_kernel_equals_float64(monkeypatch, kernel, dtype, pieces):
    """Inside out, with NaN around all, and piece by piece; cuBLAS is the host's BLAS."""
    if pieces:
        monkeypatch.setattr(numpy_kernels, "half_tile", lambda out_itemsize: (4, 3, 5))
    xp = device_twin.use(monkeypatch) if kernel == "cublas" else np
    draw = Random(f"{kernel} {dtype} {pieces}")
    for _ in range(40):
        extents = draw.choices(range(1, 20 if pieces else 10), k=3)
        tile = tuple(draw.choices(range(1, 9), k=3)) if kernel == "tiled" else None
        out = draw.choice(("", "float32")) if dtype in backend.HALVES else ""
        case = drawn_case(draw, *extents, dtype=dtype, out_dtype=out)
        found = check(Variant(kernel, tile, dtype).run, case, xp)
        assert found.right, found


@given(shape=SHAPES, tile=SHAPES, beta=st.sampled_from([0, 1, -2]))
@settings(max_examples=60)
def test_tiled_counts_what_the_formula_says(shape, tile, beta):
    m, n, k = shape
    rng = np.random.default_rng(m * 100 + n * 10 + k)
    a, b = rng.integers(-9, 9, (m, k)).astype("f4"), rng.integers(-9, 9, (k, n)).astype("f4")
    out = np.full((m, n), 3.0, np.float32)
    counted = product.accumulate(a, b, out, "tiled", tile, beta)
    np.testing.assert_array_equal(out, a.astype("f8") @ b.astype("f8") + 3 * beta)
    assert counted == td.tile.traffic(m, n, k, tile, 4, accumulate=beta != 0)


@pytest.mark.parametrize("kernel", ON_CPUS)
def test_a_new_result_and_operands_that_run_backwards(kernel):
    a = np.eye(3, dtype=td.tile.as_dtype("bfloat16"))[::-1]
    c = td.tile.matmul(a, a[:, ::-1], kernel)
    assert (c.dtype, c.tolist()) == (a.dtype, [[0, 0, 1], [0, 1, 0], [1, 0, 0]])


def test_types_by_name():
    bfloat16 = td.tile.as_dtype("bfloat16")
    assert td.tile.as_dtype(bfloat16) == td.tile.as_dtype(bfloat16.type) == bfloat16
    assert [td.tile.accumulator(kind).name for kind in TYPES] == ["float32"] * 3 + ["float64"]
    for kind in (np.dtype("V2"), "f17"):
        with pytest.raises(KernelError, match=r"write its name, x\.dtype\.name"):
            td.tile.as_dtype(kind)


# -- memory --------------------------------------------------------------------------------------

PANEL = ("tiled", (96, 32, 200))
WHOLE = {"beta": 1.0}
MEMORY_CASES = [
    ("blas", None, "float32", "float32", {}),
    ("blas", None, "float64", "float64", WHOLE),
    ("blas", None, "float16", "float16", {}),
    ("blas", None, "float16", "float32", WHOLE),
    ("tiled", (1100, 64, 64), "float64", "float64", WHOLE),
    (*PANEL, "float16", "float16", {}),
    (*PANEL, "bfloat16", "float32", WHOLE),
    ("tiled", 5000, "float32", "float32", {}),
]
"""(kernel, tile, operands' type, out's, whether it is added to)."""


def test_workspace_is_what_numpy_really_allocates():
    shape = (1100, 250, 150)
    for case, measured in zip(MEMORY_CASES, allocated(shape, MEMORY_CASES), strict=True):
        kernel, tile, *types, end = case
        size, out_size = (td.tile.as_dtype(x).itemsize for x in types)
        predicted = td.tile.workspace(*shape, size, kernel, tile, "beta" in end, out_size)
        # beside the arrays there are Python's own objects
        assert predicted <= measured <= predicted + 6_000, case


def test_workspace_has_a_bound():
    many, sums, pieces = (10**5,) * 3, 2048 * 2048 * 4, 2 * 4096 * 256 * 4
    assert td.tile.workspace(*many, 2) == sums + pieces
    assert td.tile.workspace(*many, 2, out_itemsize=4) == pieces
    assert td.tile.workspace(10, 20, 30, 2) == (10 * 20 + 10 * 30 + 30 * 20) * 4
    # lines of 7 halves are copied to 16 bytes each, whichever way they lie
    assert td.tile.workspace(64, 64, 7, 2, "wgmma_ws_persistent") == 2 * 64 * 16


# -- traffic -------------------------------------------------------------------------------------


@given(shape=SHAPES, tile=SHAPES, itemsize=st.sampled_from([2, 4, 8]))
def test_traffic_is_the_sum_over_the_real_tiles(shape, tile, itemsize):
    (m, n, k), (tm, tn, tk) = shape, tile
    a = b = c = tiles = 0
    for i in range(0, m, tm):
        for j in range(0, n, tn):
            rows, columns = min(tm, m - i), min(tn, n - j)
            c += rows * columns * itemsize
            for p in range(0, k, tk):
                steps = min(tk, k - p)
                a, b = a + rows * steps * itemsize, b + steps * columns * itemsize
                tiles += 1
    t = td.tile.traffic(m, n, k, tile, itemsize)
    assert (t.a, t.b, t.c, t.tiles) == (a, b, c, tiles)
    assert (t.loaded, t.total, t.intensity) == (a + b, a + b + c, t.flops / (a + b))
    assert t.intensity <= 2 * tm * tn / ((tm + tn) * itemsize) * (1 + 1e-12)
    # that of a tile does not depend on the product around it
    whole = td.tile.traffic(m * tm, n * tn, k * tk, tile, 4).intensity
    assert whole == td.tile.traffic(*tile, tile, 4).intensity


# -- what is refused -----------------------------------------------------------------------------

X, Y, Z = np.zeros((4, 6), "f4"), np.zeros((6, 5), "f4"), np.zeros((4, 5), "f4")
FROZEN, BOTH = Z.copy(), np.zeros((4, 11), "f4")
FROZEN.flags.writeable = False
LONG, COMPLEX, WHOLE = np.zeros((300, 300)), X.astype(complex), X.astype(int)
REFUSED = [
    (X, X, {}, "4x6 @ 4x6; transpose"),
    (X[None], Y, {}, "2 dimensions, got .1, 4, 6. @ .6, 5."),
    (X[:0], Y, {}, "all extents are 1 or more, got 0x6"),
    (X, Y.astype("f8"), {}, "got float32 and float64"),
    (WHOLE, WHOLE.T, {}, "got int64; cast with .astype"),
    (COMPLEX, COMPLEX.T, {}, "got complex128; cast"),
    ([[1.0]], Y, {}, "got list; convert it with numpy.asarray"),
    (X, Y, {"kernel": "fast"}, "no kernel 'fast'; there are loops, tiled"),
    (X, Y, {"kernel": "smem_tiled"}, "takes cupy arrays, got numpy; .* blas"),
    (X, Y, {"tile": 4}, "'blas' has no tile to choose, got tile=4"),
    (X, Y, {"kernel": "tiled", "tile": (4, 4)}, "3 extents .* got 2"),
    (LONG, LONG, {"kernel": "loops"}, "16777216 .* got 27000000"),
    (X, Y, {"out": X}, r"float32 \(4, 5\) where a is, got float32 \(4, 6\)"),
    (X, Y, {"out": FROZEN}, "read-only"),
    (BOTH[:, :6], Y, {"out": BOTH[:, 5:10]}, "must not overlap a"),
    (X, Y, {"beta": 1j}, "beta must be a real number"),
    (X, Y, {"beta": 1}, r"beta=1 adds what out holds.*give out= an array"),
]


@pytest.mark.parametrize(("a", "b", "given", "words"), REFUSED, ids=[row[-1] for row in REFUSED])
def test_refused_with_the_rule_and_a_way_out(a, b, given, words):
    with pytest.raises(KernelError, match=words):
        td.tile.matmul(a, b, **given)


# -- the table -----------------------------------------------------------------------------------


def test_table_lists_every_kernel_and_why_one_cannot_run(monkeypatch):
    monkeypatch.setattr(table, "probe", lambda: backend.Backend(False, "no GPU <here>"))
    on_gpus = ["smem_tiled", "sgemm_warptiled", "mma_multistage", "wgmma_ws_persistent", "cublas"]
    assert list(td.tile.kernels) == [*ON_CPUS, *on_gpus]
    assert [not k.why_not for k in td.tile.kernels.values()] == [True] * 3 + [False] * 5
    assert repr(td.tile.kernels).count("unavailable") == 5
    assert f"{', '.join(on_gpus)}: no GPU <here>" in repr(td.tile.kernels)
    assert "no GPU &lt;here&gt;" in td.tile.kernels._repr_html_()
    with pytest.raises(KernelError, match="'cublas' cannot run here: no GPU <here>"):
        table.find("blas", "cupy")
    monkeypatch.setattr(table, "probe", lambda: backend.Backend(True, "", nvrtc_reason="no NVRTC"))
    assert table.find("blas", "cupy").name == "cublas"
    assert td.tile.kernels["smem_tiled"].why_not == "no NVRTC"


def gpus(*capabilities):
    """A machine with these GPUs."""
    names = {"7.5": "T4", "8.0": "A100", "8.9": "L4", "9.0": "H100", "10.0": "B200"}
    devices = (backend.GpuInfo(i, names[c], c, 10**9) for i, c in enumerate(capabilities))
    return backend.Backend(True, "", devices=tuple(devices))


NEEDS = "needs a GPU of compute capability "
NEW, HOPPER = "mma_multistage", "wgmma_ws_persistent"
GPUS = [
    *((NEW, at, "") for at in (("8.0",), ("8.9",), ("10.0",), ("7.5", "8.0"))),
    (NEW, ("7.5",), NEEDS + "8.0 (A100) or more, and there is T4 (7.5)"),
    *((HOPPER, at, "") for at in (("9.0",), ("8.0", "9.0"))),
    (HOPPER, ("8.9", "10.0"), NEEDS + "9.0 (H100, H200), and there is L4 (8.9), B200 (10.0)"),
    *((name, ("7.5",), "") for name in ("smem_tiled", "cublas")),
]


@pytest.mark.parametrize(("kernel", "capabilities", "why_not"), GPUS)
def test_a_kernel_says_which_gpus_it_needs(monkeypatch, kernel, capabilities, why_not):
    monkeypatch.setattr(table, "probe", lambda: gpus(*capabilities))
    assert td.tile.kernels[kernel].why_not == why_not


def test_of_several_gpus_the_one_that_holds_the_operands_decides(monkeypatch):
    monkeypatch.setattr(backend, "probe", lambda: gpus("7.5", "9.0"))
    square = {"shape": (4, 4), "ndim": 2, "dtype": td.tile.as_dtype("bfloat16")}
    on_t4, on_h100 = (SimpleNamespace(device=SimpleNamespace(id=i), **square) for i in (0, 1))
    hopper = table.lookup(HOPPER)
    product._check_operands(on_h100, on_h100, hopper)
    with pytest.raises(KernelError, match=r"cannot run where a is: needs .* there is T4 \(7.5\)"):
        product._check_operands(on_t4, on_t4, hopper)
    with pytest.raises(KernelError, match=r"built for tiles of .* got \(64, 64, 64\)"):
        hopper.with_tile(64)
