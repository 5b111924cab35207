"""Whether our kernels are right: each once, before anything rests on them.

Every kernel at its smallest; then, step by step, what the kernel for Hopper needs: a ring of
stages, a cluster, many tiles a block. Then edges and layouts of each.
"""

from functools import partial
from itertools import product
from random import Random

import numpy as np
import pytest
from gpu.devices import on
from gpu.gemm_cases import GemmCase, Variant, check, drawn_case, variants

from tiledask.tile.backend import namespace
from tiledask.tile.table import kernels


def steps(arrays):
    """(step, kernel, product), from what everything rests on to what is most likely to break."""
    (every, firsts), less = variants(arrays), 1 if arrays == "cupy" else 16
    for variant, sizes in product(firsts, (None, (1, 1, 1))):
        yield "one tile", variant, variant.case(*(sizes or variant.tile or (64, 64, 64)))
    usual = every[0]
    yield "ring", usual, usual.case(128, 256, 256)
    for rows in (128, 256):
        yield "cluster", usual, usual.case(rows, 256, 64)
    for columns in (4096, 4094):  # of which the latter do not go through shared memory
        yield "many tiles", usual, usual.case(4096 // less, columns // less, 512 // less)
    for variant in every:  # around the edges of tiles, in every layout
        for number in range(16 if variant == usual else 6):
            draw = Random(f"{variant} {number}")
            tiles = [t * draw.choice((1, 1, 2, 3)) for t in variant.tile or (64, 64, 64)]
            extents = [t + draw.choice((-1, 0, 0, 1, 8)) for t in tiles]
            out = draw.choice(("", "float32"))
            case = drawn_case(draw, *extents, dtype=variant.dtype, out_dtype=out)
            yield "edges", variant, case


CASES = on(dict.fromkeys(steps("cupy")), dict.fromkeys(steps("numpy")))


@pytest.mark.parametrize(("arrays", "step", "variant", "case"), CASES, ids=str)
def test_each_kernel_once(note, arrays, step, variant, case):
    key = f"{step}: {variant}, {case}"
    facts = {"step": step, "kernel": variant.kernel, "precision": variant.precision,
             "tile": variant.tile and "x".join(map(str, variant.tile)), "orders": case.layouts,
             "case": str(case), "shape": [case.m, case.n, case.k]}  # fmt: skip
    if why := kernels[variant.kernel].why_not:
        note(key, "skipped", why=why, **facts)
        pytest.skip(why)
    found = check(variant.run, case, namespace(arrays))
    state, why = ("right", "") if found.right else ("wrong", str(found))
    note(key, state, why=why, error=found.error, limit=found.limit, **facts)
    assert found.right, found


def test_a_wrong_product_is_wrong():
    """By the rounding of TF32, by one element, by one beyond the edge."""

    def spoiled(how, a, b, out, beta):
        if how == 0:
            a = (np.ascontiguousarray(a).view("u4") & 0xFFFFE000).view("f4")
        Variant("blas", None, "float32").run(a, b, out, beta)
        m, n = out.shape
        if how:
            np.lib.stride_tricks.as_strided(out, (m, n + how - 1), out.strides)[-1, -1] = np.e

    found = [check(partial(spoiled, how), GemmCase(33, 47, 21)) for how in range(3)]
    assert not any(each.right for each in found)
    assert [each.error > each.limit for each in found] == [True, True, False]
    assert [each.outside for each in found] == [0, 0, 1]
    assert "C[32, 46] is" in str(found[1])
