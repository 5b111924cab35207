"""Whether our kernels are right: each once, before anything rests on them.

The device; every kernel at its smallest; then, step by step, what the kernel for Hopper needs: a
ring of stages, a cluster, many tiles a block. Edges, layouts, endings and repeated runs of each are
tests (tests/tile/cuda/test_cuda_gpu.py). Each product lies in the middle of NaN and is compared
with float64 (cases.py).
"""

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from tiledask.errors import KernelError
from tiledask.lab.gpu.part import GpuPart, Notes, PartTable
from tiledask.lab.gpu.parts.cases import GemmCase, by_kernel, check
from tiledask.lab.gpu.parts.sizes import memory_of_device, shrink
from tiledask.tile.backend import namespace, probe
from tiledask.tile.choice.tuning import by
from tiledask.tile.cuda import source
from tiledask.tile.table import kernels, lookup

__all__ = ["OURS", "PARTS", "Variant", "element", "variants"]

OURS = {"cupy": source.KERNELS[::-1], "numpy": ("tiled", "blas")}
"""The kernels that are tried on CuPy's arrays, the most important first; and, to rehearse, those
on NumPy's."""
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


@dataclass(frozen=True)
class Variant:
    """A kernel with a tile, for one type."""

    kernel: str
    tile: Any
    """None for a kernel without one; for the one for Hopper also a HopperTile."""
    dtype: str
    """ "tf32" for float32 that enters rounded."""

    def __str__(self) -> str:
        return f"{self.kernel}{(self.tile and f' {by(self.tile)}') or ''}, {self.precision}"

    @property
    def precision(self) -> str:
        return _SHORT.get(self.dtype, self.dtype)

    def case(self, *sizes: int, **how: Any) -> GemmCase:
        """A product of this type, on numbers that differ from size to size."""
        tf32, seed = self.dtype == "tf32", zlib.crc32(repr((sizes, how)).encode())
        return GemmCase(*sizes, dtype=element(self.dtype), tf32=tf32, seed=seed, **how)

    @property
    def run(self) -> partial:
        """What `check` runs."""
        precision = "tf32" if self.dtype == "tf32" else None
        return partial(by_kernel, kernel=self.kernel, tile=self.tile, precision=precision)


def element(dtype: str) -> str:
    """The type in memory."""
    return "float32" if dtype == "tf32" else dtype


def variants(arrays: str = "cupy") -> list[Variant]:
    """Every kernel of OURS, with every tile and type that it is built for; default tiles first."""
    found = [
        Variant(name, tile, dtype)
        for name, kernel in ((name, lookup(name)) for name in OURS[arrays])
        for dtype in (*kernel.dtypes, *(("tf32",) if kernel.tf32 else ()))
        for tile in kernel.tiles_for(element(dtype)) or (kernel.tile and (32, 32, 32),)
        if dtype != "float64"
    ]
    firsts = {(v.kernel, v.dtype): v for v in reversed(found)}
    return sorted(found, key=lambda v: (v.dtype == "float16", firsts[v.kernel, v.dtype] != v))


def first(notes: Notes, arrays: str = "cupy") -> None:
    """Each thing once, from what everything rests on to what is most likely to break."""
    if not _device(notes, arrays):
        return
    xp = namespace(arrays)
    firsts = {(v.kernel, v.dtype): v for v in reversed(variants(arrays))}
    for variant in sorted(firsts.values(), key=lambda v: -OURS[arrays].index(v.kernel)):
        for sizes in (variant.tile or (64, 64, 64), (1, 1, 1)):
            _one(notes, xp, "one tile", variant, variant.case(*sizes))
    for step, variant, case in _steps_up(arrays):
        _one(notes, xp, step, variant, case)


def _steps_up(arrays: str) -> list[tuple[str, Variant, GemmCase]]:
    """What the most difficult kernel needs, one thing more at each step."""
    usual, less = variants(arrays)[0], shrink(arrays)
    alone = paired = direct = usual
    if arrays == "cupy":
        from tiledask.tile.cuda.hopper_tile import HopperTile

        alone, paired, direct = (
            replace(usual, tile=HopperTile(usual.tile, **how))
            for how in ({"cluster": 1}, {"cluster": 2}, {"staged": False})
        )
    many = usual.case(*(max(x // less, low) for x, low in ((4096, 256), (4096, 256), (512, 128))))
    ragged = usual.case(384, 520, 328)
    found = [
        ("ring", usual, usual.case(128, 256, 256)),
        ("cluster", alone, usual.case(256, 256, 64)),
        ("cluster", paired, usual.case(256, 256, 64)),
        ("many tiles", usual, many),
        ("many tiles", direct, many),
        ("ragged", usual, ragged),
    ]
    turned = ["".join(lies) for lies in product("CF", repeat=3)][1:]
    found += [("layouts", usual, replace(ragged, layouts=lies)) for lies in turned]
    return list(dict.fromkeys(found))


def _device(notes: Notes, arrays: str) -> bool:
    """Whether there is one; and which kernels it can run."""
    if notes.begin("the device", seconds=120, step="probe"):
        found = probe()
        if arrays == "cupy" and not found.usable:
            notes.add("the device", "failed", why=found.reason)
            return False
        can = {name: kernels[name].why_not or "can run" for name in OURS[arrays]}
        notes.add(
            "the device",
            "right",
            kernels=can,
            memory=memory_of_device(arrays),
            devices=[asdict(device) for device in found.devices],
        )
    return arrays == "numpy" or probe().usable


def _one(notes: Notes, xp: Any, step: str, variant: Variant, case: GemmCase) -> None:
    key = f"{step}: {variant}, {case}"
    facts = _facts(step, variant, case)
    if not notes.begin(key, seconds=60, **facts):
        return
    if why := kernels[variant.kernel].why_not:
        notes.add(key, "skipped", why=why)
        return
    with notes.failing(key, KernelError, MemoryError):
        found = check(variant.run, case, xp)
        wrong = "" if found.right else str(found)
        notes.judge(key, wrong, error=found.error, limit=found.limit)


def _facts(step: str, variant: Variant, case: GemmCase) -> dict[str, Any]:
    return {
        "step": step,
        "kernel": variant.kernel,
        "precision": variant.precision,
        "tile": variant.tile and by(variant.tile),
        "orders": case.layouts,
        "case": str(case),
        "shape": [case.m, case.n, case.k],
    }


# -- for the page --------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> list[PartTable]:
    """A row per kernel and type, a column per step: how many products were right."""
    rows = [row for row in rows if row.get("kernel")]
    steps = list(dict.fromkeys(row["step"] for row in rows))
    named = list(dict.fromkeys((row["kernel"], row["precision"]) for row in rows))
    cells = [
        (
            f"{kernel}, {precision}",
            *(
                _cell(
                    [
                        r
                        for r in rows
                        if (r["kernel"], r["precision"], r["step"]) == (kernel, precision, step)
                    ]
                )
                for step in steps
            ),
        )
        for kernel, precision in named
    ]
    return [PartTable(("products that were right", *steps), cells)]


def _cell(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    for state in ("wrong", "failed", "skipped"):
        if any(row["state"] == state for row in rows):
            return state
    return str(sum(row.get("products", 1) for row in rows))


PARTS = (
    GpuPart(
        "first",
        "Each kernel once: whatever is broken at all shows here.",
        2.5,
        ("cupy",),
        first,
        tables,
    ),
)
