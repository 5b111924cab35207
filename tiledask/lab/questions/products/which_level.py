"""6: cores wait for data. Tiles are changed under one blocking, then blocks under one tile."""

from math import ceil

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.exercises.products.levels import run_blocks
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.readers import device as device_name
from tiledask.lab.questions.shares import each
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

TILES = (1, 2, 4, 8, 16, 32)
ITEM = 4
"""Bytes of a float32."""
FIXED = 32
"""The tile under which blocks are changed."""


def _rows(size: int, workers: int, largest: float) -> tuple[tuple[int, ...], list[int]]:
    """(even rows of A, rows of which the first worker has the part ``largest``)."""
    first = round(largest * size)
    rest, others = size - first, workers - 1
    if min(first, rest // others) < 1:
        raise ConfigError(
            f"{largest:g} of {size} rows on the first of {workers} workers leaves some worker "
            f"without a row; give a part between 0 and 1, or a larger size"
        )
    return even(size, workers), [
        first,
        *(rest // others + (i < rest % others) for i in range(others)),
    ]


def _loaded(size: int, workers: int, tile: int) -> int:
    """Bytes that the tiles of all workers load, each with some columns of B."""
    return sum(td.tile.traffic(size, n, size, tile, ITEM).loaded for n in even(size, workers))


def _allows_all(size: int, workers: int, ridge: float, extent: int) -> int | None:
    """The first tile of ``extent`` or more with which the blocks reach the ridge, if any."""
    flop = 2 * size**3
    if flop / _loaded(size, workers, size) < ridge:  # no tile loads less than the whole
        return None
    tiles = range(min(extent, size), size + 1)
    return next(t for t in tiles if flop / _loaded(size, workers, t) >= ridge)


def work(size: int, workers: int, device: str, largest: float) -> WorkedAnswer:
    """What tiles load and how fast that lets a device be; how long blocks make workers wait."""
    _, uneven = _rows(size, workers, largest)
    hardware = load_device(device)
    ridge = td.tile.ridge(device)
    extent = ceil(ITEM * ridge)
    enough = _allows_all(size, workers, ridge, extent)
    most = 2 * size**3 / _loaded(size, workers, size)
    if enough:
        takes = f"it takes tiles of {enough} to allow all of it"
    else:
        takes = (
            f"no tile allows all of it: a block as one tile gives {most:.4g} of the {ridge:.2f} "
            f"FLOP a byte"
        )
    used, peak = size / workers / max(uneven), hardware.peak("fp32")
    loaded = [_loaded(size, workers, tile) for tile in TILES]
    intensity = [2 * size**3 / nbytes for nbytes in loaded]
    share = [min(1.0, reuse / ridge) for reuse in intensity]
    lines = [
        f"low level, tiles of T in blocks of {size} x {each(even(size, workers))}: A is loaded "
        f"once for each T columns, B for each T rows; T / {ITEM} FLOP a byte where T divides the "
        f"block; what workers send is the same in all rows",
        *(
            f"T = {tile}: {format_bytes(nbytes)} loaded, {reuse:.4g} FLOP a byte, at most "
            f"{part * peak / 1e12:.3g} TFLOP/s, {100 * part:.1f} % of the {device}'s "
            f"{peak / 1e12:g}"
            for tile, nbytes, reuse, part in zip(TILES, loaded, intensity, share, strict=True)
        ),
        f"ridge of the {device}: {peak / 1e12:g}e12 / {hardware.memory_bandwidth / 1e12:g}e12 = "
        f"{ridge:.2f} FLOP a byte: T of {extent} or more where blocks are that wide, or registers "
        f"below the tile",
        f"high level, one tile of {FIXED}, {largest:g} of the rows on the first worker: "
        f"{', '.join(map(str, uneven))} rows; the mean is {size} / {workers} = "
        f"{size / workers:.4g}",
        f"workers are busy {size / workers:.4g} / {max(uneven)} = {100 * used:.1f} % of the time; "
        f"each kernel is as fast as before",
    ]
    return WorkedAnswer(
        f"If all workers are busy alike and the kernels slow, the low level is at fault: on the "
        f"{device} tiles of {TILES[-1]} allow {100 * share[-1]:.0f} % of the peak here, and "
        f"{takes}. If kernels are fast and some workers idle, "
        f"it is the high level: here {100 * (1 - used):.0f} % idle.",
        lines,
        {
            "loaded": loaded,
            "intensity": intensity,
            "share of the peak": share,
            "tile at the ridge": extent,
            "tile that allows all": enough,
            "busy, uneven blocks": used,
        },
    )


def run(cluster: Cluster, size: int, workers: int, device: str, largest: float) -> Comparison:
    """Both experiments, on CPU workers by the NumPy tile kernel, which counts what it loads."""
    import numpy as np

    from tiledask.lab.product_claims import GRID

    rng = np.random.default_rng(6)
    a, b = (rng.integers(-4, 5, (size, size)).astype("float32") for _ in range(2))
    mesh = td.Mesh(cluster, (1, workers))
    A, B = (td.distribute(x, mesh, GRID) for x in (a, b))
    between, rows = ITEM * size * size * (workers - 1), []
    kernel, tiles = ("tiled", TILES) if cluster.backend == "numpy" else ("smem_tiled", (16, 32))
    for tile in tiles:
        C = td.matmul(A, B, algorithm="summa", kernel=kernel, tile=tile)
        loads = _loaded(size, workers, tile)
        note = f"in tiles, {max(spent.multiply for spent in C.spent):.3g} s on the slowest worker"
        rows += [
            Claim(f"T = {tile}: loaded by tiles", loads, None, C.tiles.loaded, "bytes", "equal",
                  note),
            Claim(f"T = {tile}: between workers", between, C.traffic.predicted.total,
                  C.traffic.measured.total, "bytes", "equal"),
        ]  # fmt: skip
    C = td.matmul(A, B, algorithm="summa")
    note = f"in BLAS, {max(spent.multiply for spent in C.spent):.3g} s on the slowest worker"
    rows.append(Claim("library product: between workers", between, C.traffic.predicted.total,
                      C.traffic.measured.total, "bytes", "equal", note))  # fmt: skip
    if cluster.backend == "numpy":  # the tiles that count themselves are NumPy's
        rows += _of_blocks(cluster, a, b, *_rows(size, workers, largest))
    return Comparison(f"{size} x {size} x {size} on {workers} workers: each level changed", rows)


def _of_blocks(cluster: Cluster, a, b, alike, uneven) -> list[Claim]:
    """The same tile under two blockings."""
    rows = []
    for name, blocks in (("even", alike), ("uneven", uneven)):
        done = run_blocks(cluster, a, b, blocks, FIXED)
        most = max(done.flops) / (sum(done.flops) / len(done.flops))
        busy = f"workers busy {100 * done.utilisation:.0f} %"
        rows.append(
            Claim(f"{name} blocks: FLOP of the fullest worker over the mean",
                  max(blocks) * len(blocks) / sum(blocks), None, most, rule=("within", 1e-9),
                  note=f"kernels at {done.rate / 1e9:.3g} GFLOP/s, {busy}")
        )  # fmt: skip
    return rows


QUESTION = CourseQuestion(
    number=6,
    title="A team is parallelizing a product, and its cores are idle, waiting for data",
    asked="A product of {size} x {size} x {size} is spread evenly over {workers} workers, and yet "
    "cores mostly wait for data. Is the blocking over workers at fault, or the tile within them?",
    inputs={
        "size": Input(64, 96, whole(2, 65536), "rows and columns of A and B"),
        "workers": Input(2, 4, whole(2, 64), "workers"),
        "device": Input("H200", "A100-80GB", device_name, "GPU whose limits count"),
        "largest": Input(
            0.75, 0.9, number(above=True), "part of the rows on the first worker, of 1"
        ),
    },
    work=work,
    run=run,
    workers=lambda workers, **_: workers,
    largest_run={"size": 256},
)
