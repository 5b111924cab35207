"""Random products in the middle of NaN, against float64: how wrong C is, and what else changed.

NaN NaN NaN NaN NaN NaN
NaN NaN  a   a  NaN NaN     whatever is read beyond an edge is a NaN, and
NaN NaN  a   a  NaN NaN     whatever is written there is seen
NaN NaN NaN NaN NaN NaN
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tiledask.tile.backend import HALVES, as_dtype, to_numpy
from tiledask.tile.cuda.operands import bits
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.product import matmul

__all__ = [
    "ENDINGS",
    "FORMS",
    "GemmCase",
    "ProductForm",
    "WorstElement",
    "by_kernel",
    "check",
    "differing",
    "embedded",
    "forms_of",
]

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
"""Unit roundoff of what C is stored in."""
LEAST = {"float16": 2.0**-25, "bfloat16": 2.0**-126, "float32": 2.0**-126}
"""What is lost of the smallest numbers: float16's lie 2^-24 apart, others may become 0."""

Room = Callable[[tuple[int, ...], Any], Any]
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

    def __str__(self) -> str:
        said = [f"{self.m} x {self.n} x {self.k}"]
        said += [f"batch of {self.batch}"] * bool(self.batch)
        said += [f"one {self.shared} for all"] * bool(self.shared)
        said += [self.layouts] * (self.layouts != "CCC")
        said += [f"margin {self.margin}"] * (self.margin != 8)
        said += [f"into {self.out_dtype}"] * bool(self.out_dtype)
        said += [f"alpha {self.alpha:g}"] * (self.alpha != 1)
        said += [f"beta {self.beta:g}"] * (self.beta != 0)
        said += ["bias"] * self.bias + ["GELU"] * self.gelu + ["kept before GELU"] * self.before
        return ", ".join(said)


@dataclass(frozen=True)
class WorstElement:
    """What came out of one product, of the element that rounding explains least."""

    error: float
    """|C - float64's|; infinite if it is no number."""
    limit: float
    """What rounding explains there."""
    where: tuple[int, ...]
    """Its indices."""
    outside: int
    """Elements around C (or around what was kept before the activation) that were written."""

    @property
    def right(self) -> bool:
        return self.error <= self.limit and not self.outside

    @property
    def share(self) -> float:
        """The error over what rounding explains."""
        return self.error / self.limit

    def __str__(self) -> str:
        place = ", ".join(map(str, self.where))
        said = [f"C[{place}] is {self.error:.2g} from float64, rounding explains {self.limit:.2g}"]
        said += [f"{self.outside} elements outside of C were written"] * bool(self.outside)
        return "; ".join(said)


def by_kernel(
    a: Any,
    b: Any,
    out: Any,
    epilogue: Epilogue,
    *,
    kernel: str,
    tile: Any = None,
    precision: str | None = None,
) -> None:
    """None, once ``out`` was asked of ``kernel`` with this epilogue."""
    matmul(
        a,
        b,
        kernel,
        tile,
        out,
        alpha=epilogue.alpha,
        beta=epilogue.beta,
        bias=epilogue.bias,
        activation=epilogue.activation,
        preactivation=epilogue.preactivation,
        precision=precision,
    )


