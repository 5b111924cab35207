"""The products of one device: every kernel against float64, and the bytes a tile level moves.

Holds `tiledask.tile.checks`, `tiledask.tile.kernel`, `tiledask.tile.levels` and
`tiledask.tile.product`.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.allocated import allocated

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile import backend, checks, numpy_kernels, table
from tiledask.tile.kernel import unsuited

EXTENTS = st.integers(1, 9)
TILES = st.tuples(EXTENTS, EXTENTS, EXTENTS)
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 0, "float32": 0, "float64": 0}
HALVES = ["float16", "bfloat16"]


def reference(a, b):
    """The definition, in Python's floats."""
    return np.array(
        [[sum(x * y for x, y in zip(r, c, strict=True)) for c in b.T.tolist()] for r in a.tolist()]
    )


def operands(m, n, k, dtype="float64", order="CC", seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    dtype = td.tile.as_dtype(dtype)
    return a.astype(dtype, order=order[0]), b.astype(dtype, order=order[1])


def assert_close(c, a, b, added=0.0):
    """Within the bound for k products and sums in c's type (halves are summed in float32)."""
    c, a, b = (td.tile.to_numpy(x) for x in (c, a, b))
    dtype, wide = c.dtype.name, td.tile.accumulator(c.dtype).name
    a, b, c = a.astype("f8"), b.astype("f8"), c.astype("f8")
    exact, scale = a @ b + added, abs(a) @ abs(b) + abs(added)
    assert not np.isnan(c).any()
    error = (a.shape[1] + 3) * EPS[wide] * scale + EPS[dtype] * abs(exact)
    assert (abs(c - exact) <= error + SMALLEST[dtype]).all()


# -- the kernels ---------------------------------------------------------------------------------

NUMPY_CASES = [(n, d) for n in ("loops", "tiled", "blas") for d in td.tile.kernels[n].dtypes]


@pytest.mark.parametrize(("kernel", "dtype"), NUMPY_CASES)
@pytest.mark.parametrize("order", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 1), (5, 1, 3), (17, 9, 33)])
def test_numpy_kernels_agree_with_float64(kernel, dtype, order, shape):
    a, b = operands(*shape, dtype, order)
    tile = {"tile": (4, 5, 6)} if kernel == "tiled" else {}
    c = td.tile.matmul(a, b, kernel=kernel, **tile)
    assert c.dtype == td.tile.as_dtype(dtype)
    assert c.shape == shape[:2]
    assert_close(c, a, b)


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "dtype"), NUMPY_CASES)
@pytest.mark.parametrize("order", "CF")
def test_out_is_overwritten_and_beta_adds(kernel, dtype, order):
    a, b = operands(13, 11, 6, dtype)
    dtype = td.tile.as_dtype(dtype)
    out = np.full((13, 11), np.nan, dtype, order=order)
    assert td.tile.matmul(a, b, kernel=kernel, out=out) is out
    assert_close(out, a, b)
    held = np.ones((13, 11), dtype, order=order)
    assert td.tile.matmul(a, b, kernel=kernel, out=held, beta=1) is held
    assert_close(held, a, b, added=1.0)


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
        assert_close(out[::2, ::4], a[::2, ::-1], b[::-1, ::2])
        assert np.isnan(out[1::2]).all()


@pytest.mark.parametrize("kernel", ["loops", "tiled", "blas"])
@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_summed_in_float32_and_rounded_once(kernel, dtype):
    dtype = td.tile.as_dtype(dtype)
    a, b = np.ones((1, 4096), dtype), np.ones((4096, 1), dtype)
    tile = {"tile": 64} if kernel == "tiled" else {}
    # summed in halves this would stop where 1 is half the distance to the next number: at 2048
    # in float16, at 256 in bfloat16
    assert td.tile.matmul(a, b, kernel=kernel, **tile)[0, 0] == 4096


