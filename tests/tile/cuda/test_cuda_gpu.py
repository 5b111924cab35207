"""Our kernels on a GPU, against float64: every edge, layout and ending, in the middle of NaN.

    python -m pytest -m gpu -n 12 -o faulthandler_timeout=60 tests/tile/cuda/test_cuda_gpu.py

The products (gemm_steps.py) are of other numbers each time; what is smallest comes first, so that
what is broken at all is known in seconds. A test is one kernel with one tile and type in one
process, which a hang ends after those 60 s: 72 tests of 14 of these. What makes a product another
variant of a kernel is tried once (`FORMS` of tiledask/lab/gpu/parts/cases.py);
float16, which only exchanges the types of an instruction, goes
without batches and large products.
"""

from dataclasses import replace

import numpy as np
import pytest
from tile.cuda.gemm_steps import STEPS

import tiledask as td
from tiledask.lab.gpu.parts.cases import check, differing
from tiledask.lab.gpu.parts.kernels import variants

pytestmark = pytest.mark.gpu

OF_BOTH_HALVES = ("edges", "layouts", "epilogue")
TRIED = [
    (step, variant)
    for step in STEPS
    for variant in variants()
    if step in OF_BOTH_HALVES or variant.dtype != "float16"
]


def cases_of(step, variant):
    return [case for _, cases in STEPS[step](variant, 1) for case in cases]


@pytest.mark.parametrize(("step", "variant"), TRIED, ids=str)
def test_against_float64(step, variant):
    if why_not := td.tile.kernels[variant.kernel].why_not:
        pytest.skip(f"{variant.kernel} cannot run here: {why_not}")
    for case in cases_of(step, variant):
        case, xp = replace(case, seed=np.random.randint(2**31)), td.tile.namespace("cupy")
        assert check(variant.run, case, xp).right, case
        if step == "repeat":  # threads that race do not always lose
            assert differing(variant.run, case, 20, xp) == 0, case
