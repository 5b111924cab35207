"""Whether our kernels are right: first each once, then every edge, layout and ending.

first      the device, its arrays, a tensor map; every kernel at its smallest; then, step by step,
           what the kernel for Hopper needs: a ring of stages, a cluster, many tiles a block
kernels    every kernel, tile and type: edges, repeated runs, batches, many tiles, layouts

Each product lies in the middle of NaN and is compared with float64 (cases.py).
"""

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from tiledask.errors import KernelError
from tiledask.lab.gpu.part import GpuPart, Notes
from tiledask.lab.gpu.parts.cases import GemmCase, by_kernel, check, differing, forms_of
from tiledask.lab.gpu.parts.sizes import memory_of_device, shrink
from tiledask.lab.table import Grid
from tiledask.tile.backend import as_dtype, namespace, probe, to_numpy
from tiledask.tile.choice.tuning import by
from tiledask.tile.cuda import source
from tiledask.tile.table import kernels, lookup

__all__ = ["OURS", "PARTS", "STEPS", "Variant", "main", "variants"]

OURS = {"cupy": source.KERNELS[::-1], "numpy": ("tiled", "blas")}
"""The kernels that are tried on CuPy's arrays, the most important first; and, to rehearse, those
on NumPy's."""
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
_TIMES = 20
"""Runs that must agree to the bit."""


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
        return GemmCase(*sizes, dtype=_element(self.dtype), tf32=tf32, seed=seed, **how)

    @property
    def run(self) -> partial:
        """What `check` runs."""
        precision = "tf32" if self.dtype == "tf32" else None
        return partial(by_kernel, kernel=self.kernel, tile=self.tile, precision=precision)


def _element(dtype: str) -> str:
    return "float32" if dtype == "tf32" else dtype


def variants(arrays: str = "cupy") -> list[Variant]:
    """Every kernel of OURS, with every tile and type that it is built for; default tiles first."""
    found = [
        Variant(name, tile, dtype)
        for name, kernel in ((name, lookup(name)) for name in OURS[arrays])
        for dtype in (*kernel.dtypes, *(("tf32",) if kernel.tf32 else ()))
        for tile in kernel.tiles_for(_element(dtype)) or (kernel.tile and (32, 32, 32),)
        if dtype != "float64"
    ]
    firsts = {(v.kernel, v.dtype): v for v in reversed(found)}
    return sorted(found, key=lambda v: (v.dtype == "float16", firsts[v.kernel, v.dtype] != v))


# -- first ---------------------------------------------------------------------------------------


def first(notes: Notes, arrays: str = "cupy") -> None:
    """Each thing once, from what everything rests on to what is most likely to break."""
    if not _device(notes, arrays):
        return
    xp = namespace(arrays)
    if arrays == "cupy":
        _halves(notes, xp)
        _tensor_map(notes, xp)
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


def _halves(notes: Notes, xp: Any) -> None:
    """What everything here asks of CuPy's arrays of bfloat16."""
    dtype = as_dtype("bfloat16")
    values = np.arange(-12, 12, dtype=np.float32).reshape(4, 6).astype(dtype)

    def from_numpy() -> Any:
        return xp.asarray(values), values

    def nan_into_a_view() -> Any:
        x, wanted = xp.zeros((8, 12), dtype), np.zeros((8, 12), dtype)
        for each in (x, wanted):
            each[1:-1, 2:-2:2] = np.nan
        return x, wanted

    def strided_copy() -> Any:
        x = xp.zeros((8, 12), dtype)
        x[2:6, ::2] = xp.asarray(values)
        return x[2:6, ::2], values

    def transposed_copy() -> Any:
        return xp.array(xp.asarray(values).T, order="C"), values.T

    def broadcast() -> Any:
        return xp.broadcast_to(xp.asarray(values), (3, 4, 6)), np.broadcast_to(values, (3, 4, 6))

    def to_float32() -> Any:
        return xp.asarray(values).astype(np.float32), values.astype(np.float32)

    def from_float32() -> Any:
        third = np.full((4, 6), 1 / 3, np.float32)
        return xp.asarray(third).astype(dtype), third.astype(dtype)

    def added() -> Any:
        x = xp.asarray(values)
        return x + x, values + values

    for what in (
        from_numpy,
        nan_into_a_view,
        strided_copy,
        transposed_copy,
        broadcast,
        to_float32,
        from_float32,
        added,
    ):
        key = f"bfloat16 arrays: {what.__name__.replace('_', ' ')}"
        if not notes.begin(key, step="arrays"):
            continue
        with notes.failing(key):  # CuPy raises its own kinds, and its compiler too
            got, wanted = what()
            back, wanted = to_numpy(got), np.ascontiguousarray(wanted)
            same = back.dtype == wanted.dtype and back.tobytes() == wanted.tobytes()
            got, wanted = (f"{x.dtype} {x.ravel()[:8]}" for x in (back, wanted))
            notes.judge(key, "" if same else f"got {got}, wanted {wanted}")


def _tensor_map(notes: Notes, xp: Any) -> None:
    key, info = "a tensor map", kernels["wgmma_ws_persistent"]
    if not notes.begin(key, step="map"):
        return
    if info.why_not:
        notes.add(key, "skipped", why=info.why_not)
        return
    from tiledask.tile.cuda import tensor_map
    from tiledask.tile.cuda.operands import address_of

    x = xp.zeros((128, 256), as_dtype("bfloat16"))
    with notes.failing(key, KernelError):
        made = tensor_map.encode(
            "bfloat16", address_of(x), (256, 128, 1), (512, 65536), (64, 64, 1)
        )
        right = made.nbytes == 128 and made.tobytes().strip(b"\0") != b""
        notes.judge(key, "" if right else f"{made.nbytes} bytes, {made.tobytes()[:32]!r} ...")


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


