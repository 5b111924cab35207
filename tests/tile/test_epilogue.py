"""activation(alpha a @ b + beta out + bias), by every kernel, against float64.

Holds `tiledask.tile.epilogue` and `tiledask.tile.numpy_kernels`.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.allocated import allocated

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile import epilogue as module
from tiledask.tile import numpy_kernels, table

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 0, "float32": 0, "float64": 0}
HALVES = ["float16", "bfloat16"]


# -- one body for every kernel, on NumPy and CuPy ------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One call of td.tile.matmul."""

    kernel: str
    dtype: str
    shape: tuple = (9, 7, 8)
    tile: tuple | None = None
    orders: str = "CCC"
    """Of a, b, and out with the preactivation: C or F."""
    alpha: float = 1.0
    beta: float = 0.0
    bias: str | None = None
    """None, "own" type, or the "wide" one that is summed in."""
    activation: str | None = None
    preactivation: bool = False
    out: str = "own"
    """Type of out: "own" or "wide"."""
    precision: str | None = None
    seed: int = 0


def embedded(xp, values, order="C"):
    """``values`` as a view into the middle of an array of NaN: what is read or written beside it
    is seen."""
    shape = [extent + 5 for extent in values.shape[:: -1 if order == "F" else 1]]
    room = xp.asarray(np.full(shape, np.nan, values.dtype))
    room = room.T if order == "F" else room
    view = room[tuple(slice(2, 2 + extent) for extent in values.shape)]
    view[...] = xp.asarray(values)
    return room, view


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def missing(x):
    """How many NaN there are."""
    return np.isnan(td.tile.to_numpy(x).astype("f8")).sum()


def assert_within(got, exact, error):
    """Rounded once to got's type, beside an error of ``error`` where it was summed."""
    dtype = got.dtype.name
    got = td.tile.to_numpy(got).astype("f8")
    assert not np.isnan(got).any()
    excess = abs(got - exact) - error - EPS[dtype] * (abs(exact) + error) - SMALLEST[dtype]
    assert (excess <= 0).all(), f"{excess.max():.3g} too far away"


def check(xp, case):
    """Runs ``case`` and compares all that it wrote with float64."""
    rng, (m, n, k) = np.random.default_rng(case.seed), case.shape
    own, wide = td.tile.as_dtype(case.dtype), td.tile.accumulator(case.dtype)
    result = own if case.out == "own" else wide

    def drawn(shape, dtype, order="C"):
        return embedded(xp, rng.standard_normal(shape).astype(dtype), order)[1]

    a, b = drawn((m, k), own, case.orders[0]), drawn((k, n), own, case.orders[1])
    held = rng.standard_normal((m, n)) if case.beta else np.full((m, n), np.nan)
    around, out = embedded(xp, held.astype(result), case.orders[2])
    bias = None if case.bias is None else drawn((n,), own if case.bias == "own" else wide)
    before = None
    if case.preactivation:
        empty = np.full((m, n), np.nan, result)
        before_around, before = embedded(xp, empty, case.orders[2])

    x, y, c = (td.tile.to_numpy(z).astype("f8") for z in (a, b, out))
    w = np.zeros(n) if bias is None else td.tile.to_numpy(bias).astype("f8")
    scaled = case.beta * c if case.beta else np.zeros_like(c)
    exact = case.alpha * (x @ y) + scaled + w
    scale = abs(case.alpha) * (abs(x) @ abs(y)) + abs(scaled) + abs(w)
    # k products and sums (Higham, Accuracy and Stability, section 3.1), then three more
    error = (k + 8) * EPS[wide.name] * scale
    if case.precision == "tf32":  # 10 bits of each operand, cut off or rounded
        error = error + 2.01 * 2.0**-10 * scale

    done = td.tile.matmul(
        a,
        b,
        case.kernel,
        case.tile,
        out,
        alpha=case.alpha,
        beta=case.beta,
        bias=bias,
        activation=case.activation,
        preactivation=before,
        precision=case.precision,
    )
    assert done is out
    if case.preactivation:
        assert_within(before, exact, error)
        assert missing(before_around) == before_around.size - before.size
    if case.activation:
        # the slope of gelu is below 1.13; its own few operations lose digits where it ends near 0
        error, exact = 1.13 * error + 8 * EPS[wide.name] * abs(exact), gelu(exact)
    assert_within(out, exact, error)
    assert missing(around) == around.size - out.size, "written outside of out"


