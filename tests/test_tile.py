"""The products of one device: every kernel against float64, and the bytes a tile level moves."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile import backend, table

EXTENTS = st.integers(1, 9)
TILES = st.tuples(EXTENTS, EXTENTS, EXTENTS)
EPS = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}


def reference(a, b):
    """The definition, in Python's floats."""
    return np.array([[sum(x * y for x, y in zip(r, c, strict=True)) for c in b.T.tolist()]
                     for r in a.tolist()])  # fmt: skip


def operands(m, n, k, dtype="float64", order="CC", seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    return a.astype(dtype, order=order[0]), b.astype(dtype, order=order[1])


def assert_close(c, a, b, added=0.0):
    """Within the bound for k products and sums in c's type (float16 is summed in float32)."""
    c, a, b = (td.tile.to_numpy(x) for x in (c, a, b))
    dtype, wide = str(c.dtype), "float32" if c.dtype == "float16" else str(c.dtype)
    a, b = a.astype("f8"), b.astype("f8")
    exact, scale = a @ b + added, abs(a) @ abs(b) + abs(added)
    assert not np.isnan(c).any()
    error = (a.shape[1] + 3) * EPS[wide] * scale + EPS[dtype] * abs(exact)
    assert (abs(c - exact) <= error + (2.0**-24 if dtype == "float16" else 0)).all()


# -- the kernels ---------------------------------------------------------------------------------

NUMPY_CASES = [(n, d) for n in ("loops", "tiled", "blas") for d in td.tile.kernels[n].dtypes]


@pytest.mark.parametrize(("kernel", "dtype"), NUMPY_CASES)
@pytest.mark.parametrize("order", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 1), (5, 1, 3), (17, 9, 33)])
def test_numpy_kernels_agree_with_float64(kernel, dtype, order, shape):
    a, b = operands(*shape, dtype, order)
    tile = {"tile": (4, 5, 6)} if kernel == "tiled" else {}
    c = td.tile.matmul(a, b, kernel=kernel, **tile)
    assert c.dtype == dtype
    assert c.shape == shape[:2]
    assert_close(c, a, b)


@pytest.mark.parametrize(("kernel", "dtype"), NUMPY_CASES)
@pytest.mark.parametrize("order", "CF")
def test_out_is_overwritten_and_accumulate_adds(kernel, dtype, order):
    a, b = operands(13, 11, 6, dtype)
    out = np.full((13, 11), np.nan, dtype, order=order)
    assert td.tile.matmul(a, b, kernel=kernel, out=out) is out
    assert_close(out, a, b)
    held = np.ones((13, 11), dtype, order=order)
    assert td.tile.matmul(a, b, kernel=kernel, out=held, accumulate=True) is held
    assert_close(held, a, b, added=1.0)


def test_accumulation_goes_on_beyond_one_panel():
    rows = 2 * 512 + 3
    a, b = operands(rows, 3, 2)
    out = np.arange(rows * 3.0).reshape(rows, 3)
    td.tile.matmul(a, b, out=out, accumulate=True)
    np.testing.assert_allclose(out, np.arange(rows * 3.0).reshape(rows, 3) + a @ b)


@given(m=EXTENTS, n=EXTENTS, k=EXTENTS, tile=TILES, accumulate=st.booleans())
@settings(max_examples=150, deadline=None)
def test_tiled_equals_the_definition_and_counts_what_the_formula_says(m, n, k, tile, accumulate):
    rng = np.random.default_rng(m * 100 + n * 10 + k)
    a, b = rng.integers(-9, 9, (m, k)).astype("f4"), rng.integers(-9, 9, (k, n)).astype("f4")
    out = np.full((m, n), 3.0, np.float32)
    c, counted = td.tile.count_traffic(a, b, tile=tile, out=out, accumulate=accumulate)
    np.testing.assert_array_equal(c, reference(a, b) + 3 * accumulate)
    assert counted == td.tile.traffic(m, n, k, tile, 4, accumulate=accumulate)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices_and_reversed_operands_need_no_copy(dtype):
    a, b = operands(20, 18, 22, dtype)
    for kernel in ("tiled", "blas", "loops"):
        out = np.full((20, 36), np.nan, dtype)
        td.tile.matmul(a[::2, ::-1], b[::-1, ::2], kernel=kernel, out=out[::2, ::4])
        assert_close(out[::2, ::4], a[::2, ::-1], b[::-1, ::2])
        assert np.isnan(out[1::2]).all()


