"""6 and 8: tiles or blocks at fault; and a tile that is carried to another GPU."""

from math import ceil
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.exercises.levels import run_blocks
from tiledask.lab.puzzles.fields import choice, number, whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.readers import device as device_name
from tiledask.lab.questions.shares import count, each
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile.choice import Prediction, Tuning
from tiledask.tile.choice.residency import refusal

__all__ = ["QUESTION_6", "QUESTION_8"]

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


def work_6(size: int, workers: int, device: str, largest: float) -> WorkedAnswer:
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


def run_6(cluster: Cluster, size: int, workers: int, device: str, largest: float) -> Comparison:
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


QUESTION_6 = CourseQuestion(
    number=6,
    title="A team is parallelizing a product, and its cores are idle, waiting for data",
    asked="A product of {size} x {size} x {size} is spread evenly over {workers} workers, and yet "
    "cores mostly wait for data. Is the blocking over workers at fault, or the tile within them?",
    inputs={
        "size": Input(64, whole(2, 65536), "rows and columns of A and B"),
        "workers": Input(2, whole(2, 64), "workers"),
        "device": Input("H200", device_name, "GPU whose limits count"),
        "largest": Input(0.75, number(above=True), "part of the rows on the first worker, of 1"),
    },
    work=work_6,
    run=run_6,
    workers=lambda workers, **_: workers,
    largest_run={"size": 256},
)
KERNELS = "smem_tiled", "sgemm_warptiled", "mma_multistage", "wgmma_ws_persistent"
TILES_8 = 16, 32, 64, 128, 256
"""Of the NumPy tile kernel, which stands in for the GPU's where there is none."""
SIZE = 512
"""Of the product that is measured."""


def _best(kernel: str, device: str, m: int, n: int, k: int) -> Prediction:
    """Of all tiles of ``kernel`` that ``device`` can run, the one that is predicted the fastest."""
    found = td.tile.candidates(kernel, device)
    if not found:
        why = refusal(td.tile.config_of(kernel), device)
        raise ConfigError(f"{kernel} does not run on {device}: {why}; take {KERNELS[0]}")
    return td.tile.order(m, n, k, found, device)[0]


def _described(best: Prediction, name: str, m: int, n: int) -> list[str]:
    tm, tn, tk = best.config.block
    item, stages = best.config.itemsize, best.config.stages
    device, taken = best.levels.device, best.config.shared_bytes
    padding = taken - (tm + tn) * tk * item * stages
    padded = f" + {format_bytes(padding)} besides" if padding else ""
    return [
        f"{name} on the {device.name}: {tm} x {tn} x {tk}, {count(stages, 'stage')}; shared memory "
        f"({tm} + {tn}) x {tk} x {item} B x {stages}{padded} = {format_bytes(taken)} of "
        f"{format_bytes(device.block_shared_bytes)}",
        f"{best.occupancy}",
        f"{td.tile.waves(m, n, best.config, device)}",
        f"at most {best.flops_per_second / 1e12:.4g} TFLOP/s, bound by {best.binding}",
    ]


def work_8(kernel: str, tuned_on: str, runs_on: str, m: int, n: int, k: int) -> WorkedAnswer:
    """Shared memory, occupancy, waves and bound of both tiles on the new device."""
    if tuned_on == runs_on:
        raise ConfigError(f"a tile is carried from {tuned_on} to another device; name two devices")
    old, new = (_best(kernel, device, m, n, k) for device in (tuned_on, runs_on))
    stays, why_not, reached = old.config == new.config, refusal(old.config, runs_on), 0.0
    lines, shown = _described(old, "tuned", m, n), [new]
    if why_not:
        lines.append(f"the same tile on the {runs_on} does not start: {why_not}")
    else:
        carried = td.tile.predict(m, n, k, old.config, runs_on)
        reached = carried.flops_per_second
        if not stays:
            shown = [carried, new]
            lines += _described(carried, "carried over", m, n)
    best, loss = new.flops_per_second, 1 - reached / new.flops_per_second
    faster, gained = best / old.flops_per_second, reached / old.flops_per_second
    lines += _described(new, "the best", m, n)
    lines.append(
        f"the {runs_on} could be {faster:.3g} times as fast as the {tuned_on}; with the old tile "
        f"it is {gained:.3g} times: 1 - {reached / 1e12:.4g} / {best / 1e12:.4g} = "
        f"{100 * loss:.1f} % given away"
    )
    tiles = [" x ".join(map(str, each.config.block)) for each in (old, new)]
    if tiles[0] == tiles[1] and not stays:
        tiles = [f"{t} in {x.config.stages} stages" for t, x in zip(tiles, (old, new), strict=True)]
    answer = (
        f"Nothing: of this product {tiles[1]} is the best tile on both. A tile belongs to its "
        f"device all the same"
        if stays
        else f"The tile belongs to the device it was chosen for: {tiles[0]} of the {tuned_on} "
        f"gives away {100 * loss:.1f} % on the {runs_on}, where {tiles[1]} is best"
    )
    return WorkedAnswer(
        f"{answer}. The blocks over GPUs stay as they are.",
        lines,
        {
            "tile before": list(old.config.block),
            "tile after": list(new.config.block),
            "given away": loss,
            "times as fast, carried": gained,
            "times as fast, tuned anew": faster,
            "blocks a multiprocessor": [old.occupancy.blocks, new.occupancy.blocks],
        },
        lambda: td.plots.roofline(shown),
    )


