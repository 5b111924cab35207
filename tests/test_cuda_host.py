"""The CUDA source of smem_tiled, compiled for the host and run there thread by thread.

Shows that indices, guards and barriers are right. Does not show what only a GPU can: speed,
coalescing, bank conflicts, the order of memory operations between barriers.
"""

import ctypes
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tiledask.errors import KernelError
from tiledask.tile import launch

HARNESS = Path(__file__).with_name("cuda_host.cpp")
SOURCE = launch.source("smem_tiled")
ARGUMENTS = (
    *[np.int32] * 3,
    *[np.float32, np.ndarray, np.int64, np.int64, np.ndarray, np.int64, np.int64],
    *[np.float32, np.ndarray, np.int64, np.int64],
)
C_TYPES = {
    np.int32: ctypes.c_int,
    np.int64: ctypes.c_longlong,
    np.float32: ctypes.c_float,
    np.ndarray: ctypes.c_void_p,
}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None,
    reason="running the CUDA source on the host needs Linux and g++ (apt install g++)",
)


class HostModule:
    """Stands in for cupy.RawModule: same arguments, but compiles for and runs on the host."""

    def __init__(self, folder, code, options, seed=1):
        kernel, library = folder / "kernel.cu", folder / "kernel.so"
        kernel.write_text(code)
        command = ["g++", *options, "-O1", "-shared", "-fPIC", f'-DKERNEL_FILE="{kernel}"']
        subprocess.run([*command, str(HARNESS), "-o", str(library)], check=True)
        self.launch = ctypes.CDLL(str(library)).launch
        self.launch.argtypes = [
            ctypes.c_uint, ctypes.c_uint, ctypes.c_uint64, *(C_TYPES[t] for t in ARGUMENTS)
        ]  # fmt: skip
        self.seed = seed

    def get_function(self, name):
        assert name == "smem_tiled"
        return self

    def __call__(self, grid, block, arguments):
        assert [type(x) for x in arguments] == list(ARGUMENTS), "the kernel's C signature"
        values = [x.ctypes.data if isinstance(x, np.ndarray) else x.item() for x in arguments]
        assert self.launch(*grid, self.seed, *values) == 0, "threads left others at a barrier"


@pytest.fixture(scope="module", params=[8, 16, 32])
def extent(request):
    return request.param


@pytest.fixture(scope="module")
def module(tmp_path_factory, extent):
    return HostModule(tmp_path_factory.mktemp("host"), SOURCE, launch.options(extent))


SHAPES = [(1, 1, 1), (8, 8, 8), (16, 8, 24), (9, 7, 17), (5, 19, 33), (33, 34, 31), (1, 40, 8)]
LAYOUTS = list(product("CF", repeat=3))
SCALARS = [(1.0, 0.0), (1.0, 1.0), (-0.5, 2.0)]


def embedded(values, order):
    """``values`` as a view into the middle of a larger array of NaN, rows or columns unit-stride.

    Whatever is read beyond an edge is then a NaN, and whatever is written there is seen.
    """
    rows, columns = values.shape
    around = np.full((rows + 5, columns + 7), np.nan, np.float32, order=order)
    view = around[2 : 2 + rows, 3 : 3 + columns]
    view[...] = values
    return around, view


