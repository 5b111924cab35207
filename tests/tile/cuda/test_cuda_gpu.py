"""Every edge, layout and ending of our kernels, against float64, in the middle of NaN.

    python -m pytest -m gpu -n 12 -o faulthandler_timeout=60 tests/tile/cuda/test_cuda_gpu.py

The products (gemm_steps.py) are of other numbers each time on a GPU; what is smallest comes first,
so that what is broken at all is known in seconds. A test is one kernel with one tile and type,
which a hang ends after those 60 s. float16, which only exchanges the types of an instruction, goes
without batches and large products. NumPy's kernels do the same steps at a 32nd of the size.
"""

from dataclasses import replace

import numpy as np
import pytest
from gpu.gemm_cases import check, differing, variants
from tile.cuda.gemm_steps import STEPS

import tiledask as td

OF_BOTH_HALVES = ("edges", "layouts", "epilogue")
ON_GPU = [
    pytest.param(step, variant, marks=pytest.mark.gpu)
    for step in STEPS
    for variant in variants()
    if step in OF_BOTH_HALVES or variant.dtype != "float16"
]


def cases_of(step, variant, less):
    return [case for _, cases in STEPS[step](variant, less) for case in cases]


@pytest.mark.parametrize(("step", "variant"), ON_GPU, ids=str)
def test_against_float64(step, variant):
    if not td.tile.probe().usable:
        pytest.skip(f"no usable GPU: {td.tile.probe().reason}")
    if why_not := td.tile.kernels[variant.kernel].why_not:
        pytest.skip(f"{variant.kernel} cannot run here: {why_not}")
    for case in cases_of(step, variant, 1):
        case, xp = replace(case, seed=np.random.randint(2**31)), td.tile.namespace("cupy")
        assert check(variant.run, case, xp).right, case
        if step == "repeat":  # threads that race do not always lose
            assert differing(variant.run, case, 20, xp) == 0, case


@pytest.mark.parametrize("step", STEPS)
def test_without_a_gpu(step):
    for variant in variants("numpy"):
        for case in cases_of(step, variant, 32):
            assert check(variant.run, case).right, case
