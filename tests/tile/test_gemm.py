"""C = A B + beta C in place: any layout against float64, what is copied, what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import KernelError
from tiledask.tile import gemm as module
from tiledask.tile.gemm import gemm


def poisoned(dtype):
    """Where arrays are cut from: whatever is read beside them is NaN, and so is the result."""
    return lambda *shape: np.full(shape, np.nan, dtype)


def misaligned(new, r, c):
    plain = new(r, c)
    return np.zeros(plain.nbytes + 1, np.uint8)[1:].view(plain.dtype).reshape(r, c)


UNIT_STRIDE = {
    "rows": lambda new, r, c: new(r, c),
    "columns": lambda new, r, c: new(c, r).T,
    "slice of rows": lambda new, r, c: new(r + 3, c + 5)[2 : r + 2, 1 : c + 1],
    "slice of columns": lambda new, r, c: new(c + 4, r + 3).T[1 : r + 1, 2 : c + 2],
    "every third row": lambda new, r, c: new(3 * r, c)[::3],
    "every third column": lambda new, r, c: new(3 * c, r).T[:, ::3],
}
LAYOUTS = UNIT_STRIDE | {
    "every second of both": lambda new, r, c: new(2 * r, 2 * c)[::2, ::2],
    "upwards": lambda new, r, c: new(r, c)[::-1],
    "leftwards": lambda new, r, c: new(r, c)[:, ::-1],
    "off its boundary": misaligned,
}
OPERAND_LAYOUTS = LAYOUTS | {
    "foreign bytes": lambda new, r, c: new(r, c).astype(new(1).dtype.newbyteorder("S")),
}


@given(
    shape=st.tuples(*[st.integers(1, 9)] * 3),
    layouts=st.tuples(
        *map(st.sampled_from, map(list, (OPERAND_LAYOUTS, OPERAND_LAYOUTS, LAYOUTS)))
    ),
    dtype=st.sampled_from(["float32", "float64"]),
    beta=st.sampled_from([0.0, 1.0, -3.0]),
)
@settings(max_examples=150)
def test_any_layout_equals_float64(shape, layouts, dtype, beta):
    """Of small whole numbers, exact in any order."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b, c = (
        OPERAND_LAYOUTS[how](poisoned(dtype), *extents)
        for how, extents in zip(layouts, ((m, k), (k, n), (m, n)), strict=True)
    )
    a[...], b[...] = rng.integers(-9, 10, (m, k)), rng.integers(-9, 10, (k, n))
    c[...] = rng.integers(-9, 10, (m, n)) if beta else np.nan
    expected = a.astype("f8") @ b.astype("f8") + (beta * c if beta else 0)
    around = c.base if isinstance(c.base, np.ndarray) and c.base.dtype == c.dtype else c
    missing = np.isnan(around).sum() - np.isnan(c).sum()
    assert gemm(a, b, c, beta) is None
    np.testing.assert_array_equal(c, expected)
    assert np.isnan(around).sum() == missing, "written outside of c"


def goes_in(x):
    """Whether BLAS takes x, or x transposed, as it lies."""
    return module._leading(x) is not None or module._leading(x.T) is not None


@pytest.mark.parametrize("idle", [0, 3, 8, 40, -8, 2**40])
@pytest.mark.parametrize("step", [8, 24])
def test_the_stride_of_an_extent_of_one_may_be_anything(idle, step):
    """A row or column whose other stride nobody follows, as an operand and as the result."""

    def line(values, shape):
        cells = np.full(step // 8 * len(values), np.nan)
        cells[:: step // 8] = values
        strides = (idle, step) if shape[0] == 1 else (step, idle)
        return np.lib.stride_tricks.as_strided(cells, shape, strides)

    row, column = line(np.arange(1.0, 6), (1, 5)), line(np.arange(2.0, 7), (5, 1))
    square = np.arange(25.0).reshape(5, 5)
    for a, b in ((row, column), (square, column), (row, square)):
        shape = len(a), b.shape[1]
        c = line(np.ones(max(shape)), shape)
        assert all(goes_in(x) for x in (a, b, c)), "would be copied"
        expected = np.array(a) @ np.array(b) + 1
        gemm(a, b, c, 1.0)
        np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("name", OPERAND_LAYOUTS)
def test_nothing_is_copied_where_there_is_a_unit_stride(name):
    x = OPERAND_LAYOUTS[name](poisoned("float64"), 7, 5)
    assert goes_in(x) == (name in UNIT_STRIDE)
    assert (module._unit_stride(x, np) is x) == (name in UNIT_STRIDE)


def test_extents_beyond_32_bits_are_refused():
    long = np.lib.stride_tricks.as_strided(np.zeros(1), (2**31, 1), (0, 0))
    with pytest.raises(KernelError, match=r"up to 2147483647, got .*2147483648"):
        gemm(long, np.ones((1, 1)), long)