def endings():
    """Every combination of what may follow a product."""
    return st.fixed_dictionaries(
        {
            "orders": st.text("CF", min_size=3, max_size=3),
            "alpha": st.sampled_from([1.0, -0.5, 0.0, 3.0]),
            "beta": st.sampled_from([0.0, 0.0, 1.0, -2.0]),
            "bias": st.sampled_from([None, "own", "wide"]),
            "out": st.sampled_from(["own", "wide"]),
            "seed": st.integers(0, 10**6),
        }
        | {"end": st.sampled_from([(None, False), ("gelu", False), ("gelu", True)])}
    )


def case_of(kernel, dtype, ending, **more):
    activation, preactivation = ending["end"]
    rest = {name: value for name, value in ending.items() if name != "end"}
    return Case(kernel, dtype, activation=activation, preactivation=preactivation, **rest, **more)


NUMPY_CASES = [(n, d) for n in ("loops", "tiled", "blas") for d in td.tile.kernels[n].dtypes]
EXTENTS = st.tuples(*[st.integers(1, 9)] * 3)


@pytest.mark.parametrize(("kernel", "dtype"), NUMPY_CASES)
def test_every_ending_of_every_kernel_equals_float64(kernel, dtype):
    tiles = EXTENTS if kernel == "tiled" else st.none()

    @given(ending=endings(), shape=EXTENTS, tile=tiles)
    @settings(max_examples=40)
    def run(ending, shape, tile):
        check(np, case_of(kernel, dtype, ending, shape=shape, tile=tile))

    run()


@pytest.mark.parametrize("dtype", HALVES)
@given(ending=endings(), shape=st.tuples(*[st.integers(1, 20)] * 3))
@settings(max_examples=25)
def test_halves_are_finished_piece_by_piece(dtype, ending, shape):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_kernels, "half_tile", lambda out_itemsize: (4, 3, 5))
        check(np, case_of("blas", dtype, ending, shape=shape))


@given(ending=endings(), shape=st.tuples(*[st.integers(1, 20)] * 3))
@settings(max_examples=30)
def test_what_lies_in_memory_is_finished_piece_by_piece(ending, shape):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", {"numpy": 24})
        check(np, case_of("blas", "float32", ending, shape=shape))


@pytest.mark.parametrize(("kernel", "dtype"), NUMPY_CASES)
def test_without_out_the_result_is_new(kernel, dtype):
    a, b = (np.eye(3, dtype=td.tile.as_dtype(dtype)) for _ in "ab")
    c = td.tile.matmul(a, b, kernel, alpha=2.0, bias=a[0])
    assert c.dtype == a.dtype
    assert c.tolist() == [[3, 0, 0], [1, 2, 0], [1, 0, 2]]