@pytest.mark.parametrize("kernel", ["loops", "tiled", "blas"])
@pytest.mark.parametrize("dtype", HALVES)
def test_halves_added_up_in_float32_are_never_rounded(kernel, dtype):
    half = td.tile.as_dtype(dtype)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-50, 51, shape).astype(half) for shape in ((17, 60), (60, 9)))
    out = np.full((17, 18), np.nan, np.float32)[:, ::2]
    for p in range(0, 60, 20):  # panels of one product
        td.tile.matmul(a[:, p : p + 20], b[p : p + 20], kernel, out=out, beta=float(p > 0))
    exact = a.astype("f8") @ b.astype("f8")
    np.testing.assert_array_equal(out, exact)
    assert (exact != exact.astype(half).astype("f8")).any(), "or a rounded sum would pass too"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("out_dtype", ["half", "float32"])
@pytest.mark.parametrize("order", ["CC", "FF", "CF"])
def test_halves_go_in_piece_by_piece(monkeypatch, dtype, out_dtype, order):
    """Ragged pieces in all three directions, and what is held is added once."""
    monkeypatch.setattr(numpy_kernels, "half_tile", lambda out_itemsize: (4, 3, 5))
    half = td.tile.as_dtype(dtype)
    rng = np.random.default_rng(1)
    a = rng.integers(-2, 3, (9, 13)).astype(half, order=order[0])
    b = rng.integers(-2, 3, (13, 7)).astype(half, order=order[1])
    exact = a.astype("f8") @ b.astype("f8")
    for accumulate in (False, True):
        out = np.full((9, 7), 5 if accumulate else np.nan, np.float32)
        out = out.astype(half) if out_dtype == "half" else out
        td.tile.matmul(a, b, out=out, beta=float(accumulate))
        np.testing.assert_array_equal(out.astype("f8"), exact + 5 * accumulate)


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


def test_default_tiles_are_those_of_the_table():
    a, b = operands(3, 3, 3)
    assert td.tile.count_traffic(a, b)[1].tile == td.tile.kernels["tiled"].tile == (512,) * 3


# -- memory --------------------------------------------------------------------------------------

MEMORY_CASES = [
    ("blas", None, "float32", "float32", False),
    ("blas", None, "float32", "float32", True),
    ("blas", None, "float64", "float64", True),
    ("blas", None, "float16", "float16", False),
    ("blas", None, "bfloat16", "bfloat16", True),
    ("blas", None, "float16", "float32", True),
    ("blas", None, "bfloat16", "float32", False),
    ("tiled", 64, "float64", "float64", False),
    ("tiled", (1100, 64, 64), "float64", "float64", True),
    ("tiled", (96, 32, 200), "float32", "float32", True),
    ("tiled", (96, 32, 200), "float16", "float16", False),
    ("tiled", (96, 32, 200), "bfloat16", "float32", True),
    ("tiled", 5000, "float32", "float32", False),
]


@pytest.mark.long
def test_workspace_is_what_numpy_really_allocates():
    cases = [(*case[:4], 1.0, float(case[4]), None, None, False) for case in MEMORY_CASES]
    peaks = allocated((1100, 150, 250), cases)
    for case, measured in zip(MEMORY_CASES, peaks, strict=True):
        kernel, tile, dtype, out_dtype, accumulate = case
        size, out_size = (td.tile.as_dtype(x).itemsize for x in (dtype, out_dtype))
        predicted = td.tile.workspace(1100, 150, 250, size, kernel, tile, accumulate, out_size)
        # beside the arrays there are Python's own objects
        assert predicted <= measured <= predicted + 6_000, case


def test_workspace_of_halves_has_a_bound():
    sums, pieces = 2048 * 2048 * 4, 2 * 4096 * 256 * 4
    assert td.tile.workspace(10**5, 10**5, 10**5, 2) == sums + pieces
    assert td.tile.workspace(10**5, 10**5, 10**5, 2, out_itemsize=4) == pieces
    assert td.tile.workspace(10, 20, 30, 2) == (10 * 20 + 10 * 30 + 30 * 20) * 4
    assert td.tile.workspace(10, 20, 30, 2, out_itemsize=4) == (10 * 30 + 30 * 20) * 4