# -- kernels -------------------------------------------------------------------------------------


def every(notes: Notes, arrays: str = "cupy") -> None:
    """Step by step, in each of them every variant; what there was no time for is said."""
    xp, found, less = namespace(arrays), variants(arrays), shrink(arrays)
    left_out: dict[str, int] = {}
    for step, groups in STEPS.items():
        for variant in found:
            for name, cases in groups(variant, less):
                key = f"{step}: {variant}{name and f', {name}'}"
                if notes.has(key):
                    continue
                if notes.left() < 15:
                    left_out[step] = left_out.get(step, 0) + 1
                elif why := kernels[variant.kernel].why_not:
                    notes.add(key, "skipped", why=why, **_facts(step, variant, cases[0]))
                elif step == "repeat":
                    _repeats(notes, xp, key, variant, cases)
                else:
                    _group(notes, xp, key, step, variant, cases)
    _sanitized(notes, found)
    for step, count in left_out.items():
        notes.add(
            f"{step}: not begun",
            "skipped",
            step=step,
            groups=count,
            why=f"there was no time for {count} groups of {step}",
        )


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
    for form in forms_of(_element(variant.dtype)):
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


def _group(
    notes: Notes, xp: Any, key: str, step: str, variant: Variant, cases: Sequence[GemmCase]
) -> None:
    """One row for all of ``cases``: their worst; the first that is wrong ends it."""
    worst = None
    for number, case in enumerate(cases, 1):
        notes.begin(key, seconds=45, **_facts(step, variant, case))
        try:
            found = check(variant.run, case, xp)
        except (KernelError, MemoryError) as error:
            notes.add(key, "failed", products=number, why=f"{case}: {error}")
            return
        if worst is None or found.share > worst.share or not found.right:
            worst = found
        if not found.right:
            break
    wrong = "" if worst.right else f"{case}: {worst}; product {number} of {len(cases)}"
    notes.judge(key, wrong, products=number, error=worst.error, limit=worst.limit)


def _repeats(notes: Notes, xp: Any, key: str, variant: Variant, cases: Sequence[GemmCase]) -> None:
    """The same product again and again: threads that race do not always lose."""
    (case,) = cases
    notes.begin(key, seconds=60, **_facts("repeat", variant, case))
    with notes.failing(key, KernelError, MemoryError):
        differ = differing(variant.run, case, _TIMES, xp)
        wrong = f"{differ} of {_TIMES} more runs on the same operands gave other bits"
        notes.judge(key, wrong if differ else "", products=1 + _TIMES)


# -- compute-sanitizer ---------------------------------------------------------------------------

_TOOLS = ("memcheck", "synccheck")
"""racecheck does not know the copy engine."""
_SAID = 9
"""The exit status that the tool is told to end with if it has something to say."""


def _sanitized(notes: Notes, found: Sequence[Variant]) -> None:
    """Small products under compute-sanitizer, where that is installed."""
    program = shutil.which("compute-sanitizer")
    firsts = list({(v.kernel, v.dtype): v for v in reversed(found)}.values())[::-1]
    if program is None:
        notes.add(
            "compute-sanitizer",
            "skipped",
            step="sanitizer",
            why=("there is no compute-sanitizer on PATH; it comes with the CUDA toolkit"),
        )
        return
    for tool, variant in product(_TOOLS, firsts):
        key = f"{tool}: {variant}"
        if notes.has(key) or kernels[variant.kernel].why_not or notes.left() < 60:
            continue
        patience = min(150.0, notes.left() - 15)
        case = variant.case(1, 1, 1)
        notes.begin(key, seconds=patience + 15, **_facts("sanitizer", variant, case))
        command = [
            program,
            "--tool",
            tool,
            "--error-exitcode",
            str(_SAID),
            sys.executable,
            "-m",
            "tiledask.lab.gpu.parts.kernels",
            json.dumps(asdict(variant)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
        except subprocess.TimeoutExpired:
            notes.add(key, "failed", why=f"{tool} did not end within {patience:.0f} s")
            continue
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        about = " | ".join([line for line in said if "========= " in line][:8] or said[-3:])
        state = {0: "right", _SAID: "wrong"}.get(done.returncode, "failed")
        notes.add(
            key,
            state,
            why="" if state == "right" else f"ended with {done.returncode}: {about[:1500]}",
        )


def main(arguments: Sequence[str]) -> int:
    """What runs under compute-sanitizer: a variant on a few small shapes."""
    given = json.loads(arguments[0])
    variant = Variant(given["kernel"], given["tile"] and tuple(given["tile"]), given["dtype"])
    tile = variant.tile or (64, 64, 64)
    around = tuple(2 * t + 3 for t in tile)
    cases = [variant.case(1, 1, 1), variant.case(*around), variant.case(*around, bias=True, beta=1)]
    wrong = [
        str(found)
        for case in cases
        if not (found := check(variant.run, case, namespace(lookup(variant.kernel).arrays))).right
    ]
    print("\n".join(wrong))
    return 1 if wrong else 0


# -- for the page --------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> list[Grid]:
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
    return [Grid(("products that were right", *steps), cells)]


def _cell(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    for state in ("wrong", "failed", "skipped"):
        if any(row["state"] == state for row in rows):
            return state
    return str(sum(row.get("products", 1) for row in rows))


FIRST = GpuPart(
    "first",
    "Each kernel once: whatever is broken at all shows here.",
    2.5,
    0.5,
    ("cupy",),
    first,
    tables,
)
KERNELS = GpuPart(
    "kernels",
    "Every kernel against float64: edges, repeated runs, endings, batches, layouts.",
    5.0,
    1.0,
    ("cupy",),
    every,
    tables,
)
PARTS = (FIRST, KERNELS)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