def test_float16_is_summed_in_float32_and_rounded_once():
    a, b = np.ones((1, 4096), np.float16), np.ones((4096, 1), np.float16)
    # summed in float16 this would stop at 2048, where 1 is half the distance to the next number
    assert td.tile.matmul(a, b, kernel="tiled", tile=64)[0, 0] == 4096
    assert td.tile.matmul(a, b, kernel="loops")[0, 0] == 4096


def test_default_tiles_are_those_of_the_table():
    a, b = operands(3, 3, 3)
    assert td.tile.count_traffic(a, b)[1].tile == td.tile.kernels["tiled"].tile == (512,) * 3


# -- memory --------------------------------------------------------------------------------------

MEMORY_CASES = [
    ("blas", None, "float32", False),
    ("blas", None, "float32", True),
    ("tiled", 64, "float64", False),
    ("tiled", (1100, 64, 64), "float64", True),
    ("tiled", (96, 32, 200), "float32", True),
    ("tiled", (96, 32, 200), "float16", False),
    ("tiled", 5000, "float32", False),
]


# a process of its own: tracemalloc counts what every thread allocates, a cluster's too
MEASURE = """
import json, sys, tracemalloc
import numpy as np
import tiledask as td
peaks = []
for kernel, tile, dtype, accumulate in json.load(sys.stdin):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((1100, 400)).astype(dtype)
    b = rng.standard_normal((400, 300)).astype(dtype)
    out = np.zeros((1100, 300), dtype)
    tile = tuple(tile) if isinstance(tile, list) else tile
    def run():
        td.tile.matmul(a, b, kernel, tile, out, accumulate)
    run()  # what is imported on the way is not the kernel's
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    run()
    peaks.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
print(json.dumps(peaks))
"""


def test_workspace_is_what_numpy_really_allocates():
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], input=json.dumps(MEMORY_CASES),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    for case, measured in zip(MEMORY_CASES, json.loads(done.stdout), strict=True):
        kernel, tile, dtype, accumulate = case
        size = np.dtype(dtype).itemsize
        predicted = td.tile.workspace(1100, 300, 400, size, kernel, tile, accumulate)
        # beside the arrays there are Python's own objects
        assert predicted <= measured <= predicted + 5_000, case


def test_workspace_answers_for_kernels_this_machine_lacks():
    assert td.tile.workspace(64, 64, 64, 4, kernel="smem_tiled") == 0
    assert td.tile.workspace(64, 64, 64, 4, kernel="cublas", accumulate=True) == 64 * 64 * 4
    with pytest.raises(KernelError, match="no kernel 'fast'"):
        td.tile.workspace(64, 64, 64, 4, kernel="fast")


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


def test_square_tiles_of_four_byte_elements_do_a_quarter_flop_per_byte_and_extent():
    for extent in (1, 2, 4, 8, 16, 32):
        assert td.tile.traffic(64, 64, 64, extent, 4).tile_intensity == extent / 4


