"""The CUDA kernels compile for the GPUs we name, on machines without one, within a budget."""

import io
import re
from functools import cache

import pytest

from tiledask.tile import launch

core = pytest.importorskip(
    "cuda.core", reason="compiling CUDA without a GPU needs cuda-core (Linux, extra 'test')"
)


def compile_cubin(source, extent, arch):
    """(machine code, what ptxas said) of ``source`` for ``arch``; raises where it is wrong."""
    log = io.StringIO()
    options = core.ProgramOptions(
        std="c++17", arch=arch, define_macro=("TILE", str(extent)), ptxas_options=["-v"]
    )
    code = core.Program(source, "c++", options).compile("cubin", logs=log).code
    return code, log.getvalue()


@cache
def nvrtc_reason():
    """Why nothing can be compiled here, whatever the source; empty if it can."""
    try:
        compile_cubin('extern "C" __global__ void nothing() {}', 16, "sm_80")
    except Exception as error:  # a missing library is a RuntimeError of its own kind
        return f"no NVRTC (pip install -e '.[test]' brings it on Linux): {error}"
    return ""


@pytest.fixture(autouse=True)
def _needs_nvrtc():
    if nvrtc_reason():
        pytest.skip(nvrtc_reason())


def numbers(log):
    """Registers, shared bytes and spilled bytes per thread, from ptxas's report."""
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    return {
        "registers": int(re.search(r"Used (\d+) registers", log)[1]),
        "shared": int(re.search(r"(\d+) bytes smem", log)[1]),
        "spilled": int(spills[1]) + int(spills[2]),
    }


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("extent", launch.SMEM_TILES)
def test_smem_tiled_compiles_within_its_budget(arch, extent):
    code, log = compile_cubin(launch.source("smem_tiled"), extent, arch)
    assert code[:4] == b"\x7fELF"
    assert b"smem_tiled" in code
    found = numbers(log)
    assert found["shared"] == 2 * extent * extent * 4  # one tile of A, one of B
    assert found["spilled"] == 0
    # a multiprocessor of sm_80 and sm_90 has 65,536 registers: room for two blocks of 32 x 32
    # threads with 32 each, which is all the threads it takes, or for four of 16 x 16 with 64
    assert found["registers"] <= {16: 64, 32: 32}[extent]


def test_options_are_those_the_kernel_runs_with():
    assert launch.options(16) == ("-std=c++17", "-DTILE=16")


def test_a_syntax_error_is_refused():
    broken = launch.source("smem_tiled").replace("float sum = 0.0f;", "float sum = 0.0f")
    with pytest.raises(Exception, match='expected a ";"'):
        compile_cubin(broken, 16, "sm_90")


@pytest.mark.parametrize("extent", [24, 64])
def test_a_tile_the_kernel_cannot_hold_is_refused(extent):
    with pytest.raises(Exception, match="power of two of at most 32"):
        compile_cubin(launch.source("smem_tiled"), extent, "sm_90")


def test_a_kernel_that_spills_or_hoards_shared_memory_is_seen():
    greedy = launch.source("smem_tiled").replace(
        "float a_tile[TILE * TILE]", "float a_tile[2 * TILE * TILE]"
    )
    assert numbers(compile_cubin(greedy, 32, "sm_90")[1])["shared"] == 3 * 32 * 32 * 4
    spilling = """
    extern "C" __global__ void __launch_bounds__(1024) smem_tiled(float* x) {
        __shared__ float tile[1024];
        tile[threadIdx.x] = x[threadIdx.x];
        float kept[128];
        for (int i = 0; i < 128; ++i) kept[i] = x[i * 1024 + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < 128; ++i) x[i * 1024 + threadIdx.x] = kept[127 - i] * tile[i];
    }"""
    assert numbers(compile_cubin(spilling, 32, "sm_90")[1])["spilled"] > 0