def _measure(kernel: str, tiles: tuple[Any, ...]) -> tuple[Tuning, list[int], bool]:
    """On a worker: (every tile timed, bytes that each NumPy tile loaded, whether C is right)."""
    tuned = td.tile.tune(
        kernel, SIZE, SIZE, SIZE, candidates=tiles or None, repeats=3, deadline=20.0, progress=False
    )
    if kernel != "tiled":
        return tuned, [], True
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-4, 5, (SIZE, SIZE)).astype("float32") for _ in range(2))
    done = [td.tile.count_traffic(a, b, tile) for tile in tiles]
    return tuned, [t.loaded for _, t in done], all(np.array_equal(c, a @ b) for c, _ in done)


def run_8(
    cluster: Cluster, kernel: str, tuned_on: str, runs_on: str, m: int, n: int, k: int
) -> Comparison:
    """Tiles of one kernel timed on a worker: on its GPU, or the NumPy tile kernel on its CPU."""
    gpu = cluster.backend == "cupy"
    job = cluster.submit(0, _measure, kernel if gpu else "tiled", () if gpu else TILES_8)
    (done,) = cluster.gather([job], "the tiles", 120.0, cancel=True)
    tuned, loaded, right = done
    rows = [
        Claim(f"tile {tile}: loaded", td.tile.traffic(SIZE, SIZE, SIZE, tile, 4).loaded, None,
              nbytes, "bytes", "equal")
        for tile, nbytes in zip(TILES_8, loaded, strict=False)
    ] + [
        Claim("C is A B, every number", measured=right, rule="true"),
    ]  # fmt: skip
    place = {t.tile: i for i, t in enumerate(sorted(tuned.trials, key=lambda t: t.predicted), 1)}
    rows += [
        Claim(f"tile {'x'.join(map(str, trial.tile))}: place in the order of speed",
              place[trial.tile], None, i, note=format_seconds(trial.measured))
        for i, trial in enumerate(tuned.trials, 1)
    ]  # fmt: skip
    rows.append(
        Claim(
            "rank correlation of both orders",
            None,
            None,
            tuned.correlation,
            note="of bytes moved and time" if tuned.by == "bytes" else "of the bound and time",
        )
    )
    where = f"on {tuned.device}" if gpu else f"NumPy's tiles, no GPU here: {tuned.device}"
    return Comparison(f"{tuned.kernel}, {SIZE} x {SIZE} x {SIZE}: {where}", rows)


QUESTION_8 = CourseQuestion(
    number=8,
    title="Low-Level Tile-Based Execution in Tensor Parallelism",
    asked="The tile of {kernel} was chosen on the {tuned_on}; now it multiplies {m} x {k} by {k} x "
    "{n} on the {runs_on}. What does that give away, and what is the right tile there?",
    inputs={
        "kernel": Input("mma_multistage", choice(KERNELS), "the tile kernel"),
        "tuned_on": Input("L4", device_name, "GPU that the tile was chosen on"),
        "runs_on": Input("H200", device_name, "GPU that it runs on"),
        "m": Input(4096, whole(1, 65536), "rows of A"),
        "n": Input(4096, whole(1, 65536), "columns of B"),
        "k": Input(4096, whole(1, 65536), "columns of A, and rows of B"),
    },
    work=work_8,
    run=run_8,
    workers=lambda **_: 1,
)