def test_accumulating_loads_c_too():
    plain, added = (td.tile.traffic(5, 7, 3, 2, 4, accumulate=x) for x in (False, True))
    assert added.total - plain.total == added.c_loaded == plain.c == 5 * 7 * 4
    assert added.loaded == plain.loaded
    assert repr(plain).startswith("TileTraffic(")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((0, 1, 1, 1, 4), "m must be a whole number of 1 or more, got 0"),
        ((1, 1, 1.5, 1, 4), "k must be a whole number of 1 or more, got 1.5"),
        ((1, 1, 1, 1, -4), "itemsize must be .* got -4"),
        ((1, 1, 1, 0, 4), "tm must be .* got 0"),
        ((1, 1, 1, (1, 2), 4), "3 extents .* got 2"),
        ((1, 1, 1, (1, 2, True), 4), "tk must be .* got True"),
        ((1, 1, 1, "big", 4), "tm must be .* got 'big'"),
    ],
)
def test_sizes_that_are_none_are_refused(arguments, rule):
    with pytest.raises(KernelError, match=rule):
        td.tile.traffic(*arguments)


# -- what is refused -----------------------------------------------------------------------------

X = np.zeros((4, 6), np.float32)
Y = np.zeros((6, 5), np.float32)
FROZEN = np.zeros((4, 5), np.float32)
FROZEN.flags.writeable = False
BOTH = np.zeros((4, 11), np.float32)

