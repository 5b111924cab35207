"""Random products in the middle of NaN: whether a kernel's C is right and nothing else changed."""

from dataclasses import dataclass

import numpy as np

import tiledask as td
from cuda_host.memory import lent, lent_empty
from tiledask.tile.epilogue import Epilogue

__all__ = ["Case", "embedded", "is_right"]

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


@dataclass(frozen=True)
class Case:
    """One product: C = activation(alpha a @ b + beta C + bias)."""

    m: int
    n: int
    k: int
    layouts: str = "CCC"
    """Of a, b and C: "C" rows lie together, "F" columns, "S" neither."""
    dtype: str = "float32"
    out_dtype: str = ""
    """The operands' if empty."""
    batch: int = 0
    """0: matrices of 2 dimensions."""
    shared: str = ""
    """"a", "b": this operand is one for the whole batch."""
    margin: int = 8
    """Elements of NaN before and after each line; 8 keep the alignment of halves, 1 does not."""
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False
    gelu: bool = False
    before: bool = False
    tf32: bool = False
    """Whether float32 operands enter rounded to 10 bits of mantissa, ties away from 0."""
    seed: int = 0


def embedded(values, layout, margin, xp=np):
    """``values``, NumPy's or CuPy's, as a view into the middle of a larger array of NaN.

    Whatever is read beyond an edge is then a NaN, and whatever is written there is seen.
    """
    *batch, rows, columns = values.shape
    each = 16 // values.itemsize

    def room(extent):  # lines of full length start on boundaries, if the margin does
        return -(-extent // each) * each + 2 * margin

    if layout == "F":
        turned, view = embedded(values.swapaxes(-1, -2), "C", margin, xp)
        return turned, view.swapaxes(-1, -2)
    step = 2 if layout == "S" else 1
    shape = (*batch, rows + 3, room(columns * step))
    around = lent_empty(shape, values.dtype) if xp is np else xp.empty(shape, values.dtype)
    around[...] = np.nan
    view = around[..., 1 : 1 + rows, margin : margin + columns * step : step]
    view[...] = xp.asarray(values)
    return around, view


def is_right(run, case, xp=np):
    """Whether ``run(a, b, out, epilogue)`` leaves the right C, and everything around it alone."""
    rng = np.random.default_rng(case.seed)
    dtype = td.tile.as_dtype(case.dtype)
    out_dtype = td.tile.as_dtype(case.out_dtype or case.dtype)
    lead = (case.batch,) if case.batch else ()
    a = rng.standard_normal((*lead, case.m, case.k)).astype(dtype)
    b = rng.standard_normal((*lead, case.k, case.n)).astype(dtype)
    held = rng.standard_normal((*lead, case.m, case.n)).astype(out_dtype)
    bias = rng.standard_normal(case.n).astype(np.float32) if case.bias else None
    a, b = (x[0] if name in case.shared else x for name, x in (("a", a), ("b", b)))
    (_, a_view), (_, b_view) = (
        embedded(x, layout, case.margin, xp)
        for x, layout in zip((a, b), case.layouts, strict=False)
    )
    if case.batch:
        a_view, b_view = (xp.broadcast_to(x, (case.batch, *x.shape[-2:])) for x in (a_view, b_view))
    c = held if case.beta else np.full_like(held, np.nan)  # what C holds must not matter
    around, out = embedded(c, case.layouts[2], case.margin, xp)
    if case.before:
        empty = np.full_like(held, np.nan)
        before_around, before = embedded(empty, case.layouts[2], case.margin, xp)
    activation = "gelu" if case.gelu else None
    lend = lent if xp is np else xp.asarray
    run(a_view, b_view, out, Epilogue(
        case.alpha, case.beta, None if bias is None else lend(bias), activation,
        before if case.before else None,
    ))  # fmt: skip

    a8, b8 = ((_ten_bits(x) if case.tf32 else x).astype("f8") for x in (a, b))
    exact = case.alpha * (a8 @ b8)
    scale = abs(case.alpha) * (abs(a8) @ abs(b8))
    if case.beta:
        exact, scale = exact + case.beta * held.astype("f8"), scale + abs(case.beta * held)
    if case.bias:
        exact, scale = exact + bias, scale + abs(bias)
    # k products and sums, each rounded: Higham, Accuracy and Stability, section 3.1
    error = (case.k + 8) * 2.0**-24 * scale
    eps = EPS[out_dtype.name]
    right = not case.before or _close(before, exact, error + eps * abs(exact))
    if case.gelu:
        slope = np.sqrt(2 / np.pi)
        exact = 0.5 * exact * (1 + np.tanh(slope * (exact + 0.044715 * exact**3)))
        error = 1.2 * error + 1e-6 * (1 + abs(exact))  # GELU's slope is below 1.13; tanhf
    right = right and _close(out, exact, error + eps * abs(exact))
    for array, view in ((around, out), *(((before_around, before),) if case.before else ())):
        view[...] = np.nan
        right = right and bool(xp.isnan(array.astype("f4")).all())
    return right


def _ten_bits(x):
    return ((x.view("u4") + 0x1000) & 0xFFFFE000).astype("u4").view("f4")


def _close(got, exact, error):
    return bool((abs(td.tile.to_numpy(got).astype("f8") - exact) <= error).all())
