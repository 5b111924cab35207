"""Random products in the middle of NaN, against float64: how wrong C is, and what else changed.

NaN NaN NaN NaN NaN NaN
NaN NaN  a   a  NaN NaN     whatever is read beyond an edge is a NaN, and
NaN NaN  a   a  NaN NaN     whatever is written there is seen
NaN NaN NaN NaN NaN NaN
"""

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tiledask.tile.backend import as_dtype, to_numpy
from tiledask.tile.choice.config import configs
from tiledask.tile.cuda.operands import bits
from tiledask.tile.product import matmul
from tiledask.tile.table import lookup

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Unit roundoff of what C is stored in."""
LEAST = {"float16": 2.0**-25, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""What is lost of the smallest numbers: float16's lie 2^-24 apart, others may become 0."""


@dataclass(frozen=True)
class GemmCase:
    """One product: C = a @ b + beta C."""

    m: int
    n: int
    k: int
    layouts: str = "CCC"  # Of a, b and C: "C" rows lie together, "F" columns, "S" neither
    dtype: str = "float32"
    out_dtype: str = ""  # The operands' if empty
    margin: int = 8  # NaN before and after each line; 8 keep the alignment of halves, 1 does not
    beta: float = 0.0
    seed: int = 0

    def __str__(self):
        usual, (_, _, _, *rest, _) = vars(GemmCase(1, 1, 1)), vars(self).items()
        options = [f"{name} {value}" for name, value in rest if value != usual[name]]
        return ", ".join([f"{self.m} x {self.n} x {self.k}", *options])


def drawn_case(draw, *extents, **known):
    """A product of these extents: operands of every layout, on boundaries or off, where a GPU's
    kernels copy them; written or added to."""
    how = {
        "layouts": "".join(draw.choices("CCFFS", k=3)),
        "margin": draw.choice((8, 8, 1)),
        "beta": draw.choice((0.0, 0.0, 1.0, -2.0)),
        "seed": draw.randrange(10**6),
    }
    return GemmCase(*extents, **how | known)


class ProductError(NamedTuple):
    """The element of a product that rounding explains least."""

    error: float  # |C - float64's|; infinite if it is no number
    limit: float  # What rounding explains there
    where: tuple[int, ...]  # Its indices
    outside: int = 0  # Elements written around C

    @property
    def right(self):
        return self.error <= self.limit and not self.outside

    def __str__(self):
        place = ", ".join(map(str, self.where))
        text = f"C[{place}] is {self.error:.2g} from float64, rounding explains {self.limit:.2g}"
        return text + f"; {self.outside} elements outside of C were written" * bool(self.outside)


def check(run, case, xp=np, empty=None):
    """Compare what ``run(a, b, out, beta)`` leaves with the same product in float64.

    ``empty`` makes arrays of a shape and type, of arbitrary contents, contiguous by rows.
    """
    empty, rng = empty or xp.empty, np.random.default_rng(case.seed)
    dtype, stored = as_dtype(case.dtype), as_dtype(case.out_dtype or case.dtype)
    a, b, c = map(rng.standard_normal, ((case.m, case.k), (case.k, case.n), (case.m, case.n)))
    a, b, c = a.astype(dtype), b.astype(dtype), c.astype(stored)
    (_, x), (_, y), (around, out) = (
        _embedded(values, layout, case.margin, xp, empty)
        for values, layout in zip((a, b, c), case.layouts, strict=True)
    )
    if not case.beta:  # C holds what enters, or NaN: then it must not matter
        bits(out)[...] = _ones(out)
    run(x, y, out, case.beta)
    found = _worst(out, *_expected(case, a, b, c), stored.name)
    bits(out)[...] = _ones(out)
    return found._replace(outside=int((bits(around) != _ones(around)).sum()))


def _expected(case, a, b, c):
    """(float64's, what rounding explains).

    Each of k products and sums is rounded once (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.1), and C once when it is stored.
    """
    a, b, more = a.astype("f8"), b.astype("f8"), case.beta * c.astype("f8") if case.beta else 0.0
    unit = EPS["float64" if case.dtype == "float64" else "float32"]
    # two: what it is compared with errs too
    return a @ b + more, 2 * (case.k + 8) * unit * (abs(a) @ abs(b) + abs(more))


def _embedded(values, layout, margin, xp, empty):
    """(an array of NaN, the view in its middle that holds ``values``)."""
    if layout == "F":
        around, view = _embedded(values.T, "C", margin, xp, empty)
        return around, view.T
    (rows, columns), step = values.shape, 2 if layout == "S" else 1
    boundary = 16 // values.itemsize  # lines start on one, if the margin is one
    line = -(-columns * step // boundary) * boundary + 2 * margin
    around = empty((rows + 3, line), values.dtype)
    bits(around)[...] = _ones(around)
    view = around[1 : 1 + rows, margin : margin + columns * step : step]
    bits(view)[...] = xp.asarray(bits(values))
    return around, view


def _ones(x):
    """All bits set are a NaN, in every type of float."""
    whole = np.dtype(f"u{x.itemsize}")
    return whole.type(np.iinfo(whole).max)


def _worst(got, exact, explained, stored):
    explained = explained + EPS[stored] * abs(exact) + LEAST[stored]
    off = abs(to_numpy(got).astype("f8") - exact)
    off[np.isnan(off)] = np.inf
    at = tuple(map(int, np.unravel_index(int((off / explained).argmax()), off.shape)))
    return ProductError(float(off[at]), float(explained[at]), at)


# -- kernels, with a tile, for a type --------------------------------------------------------------

OURS = {
    "cupy": (*[*configs][::-1], "cublas"),
    "numpy": ("tiled", "blas"),
}
"""The kernels that are tried on either kind of arrays, the most important first."""


@dataclass(frozen=True)
class Variant:
    """A kernel with a tile, for one type."""

    kernel: str
    tile: tuple[int, ...] | None  # None for a kernel without one
    dtype: str

    def __str__(self):
        return f"{self.kernel}{f' {self.tile}' if self.tile else ''}, {self.precision}"

    @property
    def precision(self):
        known = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
        return known.get(self.dtype, self.dtype)

    def case(self, *sizes, **how):
        """A product of this type, on numbers that differ from size to size."""
        seed = zlib.crc32(repr((sizes, how)).encode())
        return GemmCase(*sizes, **how, seed=seed, dtype=self.dtype)

    def run(self, a, b, out, beta):
        """The product by this kernel."""
        matmul(a, b, self.kernel, self.tile, out, beta=beta)


def variants(arrays):
    """(every kernel of OURS with every tile and type that it is built for, default tiles first;
    those of default tiles, the least important first)."""
    found = [
        Variant(name, tile, dtype)
        for name in OURS[arrays]
        for dtype in lookup(name).dtypes
        for tile in [c.block for c in lookup(name).built] or [lookup(name).tile and (32, 32, 32)]
        if dtype != "float64"
    ]
    usual = {(v.kernel, v.dtype): v for v in reversed(found)}.values()
    every = sorted(found, key=lambda v: (v.dtype == "float16", v not in usual))
    return every, sorted(usual, key=lambda v: -OURS[arrays].index(v.kernel))