# -- cuBLAS of halves, its product replaced by NumPy's -------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@given(ending=endings(), shape=st.tuples(*[st.integers(1, 9)] * 3))
@settings(max_examples=30)
def test_cublas_finishes_halves_some_rows_at_a_time(dtype, ending, shape):
    """Which is all that is not cuBLAS's: so it can be tried without a GPU."""

    def gemm(a, b, c, alpha=1.0, beta=0.0, *, tf32=False):
        added = alpha * (a.astype("f4") @ b.astype("f4"))
        c[...] = added + beta * c.astype("f4") if beta else added

    row = replace(table.lookup("cublas"), arrays="numpy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_kernels, "gemm", gemm)
        patch.setattr(numpy_kernels, "half_rows", lambda n: 4)
        patch.setitem(table.kernels, "cublas", row)
        check(np, case_of("cublas", dtype, ending, shape=shape))


# -- memory --------------------------------------------------------------------------------------

# (kernel, tile, dtype, out's type, alpha, beta, bias, activation, preactivation)
PANEL = ("tiled", (96, 32, 200))
MEMORY_CASES = {
    (1100, 150, 250): [
        ("blas", None, "float32", "float32", 1.0, 0.0, None, None, False),
        ("blas", None, "float32", "float32", 1.0, 1.0, None, None, False),
        ("blas", None, "float64", "float64", 1.0, 1.0, None, None, False),
        ("blas", None, "float16", "float16", 1.0, 0.0, None, None, False),
        ("blas", None, "bfloat16", "bfloat16", 1.0, 1.0, None, None, False),
        ("blas", None, "float16", "float32", 1.0, 1.0, None, None, False),
        ("blas", None, "bfloat16", "float32", 1.0, 0.0, None, None, False),
        ("tiled", 64, "float64", "float64", 1.0, 0.0, None, None, False),
        ("tiled", (1100, 64, 64), "float64", "float64", 1.0, 1.0, None, None, False),
        (*PANEL, "float32", "float32", 1.0, 1.0, None, None, False),
        (*PANEL, "float16", "float16", 1.0, 0.0, None, None, False),
        (*PANEL, "bfloat16", "float32", 1.0, 1.0, None, None, False),
        ("tiled", 5000, "float32", "float32", 1.0, 0.0, None, None, False),
    ],
    (1100, 300, 60): [
        ("blas", None, "float32", "float32", 2.0, 0.0, "float32", None, False),
        ("blas", None, "float32", "float32", 1.0, 1.0, None, "gelu", False),
        ("blas", None, "float64", "float64", 0.5, 3.0, "float64", "gelu", True),
        ("blas", None, "float16", "float16", 1.0, 1.0, "float16", "gelu", True),
        ("blas", None, "bfloat16", "float32", 2.0, 1.0, "float32", "gelu", True),
        ("blas", None, "bfloat16", "float32", 2.0, 1.0, "bfloat16", None, False),
        (*PANEL, "float32", "float32", 2.0, 3.0, "float32", "gelu", True),
        (*PANEL, "bfloat16", "bfloat16", 2.0, 3.0, "bfloat16", "gelu", False),
        ("tiled", 5000, "float64", "float64", 1.0, 1.0, "float64", "gelu", False),
    ],
}


@pytest.mark.parametrize("shape", MEMORY_CASES)
def test_workspace_is_what_numpy_really_allocates(shape):
    peaks = allocated(shape, MEMORY_CASES[shape])
    for case, measured in zip(MEMORY_CASES[shape], peaks, strict=True):
        kernel, tile, *types, _, beta, bias, activation, _ = case
        size, out_size = (td.tile.as_dtype(x).itemsize for x in types)
        end = {"activation": activation, "bias_itemsize": bias and td.tile.as_dtype(bias).itemsize}
        predicted = td.tile.workspace(*shape, size, kernel, tile, beta != 0, out_size, **end)
        # beside the arrays there are Python's own objects; and NumPy adds a row to others through
        # buffers, which shows where nothing else is allocated
        buffers = 8192 * max(size, 4) if bias and not activation else 0
        assert predicted <= measured <= predicted + 6_000 + buffers, case


def test_workspace_of_an_activation_has_a_bound():
    room = module.PIECE_BYTES["numpy"]
    assert td.tile.workspace(10**5, 10**5, 1, 4, activation="gelu") == room
    assert td.tile.workspace(10**5, 300, 1, 4, activation="gelu") == 109 * 300 * 4 <= room
    assert td.tile.workspace(10, 20, 30, 8, activation="gelu") == 10 * 20 * 8
    on_gpu = td.tile.workspace(8192, 8192, 1, 2, "cublas", activation="gelu", bias_itemsize=2)
    assert on_gpu == 4 * 2**24 + module.PIECE_BYTES["cupy"] + 4 * 8192
    assert td.tile.workspace(8192, 8192, 1, 2, "cublas", out_itemsize=4, bias_itemsize=4) == 0
    with pytest.raises(KernelError, match="activation must be None or gelu, got 'relu'"):
        td.tile.workspace(1, 1, 1, 4, activation="relu")


# -- what is refused -----------------------------------------------------------------------------

X, Y, Z = np.zeros((4, 6), "f4"), np.zeros((6, 5), "f4"), np.zeros((4, 5), "f4")
ROOM = np.zeros((4, 10), "f4")
HALF = {"bias": np.zeros(5)}
GELU = {"activation": "gelu"}
REFUSED = {
    "nothing to add to": ((X, Y), {"beta": 1}, r"beta=1 adds what out holds.*give out= an array"),
    "no such activation": ((X, Y), {"activation": "relu"}, "None or gelu, got 'relu'"),
    "bias too wide": ((X, Y), {"bias": np.zeros(5)}, r"bias must be float32 \(5,\), got float64"),
    "bias within out": (
        (X, Y),
        {"bias": ROOM[0, :5], "out": ROOM[:, :5]},
        "must not overlap the bias",
    ),
    "kept elsewhere": ((X, Y), {**GELU, "preactivation": X}, r"preactivation must be float32 \(4"),
    "kept in out": ((X, Y), {**GELU, "preactivation": Z, "out": Z}, "must not overlap out"),
    "a batch": ((X[None], Y), {}, "2 dimensions, got 1x4x6 @ 6x5"),
    "tf32 here": ((X, Y), {"precision": "tf32"}, "10 of the 23 .* one of mma_multistage, cublas"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_rule_and_a_way_out(case):
    arguments, keywords, rule = REFUSED[case]
    with pytest.raises(KernelError, match=rule):
        td.tile.matmul(*arguments, **keywords)


# -- on a GPU ------------------------------------------------------------------------------------

ON_GPU = [
    (name, dtype, precision)
    for name in td.tile.kernels
    if td.tile.kernels[name].arrays == "cupy"
    for dtype, precision in [
        *((d, None) for d in td.tile.kernels[name].dtypes),
        *([("float32", "tf32")] if td.tile.kernels[name].tf32 else []),
    ]
]
"""Every row of the table that takes CuPy arrays, whoever added it."""


@pytest.fixture
def gpu(request):
    """CuPy, if this GPU runs the kernel under test."""
    info = td.tile.kernels[request.getfixturevalue("kernel")]
    if not info.available:
        pytest.skip(f"{info.name} cannot run here: {info.why_not}")
    return td.tile.namespace("cupy")


def tiles_of(kernel, dtype):
    found = table.lookup(kernel)
    return found.tiles_for(dtype) or (found.tile,)


def fresh():
    """A seed that differs from run to run; a failing case shows it."""
    return int(np.random.default_rng().integers(2**31))


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "dtype", "precision"), ON_GPU)
def test_gpu_every_ending_in_every_order(gpu, kernel, dtype, precision):
    """At every edge of a tile and in the middle of many, the smallest first."""
    ends = product(
        *([1.0, -0.5], [0.0, 1.0, -2.0], [None, "own", "wide"]),
        [(None, False), ("gelu", False), ("gelu", True)],
        ["own", "wide"],
    )
    orders, tiles = list(map("".join, product("CF", repeat=3))), tiles_of(kernel, dtype)
    for i, (alpha, beta, bias, end, out) in enumerate(ends):
        tile, around = tiles[i % len(tiles)], np.random.default_rng(fresh())
        edges = [(1, t - 1, t, t + 1, 2 * t + 3, 5 * t + 8) for t in tile or (64, 64, 64)]
        shape = tuple(int(around.choice(each[: 1 + i // 10])) for each in edges)
        how = (alpha, beta, bias, *end, out, precision, fresh())
        check(gpu, Case(kernel, dtype, shape, tile, orders[i % 8], *how))
