"""Machine code made beforehand, for a GPU that is elsewhere: nothing is compiled there then.

    python -m tiledask.tile.cuda.prebuilt FOLDER --capability 9.0
    TILEDASK_CUBINS=FOLDER python ...

Which variants there are the launches themselves say, asked on arrays that nobody fills.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tiledask.plan.units import format_bytes
from tiledask.tile.backend import HALVES, Array, as_dtype
from tiledask.tile.cuda import build, launch
from tiledask.tile.cuda.hopper_tile import AnyTile, HopperTile, hopper_tiles
from tiledask.tile.cuda.source import KERNELS
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.kernel import Kernel
from tiledask.tile.table import lookup

__all__ = ["FORMS", "Prebuilt", "ProductForm", "forms_of", "prebuild", "variants"]

Variant = tuple[str, tuple[tuple[str, Any], ...]]
"""A kernel's name and its macros."""

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


@dataclass(frozen=True)
class Prebuilt:
    """What `prebuild` put into a folder."""

    count: int
    bytes: int
    seconds: float
    """Seconds of wall clock."""
    compiled: float
    """Seconds of the compiler, of all processes together; 0 if all was there."""

    def __str__(self) -> str:
        return (
            f"{self.count} variants, {format_bytes(self.bytes)}, {self.compiled:.0f} s of the "
            f"compiler in {self.seconds:.0f} s"
        )


def variants(
    capability: str = "9.0", multiprocessors: int = 132, kernels: Iterable[str] = KERNELS
) -> list[Variant]:
    """What the kernels' tests, `make gpu` and the bench of tiles launch on such a GPU.

    Every kernel with every tile and element type in each of `FORMS`; of float16, which only
    exchanges the types of an instruction, those that lie row by row; and the Hopper kernel in all
    its `hopper_tiles` as it is timed.

    >>> len(variants("9.0", kernels=["smem_tiled"]))
    10
    """
    number = tuple(map(int, capability.split(".")))
    found: dict[Variant, None] = {}
    for kernel in map(lookup, kernels):
        enough = number >= (kernel.capability or (0, 0))
        if not (number == kernel.capability if kernel.exactly else enough):
            continue
        for name, a, b, out, tile, epilogue in _products(kernel):
            plan = launch.planned(name, a, b, out, tile, epilogue, multiprocessors)
            found[name, tuple(sorted(plan.macros.items()))] = None
    return list(found)


def _products(
    kernel: Kernel,
) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray, AnyTile | None, Epilogue]]:
    """(kernel, a, b, out, tile, epilogue) of what is launched; nobody fills the arrays."""
    for dtype in (*kernel.dtypes, *(("float32",) if kernel.tf32 else ())):
        for form, tile in product(forms_of(dtype), kernel.tiles_for(dtype)):
            lie = partial(_placed, margin=form.margin)
            a, b = (
                lie((form.m, 333), dtype, form.layouts[0]),
                lie((333, form.n), dtype, form.layouts[1]),
            )
            wide = "float32" if form.wide else dtype
            out, before = (lie((form.m, form.n), wide, form.layouts[2]) for _ in "ab")
            yield kernel.name, a, b, out, tile, _epilogue(form.ending, before)
    if kernel.name == "wgmma_ws_persistent":
        ways = [None, *hopper_tiles().values()]
        # as products are timed: large, plain, rows or columns together
        ways += [HopperTile(raster=raster) for raster in (1, 2)]
        a, out = np.empty((8192, 8192), as_dtype("bfloat16")), np.empty((8192, 8192), np.float32)
        for way, x, y in product(ways, (a, a.T), (a, a.T)):
            yield kernel.name, x, y, np.empty_like(a), way, Epilogue()
        for way in ways:
            yield kernel.name, a, a, out, way, Epilogue(beta=1.0)
        # too few tiles for all blocks, and so cut along k
        for dtype, tile in product(kernel.dtypes, (None, *kernel.tiles)):
            a, b, c = (
                np.empty(s, as_dtype(dtype)) for s in ((1024, 16384), (16384, 1024), (1024,) * 2)
            )
            yield kernel.name, a, b, c, tile, Epilogue()


def forms_of(dtype: str) -> list[ProductForm]:
    """The `FORMS` in which this element type is tried."""
    every = FORMS if dtype != "float16" else [x for x in FORMS if x.layouts == "CCC"]
    return [form for form in every if not form.wide or dtype in HALVES]


def _placed(shape: tuple[int, int], dtype: str, layout: str, margin: int) -> np.ndarray:
    """An array in the middle of a larger one, like the tests': "C" by rows, "F" by columns."""
    rows, columns = reversed(shape) if layout == "F" else shape
    step, each = 2 if layout == "S" else 1, 16 // as_dtype(dtype).itemsize
    width = -(-columns * step // each) * each + 2 * margin
    around = np.empty(16 * (rows * width + each), as_dtype(dtype))
    begin = -around.ctypes.data % 16 // around.itemsize  # NumPy's memory need not be on a boundary
    found = around[begin : begin + rows * width].reshape(rows, width)[:, margin:][
        :, : columns * step
    ]
    return found.T if layout == "F" else found[:, ::step]


def _epilogue(ending: Mapping[str, Any], before: Array) -> Epilogue:
    bias = np.empty(before.shape[-1], np.float32) if ending.get("bias") else None
    return Epilogue(
        1.0,
        ending.get("beta", 0.0),
        bias,
        "gelu" if ending.get("gelu") else None,
        before if ending.get("before") else None,
    )


def prebuild(
    folder: Path, wanted: Iterable[Variant], capability: str = "9.0", processes: int | None = None
) -> Prebuilt:
    """Compiles ``wanted`` into ``folder``, in so many processes; what is there already is kept.

    The folder, named in TILEDASK_CUBINS on a machine of that capability and this version of the
    kernels, is looked into before anything is compiled. Raises KernelError for what does not
    compile.
    """
    begun, wanted = time.perf_counter(), list(wanted)
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=spawning) as pool:
        made = list(pool.map(partial(_bring, Path(folder), capability), wanted))
    return Prebuilt(
        len(made),
        sum(size for size, _ in made),
        time.perf_counter() - begun,
        sum(seconds for _, seconds in made),
    )


def _bring(folder: Path, capability: str, variant: Variant) -> tuple[int, float]:
    name, macros = variant
    return build.bring(folder, name, dict(macros), build.arch_of(name, capability))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tiledask.tile.cuda.prebuilt", description=__doc__
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--capability", default="9.0", help="such as 9.0, of an H100 or H200")
    parser.add_argument("--processes", type=int)
    given = parser.parse_args()
    print(prebuild(given.folder, variants(given.capability), given.capability, given.processes))


if __name__ == "__main__":
    main()