REFUSED = {
    "inner extents": ((X, X), {}, r"4x6 @ 4x6: 6 against 4"),
    "dimensions": ((X[0], Y), {}, "2 dimensions, got 1 and 2"),
    "stack": ((X[None], Y), {}, "2 dimensions, got 3 and 2"),
    "empty": ((X[:0], Y), {}, "1 or more, got 0x6 @ 6x5"),
    "empty inside": ((X[:, :0], Y[:0]), {}, "1 or more, got 4x0 @ 0x5"),
    "mixed types": ((X, Y.astype("f8")), {}, "got float32 and float64"),
    "integers": ((X.astype(int), Y.astype(int)), {}, "takes float32, float64, got int64"),
    "half by blas": ((X.astype("f2"), Y.astype("f2")), {}, "got float16; .* kernel='tiled'"),
    "foreign bytes": ((X.astype(">f4"), Y.astype(">f4")), {}, "got >f4"),
    "a list": (([[1.0]], Y), {}, "got list; convert it with numpy.asarray"),
    "unknown": ((X, Y), {"kernel": "fast"}, "no kernel 'fast'; there are loops, tiled"),
    "GPU kernel": ((X, Y), {"kernel": "smem_tiled"}, "takes cupy arrays, got numpy; .* blas"),
    "GPU library": ((X, Y), {"kernel": "cublas"}, r"takes cupy arrays, got numpy.*cupy.asarray"),
    "tile of a library": ((X, Y), {"tile": 8}, "'blas' has no tile to choose, got tile=8"),
    "tile": ((X, Y), {"kernel": "tiled", "tile": -8}, "tm must be .* got -8"),
    "long loops": ((np.zeros((300, 300)),) * 2, {"kernel": "loops"}, "16777216 .* got 27000000"),
    "out's shape": ((X, Y), {"out": X}, r"float32 \(4, 5\), got float32 \(4, 6\)"),
    "out's type": ((X, Y), {"out": np.zeros((4, 5))}, r"float32 \(4, 5\), got float64 \(4, 5\)"),
    "out frozen": ((X, Y), {"out": FROZEN}, "read-only"),
    "out within a": ((BOTH[:, :6], Y), {"out": BOTH[:, 5:10]}, "must not overlap"),
    "out within b": ((np.zeros((6, 6), np.float32), Y), {"out": Y}, "must not overlap"),
    "out a list": ((X, Y), {"out": [[0.0]]}, "got list"),
    "nothing to add to": ((X, Y), {"accumulate": True}, "give out= an array"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_rule_and_a_way_out(case):
    arguments, keywords, rule = REFUSED[case]
    with pytest.raises(KernelError, match=rule):
        td.tile.matmul(*arguments, **keywords)


def test_neighbouring_columns_of_one_array_do_not_overlap():
    a, b = operands(4, 5, 6, "float32")
    BOTH[:, :6] = a
    td.tile.matmul(BOTH[:, :6], b, out=BOTH[:, 6:])
    assert_close(BOTH[:, 6:], a, b)


# -- the table -----------------------------------------------------------------------------------


def test_table_lists_every_kernel_and_why_one_cannot_run(monkeypatch):
    monkeypatch.setattr(table, "probe", lambda: backend.Backend(False, "no GPU <here>"))
    assert list(td.tile.kernels) == ["loops", "tiled", "blas", "smem_tiled", "cublas"]
    assert [k.available for k in td.tile.kernels.values()] == [True, True, True, False, False]
    assert td.tile.kernels["cublas"].why_not == "no GPU <here>"
    assert td.tile.kernels["blas"].why_not == ""
    assert "smem_tiled  cupy   unavailable" in repr(td.tile.kernels)
    assert "no: no GPU &lt;here&gt;" in td.tile.kernels._repr_html_()
    assert "fast" not in td.tile.kernels
    assert len(td.tile.kernels) == 5
    with pytest.raises(KernelError, match="'cublas' cannot run here: no GPU <here>"):
        table.find("blas", "cupy")


def test_without_nvrtc_only_our_own_cuda_kernels_are_missing(monkeypatch):
    monkeypatch.setattr(table, "probe", lambda: backend.Backend(True, "", nvrtc_reason="no NVRTC"))
    assert td.tile.kernels["cublas"].available
    assert td.tile.kernels["smem_tiled"].why_not == "no NVRTC"
    assert table.find("blas", "cupy").name == "cublas"


@pytest.mark.parametrize("tile", [8, 24, (32, 32, 16)])
def test_smem_tiled_refuses_tiles_it_is_not_built_for(tile):
    with pytest.raises(KernelError, match="square tiles of 16 or 32, got"):
        td.tile.workspace(64, 64, 64, 4, kernel="smem_tiled", tile=tile)


def test_arrays_of_two_kinds_are_refused():
    fake = type("ndarray", (SimpleNamespace,), {"__module__": "cupy"})()
    with pytest.raises(KernelError, match="one place, got numpy and cupy"):
        td.tile.matmul(X, fake)


# -- on a GPU ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cp():
    if not td.tile.probe().usable:
        pytest.skip(f"no usable GPU: {td.tile.probe().reason}")
    return td.tile.namespace("cupy")


GPU_CASES = [("smem_tiled", 16), ("smem_tiled", 32), ("cublas", None), ("blas", None)]


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "tile"), GPU_CASES)
@pytest.mark.parametrize("order", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (32, 32, 32), (257, 129, 65), (1000, 700, 1300)])
def test_gpu_kernels_agree_with_float64(cp, kernel, tile, order, shape):
    a, b = (cp.asarray(x, order=o) for x, o in zip(operands(*shape, "float32"), order, strict=True))
    for out_order in "CF":
        around = cp.full((shape[0] + 4, shape[1] + 6), cp.nan, cp.float32, order=out_order)
        out = around[2:-2, 3:-3]
        td.tile.matmul(a, b, kernel=kernel, tile=tile, out=out)
        assert_close(out, a, b)
        out[...] = 1
        td.tile.matmul(a, b, kernel=kernel, tile=tile, out=out, accumulate=True)
        assert_close(out, a, b, added=1.0)
        out[...] = cp.nan
        assert bool(cp.isnan(around).all()), "written outside of out"


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["smem_tiled", "cublas"])
def test_gpu_kernels_refuse_what_they_do_not_take(cp, kernel):
    a = cp.zeros((4, 4), cp.float16)
    with pytest.raises(KernelError, match="got float16"):
        td.tile.matmul(a, a, kernel=kernel)
    with pytest.raises(KernelError, match="takes numpy arrays, got cupy"):
        td.tile.matmul(a.astype("f4"), a.astype("f4"), kernel="tiled")
    assert td.tile.kernels[kernel].available