def test_workspace_answers_for_kernels_this_machine_lacks():
    assert td.tile.workspace(64, 64, 64, 4, kernel="smem_tiled") == 0
    assert td.tile.workspace(64, 64, 64, 4, kernel="cublas", accumulate=True) == 0
    with pytest.raises(KernelError, match="no kernel 'fast'"):
        td.tile.workspace(64, 64, 64, 4, kernel="fast")


# -- traffic -------------------------------------------------------------------------------------


@pytest.mark.long
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


@pytest.mark.long
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


def test_a_wider_result_is_counted_in_its_own_bytes():
    a, b = operands(5, 7, 3, "bfloat16")
    for accumulate in (False, True):
        out = np.zeros((5, 7), np.float32)
        counted = td.tile.count_traffic(a, b, (2, 4, 2), out, beta=float(accumulate))[1]
        assert counted == td.tile.traffic(5, 7, 3, (2, 4, 2), 2, accumulate, out_itemsize=4)
        assert counted.c == out.nbytes


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

BFLOAT16 = td.tile.as_dtype("bfloat16")
X = np.zeros((4, 6), np.float32)
Y = np.zeros((6, 5), np.float32)
FROZEN = np.zeros((4, 5), np.float32)
FROZEN.flags.writeable = False
BOTH = np.zeros((4, 11), np.float32)

REFUSED = {
    "inner extents": ((X, X), {}, r"4x6 @ 4x6: 6 against 4"),
    "dimensions": ((X[0], Y), {}, "2 dimensions, or 3 with a batch in front, got 1 and 2"),
    "stack": ((X[None, None], Y), {}, "2 dimensions, or 3 .* got 4 and 2"),
    "empty": ((X[:0], Y), {}, "1 or more, got 0x6 @ 6x5"),
    "empty inside": ((X[:, :0], Y[:0]), {}, "1 or more, got 4x0 @ 0x5"),
    "mixed types": ((X, Y.astype("f8")), {}, "got float32 and float64"),
    "integers": ((X.astype(int), Y.astype(int)), {}, "bfloat16, float32, float64, got int64"),
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
    "halves' out": (
        (X.astype("f2"), Y.astype("f2")),
        {"out": np.zeros((4, 5))},
        r"out must be float16 or float32 \(4, 5\), got float64 .*empty\(\(4, 5\), 'float32'\)",
    ),
    "mixed halves": ((X.astype("f2"), Y.astype(BFLOAT16)), {}, "got float16 and bfloat16"),
    "out frozen": ((X, Y), {"out": FROZEN}, "read-only"),
    "out within a": ((BOTH[:, :6], Y), {"out": BOTH[:, 5:10]}, "must not overlap"),
    "out within b": ((np.zeros((6, 6), np.float32), Y), {"out": Y}, "must not overlap"),
    "out a list": ((X, Y), {"out": [[0.0]]}, "got list"),
    "nothing to add to": ((X, Y), {"beta": 1.0}, "give out= an array"),
}


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
    on_gpus = ["smem_tiled", "sgemm_warptiled", "mma_multistage", "wgmma_ws_persistent", "cublas"]
    assert list(td.tile.kernels) == ["loops", "tiled", "blas", *on_gpus]
    assert [k.available for k in td.tile.kernels.values()] == [True] * 3 + [False] * 5
    assert td.tile.kernels["cublas"].why_not == "no GPU <here>"
    assert td.tile.kernels["blas"].why_not == ""
    assert "smem_tiled           cupy   unavailable" in repr(td.tile.kernels)
    assert repr(td.tile.kernels).endswith(f"\n{', '.join(on_gpus)}: no GPU <here>")
    assert "no: no GPU &lt;here&gt;" in td.tile.kernels._repr_html_()
    assert "fast" not in td.tile.kernels
    assert len(td.tile.kernels) == 8
    with pytest.raises(KernelError, match="'cublas' cannot run here: no GPU <here>"):
        table.find("blas", "cupy")


def test_without_nvrtc_only_our_own_cuda_kernels_are_missing(monkeypatch):
    monkeypatch.setattr(table, "probe", lambda: backend.Backend(True, "", nvrtc_reason="no NVRTC"))
    assert td.tile.kernels["cublas"].available
    assert td.tile.kernels["smem_tiled"].why_not == "no NVRTC"
    assert table.find("blas", "cupy").name == "cublas"