def embedded(values: Any, layout: str, margin: int, xp: Any = np, room: Room | None = None) -> Any:
    """(the array around, ``values`` as a view into the middle of it); all else in it is NaN."""
    *batch, rows, columns = values.shape
    each = 16 // values.itemsize
    room = room or xp.empty

    def line(extent: int) -> int:  # of full length: starts on a boundary, if the margin does
        return -(-extent // each) * each + 2 * margin

    if layout == "F":
        turned, view = embedded(values.swapaxes(-1, -2), "C", margin, xp, room)
        return turned, view.swapaxes(-1, -2)
    step = 2 if layout == "S" else 1
    around = room((*batch, rows + 3, line(columns * step)), values.dtype)
    bits(around)[...] = _ones(around)
    view = around[..., 1 : 1 + rows, margin : margin + columns * step : step]
    bits(view)[...] = xp.asarray(bits(values))
    return around, view


def check(
    run: Callable[..., None], case: GemmCase, xp: Any = np, room: Room | None = None
) -> WorstElement:
    """What ``run(a, b, out, epilogue)`` left, beside the same product in float64.

    Each of k products and sums is rounded once (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.1), and C once when it is stored; that much error is explained.
    """
    laid = _Laid(case, xp, room)
    laid.fill()
    laid.run(run)
    a8, b8 = ((_ten_bits(x) if case.tf32 else x).astype("f8") for x in (laid.a, laid.b))
    exact = case.alpha * (a8 @ b8)
    scale = abs(case.alpha) * (abs(a8) @ abs(b8))
    if case.beta:
        held = laid.held.astype("f8")
        exact, scale = exact + case.beta * held, scale + abs(case.beta * held)
    if laid.bias is not None:
        exact, scale = exact + laid.bias, scale + abs(laid.bias)
    explained = (case.k + 8) * 2.0**-24 * scale
    stored, worst = laid.held.dtype.name, []
    if case.before:
        worst.append(_worst(laid.before[1], exact, explained, stored))
    if case.gelu:
        slope = np.sqrt(2 / np.pi)
        exact = 0.5 * exact * (1 + np.tanh(slope * (exact + 0.044715 * exact**3)))
        explained = 1.2 * explained + 1e-6 * (1 + abs(exact))  # its slope is below 1.13; tanhf
    worst.append(_worst(laid.out[1], exact, explained, stored))
    outside = laid.written_outside()
    return max((WorstElement(*each, outside) for each in worst), key=lambda found: found.share)


def differing(
    run: Callable[..., None], case: GemmCase, times: int, xp: Any = np, room: Room | None = None
) -> int:
    """How many of ``times`` more runs on the same operands differ in a bit of C from the first.

    Each element is summed in an order of its own, so that none may.
    """
    laid = _Laid(case, xp, room)

    def once() -> Any:
        laid.fill()
        laid.run(run)
        return xp.array(bits(laid.out[1]))

    first = once()
    return sum(not bool((once() == first).all()) for _ in range(times))


@dataclass
class _Laid:
    """The operands of a case, and where they lie."""

    case: GemmCase
    xp: Any
    room: Room | None
    a: np.ndarray = field(init=False)
    b: np.ndarray = field(init=False)
    held: np.ndarray = field(init=False)
    """What C held, if it enters."""
    bias: np.ndarray | None = field(init=False)

    def __post_init__(self) -> None:
        case, xp = self.case, self.xp
        rng = np.random.default_rng(case.seed)
        dtype, out_dtype = as_dtype(case.dtype), as_dtype(case.out_dtype or case.dtype)
        lead = (case.batch,) if case.batch else ()
        a = rng.standard_normal((*lead, case.m, case.k)).astype(dtype)
        b = rng.standard_normal((*lead, case.k, case.n)).astype(dtype)
        self.held = rng.standard_normal((*lead, case.m, case.n)).astype(out_dtype)
        self.bias = rng.standard_normal(case.n).astype(np.float32) if case.bias else None
        self.a, self.b = (x[0] if name in case.shared else x for name, x in (("a", a), ("b", b)))
        lay = partial(embedded, margin=case.margin, xp=xp, room=self.room)
        views = [lay(x, lies)[1] for x, lies in zip((self.a, self.b), case.layouts, strict=False)]
        if case.batch:
            views = [xp.broadcast_to(x, (case.batch, *x.shape[-2:])) for x in views]
        self.views = views
        self.out = lay(self.held, case.layouts[2])
        self.before = lay(self.held, case.layouts[2]) if case.before else None
        self.lent_bias = None
        if self.bias is not None:
            self.lent_bias = (self.room or xp.empty)(self.bias.shape, self.bias.dtype)
            self.lent_bias[...] = xp.asarray(self.bias)

    def fill(self) -> None:
        """C holds what enters, or NaN: then it must not matter."""
        _, view = self.out
        bits(view)[...] = self.xp.asarray(bits(self.held)) if self.case.beta else _ones(view)
        if self.before is not None:
            bits(self.before[1])[...] = _ones(view)

    def run(self, run: Callable[..., None]) -> None:
        case = self.case
        run(
            *self.views,
            self.out[1],
            Epilogue(
                case.alpha,
                case.beta,
                self.lent_bias,
                "gelu" if case.gelu else None,
                None if self.before is None else self.before[1],
            ),
        )

    def written_outside(self) -> int:
        """Elements around the results that are not what they were; the results are lost."""
        found = 0
        for around, view in (self.out, *([self.before] if self.before is not None else ())):
            bits(view)[...] = _ones(view)
            found += int((bits(around) != _ones(around)).sum())
        return found


def _ones(x: Any) -> np.unsignedinteger:
    """All bits set are a NaN, in every type of float."""
    whole = np.dtype(f"u{x.itemsize}")
    return whole.type(np.iinfo(whole).max)


def _ten_bits(x: np.ndarray) -> np.ndarray:
    return ((x.view("u4") + 0x1000) & 0xFFFFE000).astype("u4").view("f4")


def _worst(
    got: Any, exact: np.ndarray, explained: np.ndarray, stored: str
) -> tuple[float, float, tuple[int, ...]]:
    """(error, what rounding explains, where) of the element with the largest share of it."""
    explained = explained + EPS[stored] * abs(exact) + LEAST[stored]
    off = abs(to_numpy(got).astype("f8") - exact)
    off[np.isnan(off)] = np.inf
    at = np.unravel_index(int((off / explained).argmax()), off.shape)
    return float(off[at]), float(explained[at]), tuple(map(int, at))


# -- what makes a product another variant of a kernel ----------------------------------------------

ENDINGS = (
    {"beta": 1.0},
    {"bias": True},
    {"bias": True, "gelu": True},
    {"beta": 1.0, "bias": True, "gelu": True, "before": True},
)
"""What products end with that are not plain: panels that are added up, layers, all of it."""
LAYOUTS = (*map("".join, product("CF", repeat=3)), "SSS")
"""Layouts of a, b and C: "C" rows lie together, "F" columns, "S" neither."""


class ProductForm(NamedTuple):
    """What makes a product another variant of a kernel, its types and its tile aside."""

    m: int = 520
    """Clusters take 520 rows, and not 100."""
    n: int = 776
    """These end on a boundary of 16 bytes; 770 columns do not and move by pairs, 771 one by one."""
    layouts: str = "CCC"
    margin: int = 8
    """Elements before each line of the larger array around: with 8 lines begin on boundaries of 16
    bytes, with 1 they do not."""
    ending: Mapping[str, Any] = MappingProxyType({})
    wide: bool = False
    """Whether halves are added up in a float32 C."""


FORMS = (
    *(ProductForm(layouts=layouts) for layouts in LAYOUTS),
    *(ProductForm(517, 771, layouts, 1) for layouts in LAYOUTS),
    *(ProductForm(ending=ending) for ending in ENDINGS),
    *(ProductForm(ending=ending, wide=True) for ending in ({}, *ENDINGS)),
    *(ProductForm(layouts="CCF", ending=ending) for ending in ENDINGS),
    *(ProductForm(517, 771, margin=1, ending=ending) for ending in ENDINGS),
    ProductForm(layouts="CCS", ending=ENDINGS[-1]),
    ProductForm(100),
    ProductForm(100, wide=True),
    ProductForm(100, ending=ENDINGS[0], wide=True),
    ProductForm(n=770),
    ProductForm(n=771),
    ProductForm(n=771, wide=True),
    ProductForm(100, 771),
    ProductForm(100, 771, wide=True),
)
"""How operands lie is told apart with plain products, endings by how C lies: these are different
parts of a kernel."""


def forms_of(dtype: str) -> list[ProductForm]:
    """The `FORMS` in which this element type is tried."""
    every = FORMS if dtype != "float16" else [x for x in FORMS if x.layouts == "CCC"]
    return [form for form in every if not form.wide or dtype in HALVES]
