"""The products of one device: every kernel against float64, and the bytes a tile level moves.

Holds `tiledask.tile.table`, `tiledask.tile.levels` and `tiledask.tile.product`.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile import backend, product, table

EXTENTS = st.integers(1, 9)
TILES = st.tuples(EXTENTS, EXTENTS, EXTENTS)


def reference(a, b):
    """The definition, in Python's floats."""
    return np.array(
        [[sum(x * y for x, y in zip(r, c, strict=True)) for c in b.T.tolist()] for r in a.tolist()]
    )


def operands(m, n, k, dtype="float64"):
    """Small whole numbers, whose product is exact."""
    rng = np.random.default_rng(0)
    return (
        rng.integers(-9, 10, shape).astype(td.tile.as_dtype(dtype)) for shape in ((m, k), (k, n))
    )


# -- the kernels ---------------------------------------------------------------------------------


@given(m=EXTENTS, n=EXTENTS, k=EXTENTS, tile=TILES, beta=st.sampled_from([0, 1, -2]))
@settings(max_examples=60)
def test_tiled_equals_the_definition_and_counts_what_the_formula_says(m, n, k, tile, beta):
    rng = np.random.default_rng(m * 100 + n * 10 + k)
    a, b = rng.integers(-9, 9, (m, k)).astype("f4"), rng.integers(-9, 9, (k, n)).astype("f4")
    out = np.full((m, n), 3.0, np.float32)
    c, counted = td.tile.count_traffic(a, b, tile=tile, out=out, beta=beta)
    np.testing.assert_array_equal(c, reference(a, b) + 3 * beta)
    assert counted == td.tile.traffic(m, n, k, tile, 4, accumulate=beta != 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices_and_reversed_operands_need_no_copy(dtype):
    a, b = operands(20, 18, 22, dtype)
    for kernel in ("tiled", "blas", "loops"):
        out = np.full((20, 36), np.nan, dtype)
        td.tile.matmul(a[::2, ::-1], b[::-1, ::2], kernel=kernel, out=out[::2, ::4])
        np.testing.assert_array_equal(out[::2, ::4], a[::2, ::-1] @ b[::-1, ::2])
        assert np.isnan(out[1::2]).all()


def test_bfloat16_goes_by_its_name():
    bfloat16 = td.tile.as_dtype("bfloat16")
    assert bfloat16.name == "bfloat16"
    assert td.tile.as_dtype(bfloat16) == td.tile.as_dtype(bfloat16.type) == bfloat16
    assert td.tile.as_dtype(np.float32) == td.tile.as_dtype("f4") == np.dtype("float32")
    assert td.tile.accumulator(bfloat16) == td.tile.accumulator("float16") == np.dtype("float32")
    assert td.tile.accumulator("float64") == np.dtype("float64")
    with pytest.raises(KernelError, match=r"V2', bytes without a meaning.*x.dtype.name"):
        td.tile.as_dtype(bfloat16.str)
    with pytest.raises(KernelError, match="got 'bfloat17'; write its name"):
        td.tile.as_dtype("bfloat17")


# -- memory --------------------------------------------------------------------------------------


def test_workspace_of_halves_has_a_bound():
    sums, pieces = 2048 * 2048 * 4, 2 * 4096 * 256 * 4
    assert td.tile.workspace(10**5, 10**5, 10**5, 2) == sums + pieces
    assert td.tile.workspace(10**5, 10**5, 10**5, 2, out_itemsize=4) == pieces
    assert td.tile.workspace(10, 20, 30, 2) == (10 * 20 + 10 * 30 + 30 * 20) * 4
    assert td.tile.workspace(10, 20, 30, 2, out_itemsize=4) == (10 * 30 + 30 * 20) * 4


# -- traffic -------------------------------------------------------------------------------------


@given(m=EXTENTS, n=EXTENTS, k=EXTENTS, tile=TILES, itemsize=st.sampled_from([2, 4, 8]))
def test_traffic_is_the_sum_over_the_real_tiles(m, n, k, tile, itemsize):
    tm, tn, tk = tile
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
    assert t.loaded == a + b
    assert t.total == a + b + c
    assert t.intensity == t.flops / (a + b)
    assert t.intensity <= t.tile_intensity * (1 + 1e-12)


@given(tile=TILES, times=st.tuples(EXTENTS, EXTENTS, EXTENTS))
def test_intensity_of_a_tile_does_not_depend_on_the_product_around_it(tile, times):
    alone = td.tile.traffic(*tile, tile=tile, itemsize=4)
    within = td.tile.traffic(*(t * x for t, x in zip(tile, times, strict=True)), tile, 4)
    assert within.tile_intensity == alone.tile_intensity == pytest.approx(alone.intensity)
    assert within.intensity == pytest.approx(within.tile_intensity)


# -- what is refused -----------------------------------------------------------------------------

X = np.zeros((4, 6), np.float32)
Y = np.zeros((6, 5), np.float32)
FROZEN = np.zeros((4, 5), np.float32)
FROZEN.flags.writeable = False
BOTH = np.zeros((4, 11), np.float32)

REFUSED = {
    "inner extents": ((X, X), {}, r"4x6 @ 4x6: 6 against 4"),
    "mixed types": ((X, Y.astype("f8")), {}, "got float32 and float64"),
    "a list": (([[1.0]], Y), {}, "got list; convert it with numpy.asarray"),
    "unknown": ((X, Y), {"kernel": "fast"}, "no kernel 'fast'; there are loops, tiled"),
    "GPU kernel": ((X, Y), {"kernel": "smem_tiled"}, "takes cupy arrays, got numpy; .* blas"),
    "long loops": ((np.zeros((300, 300)),) * 2, {"kernel": "loops"}, "16777216 .* got 27000000"),
    "out's shape": ((X, Y), {"out": X}, r"float32 \(4, 5\), got float32 \(4, 6\)"),
    "out frozen": ((X, Y), {"out": FROZEN}, "read-only"),
    "complex": ((X.astype(complex), Y.astype(complex)), {}, r"complex128; multiply the \.real"),
    "no such tile": ((X, Y), {"tile": 4}, "'blas' has no tile to choose, got tile=4"),
    "out within a": ((BOTH[:, :6], Y), {"out": BOTH[:, 5:10]}, "must not overlap"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_rule_and_a_way_out(case):
    arguments, keywords, rule = REFUSED[case]
    with pytest.raises(KernelError, match=rule):
        td.tile.matmul(*arguments, **keywords)


# -- the table -----------------------------------------------------------------------------------


def test_table_lists_every_kernel_and_why_one_cannot_run(monkeypatch):
    monkeypatch.setattr(table, "probe", lambda: backend.Backend(False, "no GPU <here>"))
    on_gpus = ["smem_tiled", "sgemm_warptiled", "mma_multistage", "wgmma_ws_persistent", "cublas"]
    assert list(td.tile.kernels) == ["loops", "tiled", "blas", *on_gpus]
    assert [k.available for k in td.tile.kernels.values()] == [True] * 3 + [False] * 5
    assert td.tile.kernels["cublas"].why_not == "no GPU <here>"
    assert td.tile.kernels["blas"].why_not == ""
    assert repr(td.tile.kernels).count("unavailable") == 5
    assert f"{', '.join(on_gpus)}: no GPU <here>" in repr(td.tile.kernels)
    assert "no GPU &lt;here&gt;" in td.tile.kernels._repr_html_()
    assert "fast" not in td.tile.kernels
    assert len(td.tile.kernels) == 8
    with pytest.raises(KernelError, match="'cublas' cannot run here: no GPU <here>"):
        table.find("blas", "cupy")


def test_without_nvrtc_only_our_own_cuda_kernels_are_missing(monkeypatch):
    monkeypatch.setattr(table, "probe", lambda: backend.Backend(True, "", nvrtc_reason="no NVRTC"))
    assert td.tile.kernels["cublas"].available
    assert td.tile.kernels["smem_tiled"].why_not == "no NVRTC"
    assert table.find("blas", "cupy").name == "cublas"


def gpus(*capabilities):
    """A machine with these GPUs."""
    names = {"7.5": "T4", "8.0": "A100", "8.9": "L4", "9.0": "H100", "10.0": "B200"}
    devices = (backend.GpuInfo(i, names[c], c, 10**9) for i, c in enumerate(capabilities))
    return backend.Backend(True, "", devices=tuple(devices))


NEEDS = "needs a GPU of compute capability "
NEW, HOPPER = "mma_multistage", "wgmma_ws_persistent"


@pytest.mark.parametrize(
    ("kernel", "capabilities", "why_not"),
    [
        *((NEW, at, "") for at in (("8.0",), ("8.9",), ("10.0",), ("7.5", "8.0"))),
        (NEW, ("7.5",), NEEDS + "8.0 (A100) or more, and there is T4 (7.5)"),
        *((HOPPER, at, "") for at in (("9.0",), ("8.0", "9.0"))),
        (HOPPER, ("8.9", "10.0"), NEEDS + "9.0 (H100, H200), and there is L4 (8.9), B200 (10.0)"),
        *((name, ("7.5",), "") for name in ("smem_tiled", "cublas")),
    ],
)
def test_a_kernel_says_which_gpus_it_needs(monkeypatch, kernel, capabilities, why_not):
    monkeypatch.setattr(table, "probe", lambda: gpus(*capabilities))
    assert td.tile.kernels[kernel].why_not == why_not
    assert td.tile.kernels[kernel].available == (not why_not)
    if why_not:
        with pytest.raises(KernelError, match=f"'{kernel}' cannot run here: needs a GPU"):
            table.find(kernel, "cupy")


def test_of_several_gpus_the_one_that_holds_the_operands_decides(monkeypatch):
    monkeypatch.setattr(backend, "probe", lambda: gpus("7.5", "9.0"))
    on_t4, on_h100 = (
        SimpleNamespace(device=SimpleNamespace(id=i), shape=(4, 4), ndim=2) for i in (0, 1)
    )
    hopper = table.lookup(HOPPER)
    product._check_device(on_h100, on_h100, hopper)
    with pytest.raises(KernelError, match=r"cannot run where a is: needs .* there is T4 \(7.5\)"):
        product._check_device(on_t4, on_t4, hopper)


def test_float32_is_rounded_to_tf32_only_for_those_who_ask():
    def exact(*_):
        """The kernel's own."""

    def rounding(*_):
        """The one that rounds."""

    both = replace(table.lookup("cublas"), run=exact, tf32=rounding)
    assert product._run_of(X, Y, both, None) is exact
    assert product._run_of(X, Y, both, "tf32") is rounding
    only = replace(both, name="mma", dtypes=("float16",))
    assert product._run_of(X, Y, only, "tf32") is rounding
    assert product._run_of(X.astype("f2"), Y.astype("f2"), only, None) is exact
    with pytest.raises(KernelError, match=r"23 bits of mantissa 10 remain; .*precision='tf32'"):
        product._run_of(X, Y, only, None)
    with pytest.raises(KernelError, match="takes float16, got float64; cast"):
        product._run_of(X.astype("f8"), Y.astype("f8"), only, None)
    with pytest.raises(KernelError, match="rounds float32 operands, got float64"):
        product._run_of(X.astype("f8"), Y.astype("f8"), both, "tf32")


# -- on a GPU ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cp():
    if not td.tile.probe().usable:
        pytest.skip(f"no usable GPU: {td.tile.probe().reason}")
    return td.tile.namespace("cupy")


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["smem_tiled", "cublas"])
def test_gpu_kernels_refuse_what_they_do_not_take(cp, kernel):
    a = cp.zeros((4, 4), cp.int32)
    with pytest.raises(KernelError, match="got int32"):
        td.tile.matmul(a, a, kernel=kernel)
    with pytest.raises(KernelError, match="takes numpy arrays, got cupy"):
        td.tile.matmul(a.astype("f4"), a.astype("f4"), kernel="tiled")
    assert td.tile.kernels[kernel].available