def test_smem_tiled_is_for_float32_and_says_what_takes_halves():
    with pytest.raises(KernelError, match=r"takes float32, got bfloat16; .* or use kernel='blas'"):
        checks.run_of(X.astype(BFLOAT16), Y.astype(BFLOAT16), table.lookup("smem_tiled"), None)


def gpus(*capabilities):
    """A machine with these GPUs."""
    names = {"7.5": "T4", "8.0": "A100", "8.9": "L4", "9.0": "H100", "10.0": "B200"}
    devices = (backend.GpuInfo(i, names[c], c, 10**9) for i, c in enumerate(capabilities))
    return backend.Backend(True, "", devices=tuple(devices))


AMPERE = replace(table.lookup("smem_tiled"), name="ampere", capability=(8, 0))
HOPPER = replace(table.lookup("smem_tiled"), name="hopper", capability=(9, 0), exactly=True)


@pytest.mark.parametrize(
    ("kernel", "capabilities", "why_not"),
    [
        (AMPERE, ("8.0",), ""),
        (AMPERE, ("8.9",), ""),
        (AMPERE, ("10.0",), ""),
        (AMPERE, ("7.5", "8.0"), ""),
        (
            AMPERE,
            ("7.5",),
            "needs a GPU of compute capability 8.0 (A100) or more, this one (T4) has 7.5",
        ),
        (HOPPER, ("9.0",), ""),
        (HOPPER, ("8.0", "9.0"), ""),
        (
            HOPPER,
            ("7.5",),
            "needs a GPU of compute capability 9.0 (H100, H200), this one (T4) has 7.5",
        ),
        (
            HOPPER,
            ("8.9", "10.0"),
            "needs a GPU of compute capability 9.0 (H100, H200), these are L4 (8.9), B200 (10.0)",
        ),
    ],
)
def test_a_kernel_says_which_gpus_it_needs(monkeypatch, kernel, capabilities, why_not):
    machine = gpus(*capabilities)
    assert unsuited(kernel, machine.devices) == why_not
    monkeypatch.setattr(table, "probe", lambda: machine)
    monkeypatch.setitem(table._KERNELS, kernel.name, kernel)
    info = td.tile.kernels[kernel.name]
    assert (info.available, info.why_not) == (not why_not, why_not)
    if why_not:
        with pytest.raises(KernelError, match=f"'{kernel.name}' cannot run here: needs a GPU"):
            table.find(kernel.name, "cupy")


def test_of_several_gpus_the_one_that_holds_the_operands_decides(monkeypatch):
    monkeypatch.setattr(backend, "probe", lambda: gpus("7.5", "9.0"))
    on_t4, on_h100 = (
        SimpleNamespace(device=SimpleNamespace(id=i), shape=(4, 4), ndim=2) for i in (0, 1)
    )
    checks.check_device(on_h100, on_h100, HOPPER)
    with pytest.raises(
        KernelError, match=r"cannot run where a is: needs .* this one \(T4\) has 7.5"
    ):
        checks.check_device(on_t4, on_t4, HOPPER)


def test_the_table_shows_tiles_and_gpus(monkeypatch):
    tiles = ((128, 256, 64), (128, 128, 64))
    kernel = replace(HOPPER, tile=tiles[0], tiles=tiles, tf32=HOPPER.run, dtypes=("float16",))
    monkeypatch.setitem(table._KERNELS, "hopper", kernel)
    info = td.tile.kernels["hopper"]
    assert (info.tile, info.tiles, info.tf32) == (tiles[0], tiles, True)
    assert info.needs == "compute capability 9.0 (H100, H200)"
    page = td.tile.kernels._repr_html_()
    for cell in (
        "128x256x64, 128x128x64",
        "float16, float32 as tf32",
        "512x512x512, or any",
        info.needs,
        "any GPU",
        "any CPU",
        "none to choose",
    ):
        assert f"<td>{cell}</td>" in page
    with pytest.raises(
        KernelError, match=r"\(128, 256, 64\) or \(128, 128, 64\), got \(64, 64, 64\)"
    ):
        td.tile.workspace(64, 64, 64, 2, kernel="hopper", tile=64)


