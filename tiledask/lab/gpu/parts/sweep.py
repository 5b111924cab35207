"""The fastest way of the kernel for Hopper to go over C: tile, ring, cluster, raster, blocks.

what differs most   ->  the fastest  ->  all around it  ->  the fastest, remembered

Contenders take turns as in speed.py, beside cuBLAS; one whose result is wrong has no time. What is
remembered (tile/choice/tuning_cache.py) is what `td.tile.tuned` gives from then on.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tiledask.errors import KernelError
from tiledask.lab.bench.tiles.clock import Run, clock_for
from tiledask.lab.bench.tiles.device import facts_of
from tiledask.lab.bench.tiles.rounds import Contender, Gemm, Set
from tiledask.lab.bench.tiles.ways import library, ways_of
from tiledask.lab.gpu.part import GpuPart, Notes
from tiledask.lab.gpu.parts.kernels import tile_name
from tiledask.lab.gpu.parts.sizes import shrink
from tiledask.lab.gpu.parts.speed import race
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.table import Grid
from tiledask.plan.units import format_seconds
from tiledask.tile.choice.tuning_cache import key_of, remember
from tiledask.tile.product import matmul
from tiledask.tile.table import kernels

__all__ = ["PARTS", "run"]

KERNEL = {"cupy": "wgmma_ws_persistent", "numpy": "tiled"}
_SIZES = (
    (8192,) * 3,
    (4096,) * 3,
    (16384,) * 3,
    (65536, 1024, 4096),
    (1024, 1024, 16384),
    (2048,) * 3,
)
_RASTERS = (4, 8, 16, 32)
_LIBRARIES = library("cupy"), library("numpy")


def run(notes: Notes, arrays: str = "cupy") -> None:
    """Run two contests for each product, and add a row for what is remembered."""
    kernel, less = kernels[KERNEL[arrays]], shrink(arrays)
    if kernel.why_not:
        notes.add(kernel.name, "skipped", why=kernel.why_not)
        return
    precision = "bf16" if arrays == "cupy" else "fp32"
    works = [Gemm(*(max(64, x // less) for x in size), precision) for size in _SIZES]
    works = list(dict.fromkeys(works))[: None if arrays == "cupy" else 2]
    if arrays == "numpy":
        tiles = [(extent,) * 3 for extent in (64, 128, 256, 512)]
    else:
        from tiledask.tile.cuda.hopper_tile import hopper_tiles

        tiles = list(hopper_tiles().values())
    clock, device = clock_for(arrays), facts_of(arrays)["name"]
    for number, work in enumerate(works):
        rest = notes.left() - 25
        share = min(rest, 2 * rest / (len(works) - number)) / 2
        if notes.has(f"{work}: remembered"):
            continue
        if share < 3:
            notes.add(f"{work}: not begun", "skipped", why="there was no time for it")
            continue
        base = ways_of(work, (), arrays)[:1]
        first = [*base, *(_way(kernel.name, tile) for tile in tiles)]
        found = race(notes, work, first, clock, share, 2 * number, what="what differs most")
        best = _fastest(found)
        if best is not None and arrays == "cupy":
            near = [*base, *(_way(kernel.name, tile) for tile in _around(best["way"]))]
            again = race(notes, work, near, clock, share, 2 * number + 1, what="around the best")
            best = _fastest(again) or best
        if best is not None:
            _remember(notes, work, kernel.name, device, best)


def _around(name: str) -> list[Any]:
    """All that has the tile and splits of the one called ``name``: rings, clusters, rasters, how C
    leaves; and twice and half as many slices."""
    from tiledask.tile.cuda.hopper_tile import HopperTile, named

    best = named(name)
    found = [best, *(replace(best, splits=s) for s in (2 * best.splits, -(-best.splits // 2)))]
    for staged, cluster, raster, fewer in product((True, False), (2, 1), _RASTERS, (0, 1)):
        most = HopperTile(best.tile, staged=staged).stages
        try:
            found.append(
                HopperTile(
                    best.tile,
                    most - fewer,
                    cluster,
                    raster,
                    staged,
                    best.blocks,
                    splits=best.splits,
                )
            )
        except KernelError:  # not so many stages
            continue
    return list(dict.fromkeys(found))


def _way(kernel: str, tile: Any) -> Contender:
    def prepare(work: Gemm, sets: Sequence[Set]) -> Run:
        def run(i: int) -> None:
            a, b, out = sets[i]
            matmul(a, b, kernel, tile, out)

        return run

    return Contender(tile_name(tile), prepare)


def _fastest(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    timed = [r for r in found if r["state"] == "timed" and r["way"] not in _LIBRARIES]
    return min(timed, key=lambda row: row["median"], default=None)


def _remember(notes: Notes, work: Gemm, kernel: str, device: str, best: dict[str, Any]) -> None:
    tile = best["way"]
    if kernel == KERNEL["cupy"]:
        from tiledask.tile.cuda.hopper_tile import named

        kept = named(tile)
    else:
        kept = tuple(map(int, tile.split("x")))
    key = key_of(device, kernel, work.dtype.name, work.m, work.n, work.k)
    file = remember(key, kept, best["median"], (work.m, work.n, work.k))
    notes.add(
        f"{work}: remembered",
        "timed",
        kernel=kernel,
        precision=work.precision,
        shape=[work.m, work.n, work.k],
        best=tile,
        seconds=best["median"],
        ratio=best.get("ratio"),
        remembered=file is not None,
    )


# -- for the page --------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> list[Grid]:
    """The fastest of each product, and how much each of them took over the fastest."""
    best = [
        (
            row["key"].partition(":")[0],
            row["best"],
            format_seconds(row["seconds"]),
            f"{row['ratio']:.3f}" if row.get("ratio") else "-",
        )
        for row in rows
        if "best" in row
    ]
    head = ("product", "fastest", "time", "speed / library")
    found = [Grid(head, best, "What is remembered", left=(0, 1))]
    for contest, raced in _contests(rows).items():
        timed = _timed(raced)
        cells = [
            (row["way"], format_seconds(row["median"]), f"{row['median'] / timed[0]['median']:.3f}")
            for row in timed[:_SHOWN]
        ]
        cells += [(row["way"], row["state"], "") for row in raced if row["state"] in _BAD]
        found.append(Grid(("way", "time", "/ fastest"), cells, contest))
    return found


_SHOWN = 8
"""Ways of a contest that the page shows."""
_BAD = ("wrong", "failed")


def _contests(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each contest, by its name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "way" in row:
            found.setdefault(row["key"].removesuffix(f": {row['way']}"), []).append(row)
    return found


def _timed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((r for r in rows if r["state"] == "timed"), key=lambda row: row["median"])


def figure(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """The ways of the first contest as bars of TFLOP/s, the fastest first."""
    contest, raced = next(iter(_contests(rows).items()), ("", []))
    timed = _timed(raced)
    if not timed:
        return None
    from tiledask.lab.gpu.parts.bars import bars  # loads matplotlib

    speeds = {"TFLOP/s": [row["TFLOP/s"] for row in timed]}
    return bars(
        [row["way"] for row in timed], speeds, "TFLOP/s, median", f"{contest}: ways to go over C"
    )


PARTS = (
    GpuPart(
        "sweep",
        "Tile, ring, cluster and raster of the kernel for Hopper; the best remembered.",
        4.0,
        0.7,
        ("cupy",),
        run,
        tables,
        figure,
    ),
)
