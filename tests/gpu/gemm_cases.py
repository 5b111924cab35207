"""Random products in the middle of NaN, against float64: how wrong C is, and what else changed.

NaN NaN NaN NaN NaN NaN
NaN NaN  a   a  NaN NaN     whatever is read beyond an edge is a NaN, and
NaN NaN  a   a  NaN NaN     whatever is written there is seen
NaN NaN NaN NaN NaN NaN
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.tile.backend import accumulator, as_dtype, to_numpy
from tiledask.tile.choice.config import configs
from tiledask.tile.cuda.operands import bits
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.product import matmul
from tiledask.tile.table import lookup

__all__ = ["OURS", "GemmCase", "ProductError", "Variant", "check", "differing", "variants"]

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Unit roundoff of what C is stored in."""
LEAST = {"float16": 2.0**-25, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""What is lost of the smallest numbers: float16's lie 2^-24 apart, others may become 0."""

Product = Callable[..., None]
"""(a, b, out, epilogue): computes into ``out``."""
Empty = Callable[[tuple[int, ...], Any], Any]
"""(shape, dtype) -> an array of arbitrary contents, contiguous by rows."""


@dataclass(frozen=True)
class GemmCase:
    """One product: C = activation(alpha a @ b + beta C + bias)."""

    m: int
    n: int
    k: int
    layouts: str = "CCC"
    """Of a, b and C: "C" rows lie together, "F" columns, "S" neither."""
    dtype: str = "float32"
    out_dtype: str = ""
    """The operands' if empty."""
    margin: int = 8
    """Elements of NaN before and after each line; 8 keep the alignment of halves, 1 does not."""
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False
    bias_own: bool = False
    """Whether it is of the operands' type, and not of that which is summed in."""
    gelu: bool = False
    before: bool = False
    """Whether what enters the activation is stored too."""
    seed: int = 0

    def __str__(self) -> str:
        words = {
            f"{self.m} x {self.n} x {self.k}": True,
            self.layouts: self.layouts != "CCC",
            f"margin {self.margin}": self.margin != 8,
            f"into {self.out_dtype}": self.out_dtype,
            f"alpha {self.alpha:g}": self.alpha != 1,
            f"beta {self.beta:g}": self.beta != 0,
            "bias": self.bias,
            "GELU": self.gelu,
            "kept before GELU": self.before,
        }
        return ", ".join(word for word, shown in words.items() if shown)


@dataclass(frozen=True)
class ProductError:
    """The element of a product that rounding explains least."""

    error: float
    """|C - float64's|; infinite if it is no number."""
    limit: float
    """What rounding explains there."""
    where: tuple[int, ...]
    """Its indices."""
    outside: int = 0
    """Elements around C (or around what entered the activation) that were written."""

    @property
    def right(self) -> bool:
        return self.error <= self.limit and not self.outside

    def __str__(self) -> str:
        place = ", ".join(map(str, self.where))
        text = f"C[{place}] is {self.error:.2g} from float64, rounding explains {self.limit:.2g}"
        more = f"; {self.outside} elements outside of C were written"
        return text + (more if self.outside else "")


def check(run: Product, case: GemmCase, xp: Any = np, empty: Empty | None = None) -> ProductError:
    """Compare what ``run`` leaves with the same product in float64.

    Each of k products and sums is rounded once (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.1), and C once when it is stored; that much error is explained.
    """
    laid = _Operands(case, xp, empty)
    laid.run(run)
    a, b = (x.astype("f8") for x in (laid.a, laid.b))
    exact, scale = case.alpha * (a @ b), abs(case.alpha) * (abs(a) @ abs(b))
    for term in (case.beta * laid.c.astype("f8") if case.beta else 0.0, laid.bias):
        term = np.asarray(term, "f8")
        exact, scale = exact + term, scale + abs(term)
    unit = EPS["float64" if case.dtype == "float64" else "float32"]
    explained = 2 * (case.k + 8) * unit * scale  # two: what it is compared with errs too
    stored, found = laid.c.dtype.name, []
    if laid.before is not None:
        found.append(_worst(laid.before[1], exact, explained, stored))
    if case.gelu:
        inner = np.sqrt(2 / np.pi) * (exact + 0.044715 * exact**3)
        exact = 0.5 * exact * (1 + np.tanh(inner))
        explained = 1.2 * explained + 16 * unit * (1 + abs(exact))  # its slope is below 1.13; tanhf
    found.append(_worst(laid.out[1], exact, explained, stored))
    worst = max(found, key=lambda each: each.error / each.limit)
    return ProductError(worst.error, worst.limit, worst.where, laid.written_outside())


def differing(
    run: Product, case: GemmCase, times: int, xp: Any = np, empty: Empty | None = None
) -> int:
    """Count the further runs on the same operands, of ``times``, whose C differs in a bit.

    Each element is summed in an order of its own, so that none may.
    """
    laid = _Operands(case, xp, empty)

    def once() -> Any:
        laid.run(run)
        return xp.array(bits(laid.out[1]))

    first = once()
    return sum(not bool((once() == first).all()) for _ in range(times))


class _Operands:
    """The operands of a case, each in the middle of NaN: (the array around, a view into it)."""

    def __init__(self, case: GemmCase, xp: Any, empty: Empty | None) -> None:
        self.case, self.xp, self.empty = case, xp, empty or xp.empty
        rng = np.random.default_rng(case.seed)
        dtype, out_dtype = as_dtype(case.dtype), as_dtype(case.out_dtype or case.dtype)
        self.a = rng.standard_normal((case.m, case.k)).astype(dtype)
        self.b = rng.standard_normal((case.k, case.n)).astype(dtype)
        self.c = rng.standard_normal((case.m, case.n)).astype(out_dtype)
        self.views = [self._embed(self.a, case.layouts[0])[1],
                      self._embed(self.b, case.layouts[1])[1]]  # fmt: skip
        self.out = self._embed(self.c, case.layouts[2])
        self.before = self._embed(self.c, case.layouts[2]) if case.before else None
        self.bias: Any = 0.0
        self.lent_bias: Any = None
        if case.bias:
            wide = accumulator(case.dtype)
            self.bias = rng.standard_normal(case.n).astype(dtype if case.bias_own else wide)
            self.lent_bias = self.empty(self.bias.shape, self.bias.dtype)
            bits(self.lent_bias)[...] = xp.asarray(bits(self.bias))

    def _embed(self, values: Any, layout: str) -> tuple[Any, Any]:
        if layout == "F":
            around, view = self._embed(values.T, "C")
            return around, view.T
        rows, columns = values.shape
        margin, step = self.case.margin, 2 if layout == "S" else 1
        boundary = 16 // values.itemsize  # lines start on one, if the margin is one
        line = -(-columns * step // boundary) * boundary + 2 * margin
        around = self.empty((rows + 3, line), values.dtype)
        bits(around)[...] = _ones(around)
        view = around[1 : 1 + rows, margin : margin + columns * step : step]
        bits(view)[...] = self.xp.asarray(bits(values))
        return around, view

    def run(self, run: Product) -> None:
        """C holds what enters, or NaN: then it must not matter."""
        case, view = self.case, self.out[1]
        bits(view)[...] = self.xp.asarray(bits(self.c)) if case.beta else _ones(view)
        before = None if self.before is None else self.before[1]
        if before is not None:
            bits(before)[...] = _ones(before)
        gelu = "gelu" if case.gelu else None
        run(*self.views, view, Epilogue(case.alpha, case.beta, self.lent_bias, gelu, before))

    def written_outside(self) -> int:
        """Elements around the results that are not what they were; the results are lost."""
        found = 0
        for around, view in filter(None, (self.out, self.before)):
            bits(view)[...] = _ones(view)
            found += int((bits(around) != _ones(around)).sum())
        return found


def _ones(x: Any) -> Any:
    """All bits set are a NaN, in every type of float."""
    whole = np.dtype(f"u{x.itemsize}")
    return whole.type(np.iinfo(whole).max)


def _worst(got: Any, exact: Any, explained: Any, stored: str) -> ProductError:
    explained = explained + EPS[stored] * abs(exact) + LEAST[stored]
    off = abs(to_numpy(got).astype("f8") - exact)
    off[np.isnan(off)] = np.inf
    at = tuple(map(int, np.unravel_index(int((off / explained).argmax()), off.shape)))
    return ProductError(float(off[at]), float(explained[at]), at)


# -- kernels, with a tile, for a type --------------------------------------------------------------

OURS = {
    "cupy": (*[name for name in configs if name != "tiled"][::-1], "cublas"),
    "numpy": ("tiled", "blas"),
}
"""The kernels that are tried on either kind of arrays, the most important first."""
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Variant:
    """A kernel with a tile, for one type."""

    kernel: str
    tile: Any
    """None for a kernel without one."""
    dtype: str

    def __str__(self) -> str:
        return f"{self.kernel}{f' {self.tile}' if self.tile else ''}, {self.precision}"

    @property
    def precision(self) -> str:
        return _SHORT.get(self.dtype, self.dtype)

    def case(self, *sizes: int, **how: Any) -> GemmCase:
        """A product of this type, on numbers that differ from size to size."""
        m, n, k = sizes
        how |= {"seed": zlib.crc32(repr((sizes, how)).encode())}
        return GemmCase(m, n, k, **how, dtype=self.dtype)

    def run(self, a: Any, b: Any, out: Any, epilogue: Epilogue) -> None:
        """The product by this kernel."""
        matmul(a, b, self.kernel, self.tile, out, **vars(epilogue))


def variants(arrays: str = "cupy") -> list[Variant]:
    """Every kernel of OURS, with every tile and type that it is built for; default tiles first."""
    found = [
        Variant(name, tile, dtype)
        for name, kernel in ((name, lookup(name)) for name in OURS[arrays])
        for dtype in kernel.dtypes
        for tile in kernel.tiles or (kernel.tile and (32, 32, 32),)
        if dtype != "float64"
    ]
    firsts = {(v.kernel, v.dtype): v for v in reversed(found)}
    return sorted(found, key=lambda v: (v.dtype == "float16", firsts[v.kernel, v.dtype] != v))