def test_float32_is_rounded_to_tf32_only_for_those_who_ask():
    def exact(*_):
        """The kernel's own."""

    def rounding(*_):
        """The one that rounds."""

    both = replace(table.lookup("cublas"), run=exact, tf32=rounding)
    assert checks.run_of(X, Y, both, None) is exact
    assert checks.run_of(X, Y, both, "tf32") is rounding
    only = replace(both, name="mma", dtypes=("float16",))
    assert checks.run_of(X, Y, only, "tf32") is rounding
    assert checks.run_of(X.astype("f2"), Y.astype("f2"), only, None) is exact
    with pytest.raises(KernelError, match=r"23 bits of mantissa 10 remain; .*precision='tf32'"):
        checks.run_of(X, Y, only, None)
    with pytest.raises(KernelError, match="takes float16, got float64; cast"):
        checks.run_of(X.astype("f8"), Y.astype("f8"), only, None)
    with pytest.raises(KernelError, match="rounds float32 operands, got float64"):
        checks.run_of(X.astype("f8"), Y.astype("f8"), both, "tf32")


def test_a_batched_kernel_gets_the_batch_whole(monkeypatch):
    seen = []

    def run(a, b, out, tile, epilogue):
        seen.append(
            (a.shape, b.shape, a.strides[0], b.strides[0], epilogue.preactivation is before)
        )
        out[...] = a @ b

    row = table.Kernel("whole", "numpy", ("float32",), "", run, batched=True)
    monkeypatch.setitem(table._KERNELS, "whole", row)
    a, b = operands(4, 5, 6, "float32")
    stack, before = np.stack([a, a, a]), np.zeros((3, 4, 5), "f4")
    c = td.tile.matmul(stack, b, "whole", activation="gelu", preactivation=before)
    assert seen == [((3, 4, 6), (3, 6, 5), 4 * 24, 0, True)]
    assert c.shape == (3, 4, 5)
    td.tile.matmul(a, b, "whole")
    assert seen[1][:2] == ((4, 6), (6, 5))


@pytest.mark.parametrize("tile", [8, 24, (32, 32, 16)])
def test_smem_tiled_refuses_tiles_it_is_not_built_for(tile):
    with pytest.raises(
        KernelError, match=r"built for tiles of \(16, 16, 16\) or \(32, 32, 32\), got"
    ):
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
        td.tile.matmul(a, b, kernel=kernel, tile=tile, out=out, beta=1.0)
        assert_close(out, a, b, added=1.0)
        out[...] = cp.nan
        assert bool(cp.isnan(around).all()), "written outside of out"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*HALVES, "float32", "float64"])
@pytest.mark.parametrize("out_dtype", ["own", "wide"])
@pytest.mark.parametrize("order", ["CC", "CF", "FC", "FF"])
def test_cublas_adds_in_place(cp, dtype, out_dtype, order):
    a, b = (cp.asarray(x, order=o) for x, o in zip(operands(64, 48, 80, dtype), order, strict=True))
    a, b = a[1:60, 3:40], b[3:40, 2:33]
    wide = a.dtype if out_dtype == "own" else td.tile.accumulator(dtype)
    for out_order in "CF":
        out = cp.ones((66, 40), wide, order=out_order)[3:62, 4:35]
        td.tile.matmul(a, b, out=out, beta=1.0)
        assert_close(out, a, b, added=1.0)
        td.tile.matmul(a, b, out=out)
        assert_close(out, a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["smem_tiled", "cublas"])
def test_gpu_kernels_refuse_what_they_do_not_take(cp, kernel):
    a = cp.zeros((4, 4), cp.int32)
    with pytest.raises(KernelError, match="got int32"):
        td.tile.matmul(a, a, kernel=kernel)
    with pytest.raises(KernelError, match="takes numpy arrays, got cupy"):
        td.tile.matmul(a.astype("f4"), a.astype("f4"), kernel="tiled")
    assert td.tile.kernels[kernel].available
