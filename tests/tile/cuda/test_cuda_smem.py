"""The textbook CUDA kernel, run on the host thread by thread: indices, guards, barriers, epilogue.

tiledask/tile/README.md says what this shows and what only a GPU can.
"""

from itertools import product

import numpy as np
import pytest
from oracles.planted import faults
from twins.cuda_host import HostFault, host_gpu, why_not
from twins.cuda_host.memory import lent, lent_empty
from twins.cuda_host.products import GemmCase, is_right

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile.cuda import launch
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.levels import traffic

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

SHAPES = [(1, 1, 1), (8, 8, 8), (16, 8, 24), (9, 7, 17), (5, 19, 33), (33, 34, 31), (1, 40, 8)]
LAYOUTS = ["".join(x) for x in product("CF", repeat=3)] + ["SSS"]
ENDINGS = [
    {},
    {"beta": 1.0},
    {"alpha": -0.5, "beta": 2.0},
    {"bias": True},
    {"alpha": 0.5, "beta": 1.0, "bias": True, "gelu": True, "before": True},
]


def run_with(extent):
    def run(a, b, out, epilogue):
        launch.smem_tiled(a, b, out, (extent,) * 3, epilogue)

    return run


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    with host_gpu(tmp_path_factory.mktemp("smem")) as built:
        yield built


@pytest.mark.few(5)
@pytest.mark.parametrize("extent", [8, 16, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_float64_inside_and_touches_nothing_outside(gpu, extent, shape):
    for seed, (layouts, ending) in enumerate(product(LAYOUTS, ENDINGS)):
        for kernel in gpu.values():
            kernel.seed = seed + 1
        case = GemmCase(*shape, layouts, margin=1, seed=seed, **ending)
        assert is_right(run_with(extent), case), case


@pytest.mark.parametrize("extent", [16, 32])
@pytest.mark.parametrize("shape", [(9, 7, 17), (33, 34, 31), (64, 32, 16)])
def test_what_its_grid_loads_is_what_the_formula_says(gpu, extent, shape):
    loaded = []

    def run(a, b, out, epilogue):
        loaded.append(launch.smem_tiled(a, b, out, (extent,) * 3, epilogue))

    assert is_right(run, GemmCase(*shape, "CCC", margin=1, beta=1.0))
    m, n, k = shape
    assert loaded == [traffic(m, n, k, extent, 4, accumulate=True)]


FAULTS = faults(r"""
tiles read before they are complete: __syncthreads();  // both => // both
tiles overwritten while they are read: __syncthreads();  // everyone => // everyone
one row too many is loaded: row < rows - row0 => row <= rows - row0
one column too many is loaded: col < cols - col0 => col <= cols - col0
one row too many is stored: y < m - row0 => y <= m - row0
one column too many is stored: x < n - col0 => x <= n - col0
A is read transposed: at(a_tile, y, p) => at(a_tile, p, y)
B is read transposed: at(b_tile, p, x) => at(b_tile, x, p)
C is stored transposed: row0 + y, col0 + x, sum => row0 + x, col0 + y, sum
the last steps along k are lost: step < k; => step + TILE <= k;
blocks of the grid are mixed up: col0 = blockIdx.x => col0 = blockIdx.y
column-major tiles land transposed:
    col = column_major ? threadIdx.y : threadIdx.x => col = threadIdx.x
a barrier only some threads reach: __syncthreads();  // both => if (x) __syncthreads();  // both
beta is forgotten: y += e.beta * to_float(c.data[at]) => y += to_float(c.data[at])
alpha is forgotten: float y = e.alpha * sum => float y = sum
beta = 0 reads C: if (HAS_BETA) y += e => y += e
bias by row: BIAS_BY_ROW ? i : j => BIAS_BY_ROW ? j : i
GELU has another constant: 0.044715f => 0.0447f * 1.01f
GELU has another slope: 2.302208198f => 2.3025851f
""")
KEPT = "if (HAS_BEFORE) c.before[at] = from_float<T>(y);\n"
FAULTS["the activation comes too early"] = (
    f"    {KEPT}    c.data[at] = from_float<T>(HAS_GELU ? gelu(y) : y);",
    f"if (HAS_GELU) y = gelu(y);\n    {KEPT}    c.data[at] = from_float<T>(y);",
)


def is_caught(folder, faults):
    cases = [
        GemmCase(*shape, layouts, margin=1, seed=seed, **ending)
        for seed, (shape, layouts, ending) in enumerate(product(SHAPES, LAYOUTS, ENDINGS))
    ]
    with host_gpu(folder, faults) as built:
        try:
            for case in cases:
                for kernel in built.values():
                    kernel.seed = case.seed + 1
                if not is_right(run_with(8), case):
                    return True
        except HostFault:
            return True
    return False


@pytest.mark.few(8)
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_caught(tmp_path, fault):
    assert is_caught(tmp_path, [FAULTS[fault]])


@pytest.mark.slow
def test_an_untouched_kernel_is_not_caught(tmp_path):
    assert not is_caught(tmp_path, [])


def test_gelu_is_right_for_every_number(gpu):
    """With both functions that approximate off by as much as they may be: tests/twins/cuda_host."""
    x = np.concatenate(
        [
            np.linspace(-12, 12, 2001),
            np.geomspace(1e-38, 3e38, 500),
            -np.geomspace(1e-38, 3e38, 500),
            [0.0, -0.0, 1e4, -1e4, np.inf, -np.inf, np.nan],
        ]
    ).astype("f4")[:, None]
    out = lent_empty(x.shape, np.float32)
    run_with(16)(lent(x), lent(np.ones((1, 1), "f4")), out, Epilogue(activation="gelu"))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = td.tile.gelu(x.astype("f8"))
    # where the power is large the result is small, and what its exponent is off by does not count
    np.testing.assert_allclose(out, exact, rtol=2.0**-22, atol=2e-7)
    assert np.isnan(exact[-2:]).all()  # -inf * 0, and NaN: as NumPy has it
    assert (out[x <= -12] <= 0).sum() == (x <= -12).sum() - 1


def test_backwards_operands_need_no_copy(gpu):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (37, 70)).astype("f4"), rng.integers(-9, 9, (70, 50)).astype("f4")
    out = lent_empty((37, 50), np.float32)
    run_with(16)(lent(a)[:, ::-1], lent(b)[::-1], out, Epilogue())
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize(
    ("m", "k", "rule"),
    [(2**31, 1, "32 bits"), (16 * 65_535 + 1, 1, "at most 1048560 rows")],
)
def test_refuses_what_the_grid_cannot_hold(m, k, rule):
    a = np.broadcast_to(np.float32(0), (m, k))
    b, out = np.zeros((k, 1), np.float32), np.broadcast_to(np.float32(0), (m, 1))
    with pytest.raises(KernelError, match=rule):
        run_with(16)(a, b, out, Epilogue())
