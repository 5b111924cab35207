"""Products that our kernels are tried on, step by step: edges, repeated runs, endings, layouts."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from gpu.gemm_cases import GemmCase, Variant

from tiledask.tile.backend import HALVES

__all__ = ["STEPS"]


_ENDINGS = (
    {"beta": 1.0},
    {"bias": True},
    {"bias": True, "gelu": True},
    {"beta": 1.0, "bias": True, "gelu": True, "before": True},
)
"""What products end with that are not plain: panels that are added up, layers, all of it."""
_LAYOUTS = (*map("".join, product("CF", repeat=3)), "SSS")


class ProductForm(NamedTuple):
    """What makes a product another variant of a kernel, its types and its tile aside."""

    m: int = 520
    """Clusters take 520 rows, and not 100."""
    n: int = 776
    """These end on a boundary of 16 bytes; 770 columns do not and move by pairs, 771 one by one."""
    layouts: str = "CCC"
    margin: int = 8
    ending: Mapping[str, Any] = MappingProxyType({})
    wide: bool = False
    """Whether halves are added up in a float32 C."""


def _every_form() -> Iterator[ProductForm]:
    """Layouts of operands come with plain products, endings with layouts of C: these are
    different parts of a kernel."""
    for layouts in _LAYOUTS:
        yield ProductForm(layouts=layouts)
        yield ProductForm(517, 771, layouts, 1)
    yield ProductForm(wide=True)
    for ending in _ENDINGS:
        yield ProductForm(ending=ending)
        yield ProductForm(ending=ending, wide=True)
        yield ProductForm(layouts="CCF", ending=ending)
        yield ProductForm(517, 771, margin=1, ending=ending)
    yield ProductForm(layouts="CCS", ending=_ENDINGS[-1])
    yield ProductForm(100, ending=_ENDINGS[0], wide=True)
    yield ProductForm(n=770)
    for m, n in ((100, 776), (520, 771), (100, 771)):
        yield ProductForm(m, n)
        yield ProductForm(m, n, wide=True)


def _forms_of(dtype: str) -> list[ProductForm]:
    """The forms in which this element type is tried."""
    return [
        form
        for form in _every_form()
        if (dtype != "float16" or form.layouts == "CCC") and (not form.wide or dtype in HALVES)
    ]


def _edges(variant: Variant, less: int) -> Iterator[tuple[str, list[GemmCase]]]:
    """Sizes around whole tiles, the smallest first."""
    extents = [(1, t - 1, t, t + 1, 2 * t + 3) for t in variant.tile or (64, 64, 64)]
    sizes = sorted(product(*extents), key=lambda size: (np.prod(size), size))
    yield "", [variant.case(*size) for size in sizes[::less]]


def _batches(variant: Variant, less: int) -> Iterator[tuple[str, list[GemmCase]]]:
    cases = [
        variant.case(130, 264, 70, batch=7, shared=shared, bias=True) for shared in ("", "a", "b")
    ]
    yield "", cases


def _many(variant: Variant, less: int) -> Iterator[tuple[str, list[GemmCase]]]:
    """Persistent blocks take many tiles, the raster has many bands, stages go round and round."""
    m, n, k = (x // less for x in (4096, 4224, 2048))
    outs = ("",) if variant.dtype in ("float32", "tf32") else ("", "float32")
    # columns that end on a boundary of 16 bytes, and not
    yield "", [variant.case(m + 3, n + 8, k + 3, out_dtype=out) for out in outs]
    yield "odd", [variant.case(m + 3, n + 3, k + 3)]


def _forms(variant: Variant, less: int, ended: bool) -> Iterator[tuple[str, list[GemmCase]]]:
    """What makes a product another variant of a kernel: what tests on a GPU launch too, and what
    machine code is made beforehand for. A group for each way to lie."""
    found: dict[str, list[GemmCase]] = {}
    for form in _forms_of(variant.element):
        if bool(form.ending) != ended:
            continue
        ending = {"alpha": -0.5, **form.ending} if ended else {}
        if "beta" in ending:
            ending["beta"] = 2.0  # seen in the result, and the same variant
        sizes = (form.m, form.n, 333) if less == 1 else (form.m // 4, form.n // 4, 83)
        name = f"{form.layouts}, margin {form.margin}"
        found.setdefault(name, []).append(
            variant.case(
                *sizes,
                layouts=form.layouts,
                margin=form.margin,
                out_dtype="float32" if form.wide else "",
                **ending,
            )
        )
    yield from list(found.items())[:: 1 if less == 1 else 3]


def _repeated(variant: Variant, less: int) -> Iterator[tuple[str, list[GemmCase]]]:
    yield "", [variant.case(1400 // less + 5, 1120 // less + 16, 800 // less + 5)]
    yield "few tiles", [variant.case(1024 // less - 3, 1024 // less - 8, 4096 // less - 3)]
    yield "odd", [variant.case(*(x // less + 5 for x in (1400, 1100, 800)))]


STEPS = {
    "edges": _edges,
    "repeat": _repeated,
    "many tiles": _many,
    "batches": _batches,
    "epilogue": partial(_forms, ended=True),
    "layouts": partial(_forms, ended=False),
}
"""(variant, what sizes are divided by) -> (name, products) of each group of a step."""