def is_right(module, extent, shape, layout, scalars, seed):
    """Whether the kernel's C agrees with float64 and nothing around C was touched."""
    (m, n, k), (alpha, beta), rng = shape, scalars, np.random.default_rng(seed)
    a, b, c = (rng.standard_normal(s).astype("f4") for s in ((m, k), (k, n), (m, n)))
    exact = alpha * (a.astype("f8") @ b) + (beta * c.astype("f8") if beta else 0)
    if beta == 0:
        c[...] = np.nan  # what out holds must not matter
    (_, a_view), (_, b_view) = embedded(a, layout[0]), embedded(b, layout[1])
    around, out = embedded(c, layout[2])
    untouched = around.copy(order="K")
    strides = [[np.int64(s // 4) for s in x.strides] for x in (a_view, b_view, out)]
    module.seed = seed
    module(
        (-(-n // extent), -(-m // extent)),
        (extent, extent),
        [*map(np.int32, shape), np.float32(alpha), a_view, *strides[0], b_view, *strides[1],
         np.float32(beta), out, *strides[2]],
    )  # fmt: skip
    # k additions and products, each rounded: Higham, Accuracy and Stability, section 3.1
    scale = abs(alpha) * (abs(a.astype("f8")) @ abs(b)) + (abs(beta * c) if beta else 0)
    right = bool((abs(out - exact) <= (k + 4) * 2.0**-24 * scale).all())
    untouched[2 : 2 + m, 3 : 3 + n] = around[2 : 2 + m, 3 : 3 + n]
    return right and np.array_equal(around, untouched, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS, ids="".join)
def test_agrees_with_float64_inside_and_touches_nothing_outside(module, extent, shape, layout):
    for seed, scalars in enumerate(SCALARS):
        assert is_right(module, extent, shape, layout, scalars, seed)


MUTATIONS = {
    "tiles read before they are complete": ("        __syncthreads();  // both", "        // both"),
    "tiles overwritten while they are read": (
        "        __syncthreads();  // everyone", "        // everyone",
    ),
    "one row too many is loaded": ("row < rows - row0", "row <= rows - row0"),
    "one column too many is loaded": ("col < cols - col0", "col <= cols - col0"),
    "one row too many is stored": ("y < m - row0", "y <= m - row0"),
    "one column too many is stored": ("x < n - col0", "x <= n - col0"),
    "A is read transposed": ("at(a_tile, y, p)", "at(a_tile, p, y)"),
    "B is read transposed": ("at(b_tile, p, x)", "at(b_tile, x, p)"),
    "C is stored transposed": (
        "(row0 + y) * c_row + (col0 + x) * c_col", "(row0 + y) * c_col + (col0 + x) * c_row",
    ),
    "the last steps along k are lost": ("step < k;", "step + TILE <= k;"),
    "beta is forgotten": ("alpha * sum + beta * *out", "alpha * sum"),
    "alpha is forgotten": ("alpha * sum + beta", "sum + beta"),
    "beta = 0 reads C": ("beta == 0.0f ? alpha * sum : ", ""),
    "blocks of the grid are mixed up": ("col0 = blockIdx.x", "col0 = blockIdx.y"),
    "column-major tiles land transposed": (
        "col = column_major ? threadIdx.y : threadIdx.x", "col = threadIdx.x",
    ),
    "a barrier only some threads reach": (
        "        __syncthreads();  // both", "        if (x) __syncthreads();  // both",
    ),
}  # fmt: skip


def is_caught(module):
    cases = product(SHAPES, LAYOUTS, SCALARS)
    try:
        return not all(is_right(module, 8, *case, seed) for seed, case in enumerate(cases))
    except AssertionError:  # threads left others at a barrier
        return True


@pytest.mark.parametrize("fault", MUTATIONS)
def test_planted_fault_is_caught(tmp_path, fault):
    before, after = MUTATIONS[fault]
    assert SOURCE.count(before) == 1, f"the kernel no longer reads {before!r}"
    assert is_caught(HostModule(tmp_path, SOURCE.replace(before, after), launch.options(8)))


def test_an_untouched_kernel_is_not_caught(tmp_path):
    assert not is_caught(HostModule(tmp_path, SOURCE, launch.options(8)))


@pytest.fixture
def host_cupy(tmp_path, monkeypatch):
    """Lets `launch` use `HostModule` for cupy.RawModule, on NumPy arrays."""

    def raw_module(*, code, options):
        return HostModule(tmp_path, code, options)

    monkeypatch.setattr(launch, "namespace", lambda name: SimpleNamespace(RawModule=raw_module))
    launch.compiled.cache_clear()
    yield
    launch.compiled.cache_clear()


@pytest.mark.parametrize("extent", launch.SMEM_TILES)
def test_launch_passes_shapes_strides_and_accumulation(host_cupy, extent):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (37, 70)).astype("f4"), rng.integers(-9, 9, (70, 50)).astype("f4")
    sliced = np.empty((74, 50), np.float32)[::2]
    sliced[...] = np.nan
    launch.smem_tiled(a, np.asfortranarray(b), sliced, (extent,) * 3, accumulate=False)
    np.testing.assert_array_equal(sliced, a @ b)
    launch.smem_tiled(a, b, sliced, (extent,) * 3, accumulate=True)
    np.testing.assert_array_equal(sliced, 2 * (a @ b))
    backwards = np.zeros((37, 50), np.float32)
    launch.smem_tiled(a[:, ::-1], b[::-1], backwards, (extent,) * 3, accumulate=False)
    np.testing.assert_array_equal(backwards, a @ b)


@pytest.mark.parametrize(
    ("m", "k", "rule"),
    [(2**31, 1, "32 bits"), (16 * 65_535 + 1, 1, "at most 1048560 rows")],
)
def test_launch_refuses_what_the_grid_cannot_hold(m, k, rule):
    a = np.broadcast_to(np.float32(0), (m, k))
    b, out = np.zeros((k, 1), np.float32), np.broadcast_to(np.float32(0), (m, 1))
    with pytest.raises(KernelError, match=rule):
        launch.smem_tiled(a, b, out, (16,) * 3, accumulate=False)
