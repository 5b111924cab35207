"""6, 8 and 9: tiles within a worker or blocks over workers: which is at fault, and what each does.

high   blocks over workers    memory, traffic, balance, how many devices
low    tiles within a worker  reuse, coalesced loads, tensor cores, occupancy
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.claim import Claim, format_value
from tiledask.lab.questions.question import Input, WorkedAnswer, device, question
from tiledask.lab.questions.shares import count, each
from tiledask.lab.questions.worked import runs
from tiledask.lab.questions.worked.products import ITEM, MNK, loaded
from tiledask.lab.table import Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile.choice import Prediction, Tuning
from tiledask.tile.choice.residency import refusal

TILES = (1, 2, 4, 8, 16, 32)
FIXED = 32
"""The tile under which blocks are changed."""
LIMITS = Input("GPU whose limits count", check=device)


@question(
    6,
    "A team is parallelizing a product, and its cores are idle, waiting for data",
    "A product of {size} x {size} x {size} is spread evenly over {workers} workers, and yet cores "
    "mostly wait for data. Is the blocking over workers at fault, or the tile within them?",
    size=Input("rows and columns of A and B", 2, 65536, run=256),
    workers=Input("workers", 2, 64),
    device=LIMITS,
    largest="part of the rows on the first worker, of 1",
)
def level_at_fault(
    size: int = 64, workers: int = 2, device: str = "H200", largest: float = 0.75
) -> WorkedAnswer:
    """What tiles load and how fast that lets a device be; how long blocks make workers wait."""
    first, alike = round(largest * size), even(size, workers)
    if min(first, (size - first) // (workers - 1)) < 1:
        raise ConfigError(
            f"{largest:g} of {size} rows on the first of {workers} workers leaves some worker "
            f"without a row; give a part between 0 and 1, or a larger size"
        )
    uneven = [first, *even(size - first, workers - 1)]
    bandwidth, peak = (h := load_device(device)).memory_bandwidth, h.peak("fp32")
    ridge, flop = td.tile.ridge(device), 2 * size**3
    extent = ceil(ITEM * ridge)

    def loads(tile: int) -> int:
        return loaded(size, size, size, (1, workers), tile)

    reuse = {tile: flop / loads(tile) for tile in TILES}
    share = {tile: min(1.0, each / ridge) for tile, each in reuse.items()}
    used, most = size / workers / max(uneven), flop / loads(size)
    # if the whole block as one tile loads too much, every tile does
    tiles = range(min(extent, size), size + 1) if most >= ridge else ()
    enough = next((tile for tile in tiles if flop / loads(tile) >= ridge), None)
    takes = f"it takes tiles of {enough} to allow all of it"
    if not enough:
        takes = (
            f"no tile allows all of it: a block as one tile gives {most:.4g} of the {ridge:.2f} "
            f"FLOP a byte"
        )

    def run(cluster: Cluster) -> Comparison:
        """Both experiments, by the NumPy tile kernel, which counts what it loads."""
        a, b = runs.whole_numbers(6, (size, size), (size, size), most=4)
        between, rows = ITEM * size * size * (workers - 1), []
        for tile in TILES:
            how: dict[str, Any] = {"algorithm": "summa", "kernel": "tiled", "tile": tile}
            C = runs.multiplied(cluster, a, b, (1, workers), **how)
            rows += runs.product_claims(f"T = {tile}", C, a @ b, between, loads(tile))
        for name, blocks in (("even", alike), ("uneven", uneven)):
            done = runs.by_rows(cluster, a, b, blocks, FIXED)
            flops = [n for n, _ in done]
            rows.append(
                Claim(f"{name} blocks: FLOP of the fullest worker over the mean",
                      max(blocks) * len(blocks) / sum(blocks), None,
                      max(flops) / (sum(flops) / len(flops)), rule=("within", 1e-9),
                      note=f"kernels at {max(n / s for n, s in done) / 1e9:.3g} GFLOP/s")
            )  # fmt: skip
        return Comparison(f"{size} x {size} x {size} on {workers} workers: each level", rows)

    return WorkedAnswer(
        f"If all workers are busy alike and the kernels slow, the low level is at fault: on the "
        f"{device} tiles of {TILES[-1]} allow {100 * share[TILES[-1]]:.0f} % of the peak here, and "
        f"{takes}. If kernels are fast and some workers idle, it is the high level: here "
        f"{100 * (1 - used):.0f} % idle.",
        [
            f"low level, tiles of T in blocks of {size} x {each(alike)}: A is loaded once for each "
            f"T columns, B for each T rows; T / {ITEM} FLOP a byte where T divides the block; what "
            f"workers send is the same in all rows",
            *(
                f"T = {tile}: {format_bytes(loads(tile))} loaded, {reuse[tile]:.4g} FLOP a byte, "
                f"at most {share[tile] * peak / 1e12:.3g} TFLOP/s, {100 * share[tile]:.1f} % of "
                f"the {device}'s {peak / 1e12:g}"
                for tile in TILES
            ),
            f"ridge of the {device}: {peak / 1e12:g}e12 / {bandwidth / 1e12:g}e12 = {ridge:.2f} "
            f"FLOP a byte: T of {extent} or more where blocks are that wide, or registers below "
            f"the tile",
            f"high level, one tile of {FIXED}, {largest:g} of the rows on the first worker: "
            f"{', '.join(map(str, uneven))} rows; the mean is {size} / {workers} = "
            f"{size / workers:.4g}",
            f"workers are busy {size / workers:.4g} / {max(uneven)} = {100 * used:.1f} % of the "
            f"time; each kernel is as fast as before",
        ],
        {
            "loaded": [loads(tile) for tile in TILES],
            "intensity": [*reuse.values()],
            "share of the peak": [*share.values()],
            "tile at the ridge": extent,
            "tile that allows all": enough,
            "busy, uneven blocks": used,
        },
        run,
        workers,
        device="cpu",
    )


# -- 8: a tile that is carried to another GPU ------------------------------------------------------

KERNELS = "smem_tiled", "sgemm_warptiled", "mma_multistage", "wgmma_ws_persistent"
NUMPY_TILES = 16, 32, 64, 128, 256
"""Of the NumPy tile kernel, which stands in for the GPU's where there is none."""
SIZE = 512
"""Of the product that is measured."""


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
        f"{best.occupancy}; {td.tile.waves(m, n, best.config, device)}; at most "
        f"{best.flops_per_second / 1e12:.4g} TFLOP/s, bound by {best.binding}",
    ]


def _timed(kernel: str, tiles: tuple[Any, ...]) -> tuple[Tuning, list[int], bool]:
    """On a worker: (every tile timed, bytes that each NumPy tile loaded, whether C is right)."""
    tuned = td.tile.tune(
        kernel, SIZE, SIZE, SIZE, candidates=tiles or None, repeats=3, deadline=20.0, progress=False
    )
    a, b = runs.whole_numbers(8, (SIZE, SIZE), (SIZE, SIZE), most=4)
    done = [td.tile.count_traffic(a, b, tile) for tile in tiles]
    return tuned, [t.loaded for _, t in done], all(np.array_equal(c, a @ b) for c, _ in done)


def _run_tiles(cluster: Cluster, kernel: str) -> Comparison:
    """Tiles of one kernel timed on a worker: on its GPU, or the NumPy tile kernel on its CPU."""
    gpu = cluster.backend == "cupy"
    job = cluster.submit(0, _timed, kernel if gpu else "tiled", () if gpu else NUMPY_TILES)
    ((tuned, loads, right),) = cluster.gather([job], "the tiles", 120.0, cancel=True)
    said = {tile: td.tile.traffic(SIZE, SIZE, SIZE, tile, ITEM).loaded for tile in NUMPY_TILES}
    rows = [
        Claim(f"tile {tile}: loaded", said[tile], None, nbytes, "bytes", "equal")
        for tile, nbytes in zip(NUMPY_TILES, loads, strict=False)
    ]
    rows.append(Claim("C is A B, every number", measured=right, rule="true"))
    place = {t.tile: i for i, t in enumerate(sorted(tuned.trials, key=lambda t: t.predicted), 1)}
    for i, trial in enumerate(tuned.trials, 1):
        name = f"tile {'x'.join(map(str, trial.tile))}: place in the order of speed"
        rows.append(Claim(name, place[trial.tile], None, i, note=format_seconds(trial.measured)))
    by = "of bytes moved and time" if tuned.by == "bytes" else "of the bound and time"
    rows.append(Claim("rank correlation of both orders", measured=tuned.correlation, note=by))
    where = f"on {tuned.device}" if gpu else f"NumPy's tiles, no GPU here: {tuned.device}"
    return Comparison(f"{tuned.kernel}, {SIZE} x {SIZE} x {SIZE}: {where}", rows)


@question(
    8,
    "Low-Level Tile-Based Execution in Tensor Parallelism",
    "The tile of {kernel} was chosen on the {tuned_on}; now it multiplies {m} x {k} by {k} x {n} "
    "on the {runs_on}. What does that give away, and what is the right tile there?",
    kernel=Input("the tile kernel", choices=KERNELS),
    tuned_on=Input("GPU that the tile was chosen on", check=device),
    runs_on=Input("GPU that it runs on", check=device),
    **{name: replace(each, run=65536) for name, each in MNK.items()},
)
def carried_tile(
    kernel: str = "mma_multistage",
    tuned_on: str = "L4",
    runs_on: str = "H200",
    m: int = 4096,
    n: int = 4096,
    k: int = 4096,
) -> WorkedAnswer:
    """Shared memory, occupancy, waves and bound of both tiles on the new device."""
    if tuned_on == runs_on:
        raise ConfigError(f"a tile is carried from {tuned_on} to another device; name two devices")

    def best_on(device: str) -> Prediction:
        if found := td.tile.candidates(kernel, device):
            return td.tile.order(m, n, k, found, device)[0]
        why = refusal(td.tile.config_of(kernel), device)
        raise ConfigError(f"{kernel} does not run on {device}: {why}; take {KERNELS[0]}")

    old, new = best_on(tuned_on), best_on(runs_on)
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
    lines += [
        *_described(new, "the best", m, n),
        f"the {runs_on} could be {faster:.3g} times as fast as the {tuned_on}; with the old tile "
        f"it is {gained:.3g} times: 1 - {reached / 1e12:.4g} / {best / 1e12:.4g} = "
        f"{100 * loss:.1f} % given away",
    ]
    tiles = [" x ".join(map(str, each.config.block)) for each in (old, new)]
    if tiles[0] == tiles[1] and not stays:
        tiles = [f"{tiles[0]} in {each.config.stages} stages" for each in (old, new)]
    answer = (
        f"The tile belongs to the device it was chosen for: {tiles[0]} of the {tuned_on} gives "
        f"away {100 * loss:.1f} % on the {runs_on}, where {tiles[1]} is best"
    )
    if stays:
        answer = (
            f"Nothing: of this product {tiles[1]} is the best tile on both. A tile belongs to its "
            f"device all the same"
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
        lambda cluster: _run_tiles(cluster, kernel),
        1,
        lambda: td.plots.roofline(shown),
    )


# -- 9: eight goals, each a number that moves with one level ---------------------------------------

WARP, SECTOR = 32, 32
"""Threads of a warp; bytes that a load fetches at least."""


@dataclass(frozen=True)
class Setup:
    """One way to compute a size x size x size product."""

    size: int
    grid: tuple[int, ...]
    rows: tuple[int, ...]
    """Rows of C of each worker, where they are dealt out by rows."""
    tile: int
    down: bool
    """Whether neighbouring threads read down a column."""
    kernel: str
    device: str

    @property
    def config(self) -> Any:
        """How the GPU kernel tiles."""
        found = td.tile.candidates(self.kernel, self.device)
        of_tile = [c for c in found if c.block == (self.tile,) * 3]
        return of_tile[0] if of_tile else td.tile.config_of(self.kernel)


def _warps(s: Setup) -> int:
    found = td.tile.occupancy(s.config, s.device)
    return found.blocks * found.warps


GOALS: dict[str, tuple[str, str, Callable[[Setup], float]]] = {
    "fit each part into a device's memory": (
        "high", "bytes of A, B and C on a worker",
        lambda s: 3 * ITEM * even(s.size, s.grid[0])[0] * even(s.size, s.grid[1])[0]),
    "move little between devices": (
        "high", "bytes between workers",
        lambda s: ITEM * s.size**2 * (s.grid[0] + s.grid[1] - 2)),
    "give every device as much to do": (
        "high", "FLOP of the fullest worker over the mean",
        lambda s: max(s.rows) * len(s.rows) / s.size),
    "choose how many devices": (
        "high", "FLOP a worker", lambda s: 2 * s.size**3 // (s.grid[0] * s.grid[1])),
    "use again what was loaded": (
        "low", "FLOP a byte that tiles load", lambda s: s.tile / ITEM),
    "load coalesced": (
        "low", "sectors of 32 bytes that a warp's load touches",
        lambda s: WARP if s.down else WARP * ITEM // SECTOR),
    "use tensor cores": (
        "low", "peak of the units that compute, TFLOP/s",
        lambda s: load_device(s.device).peak(s.config.peak) / 1e12),
    "hide latency by many warps": ("low", "warps on a multiprocessor", _warps),
}  # fmt: skip
"""Goal -> (its level, the number that tells, that number by formula)."""


def _sectors(block: np.ndarray, down: bool) -> int:
    """Sectors that a warp's first load touches, by the addresses of what its threads read."""
    stride = block.strides[0 if down else 1]
    return len({thread * stride // SECTOR for thread in range(WARP)})


def _counted(cluster: Cluster, s: Setup, a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """What a run of ``s`` counts: goal -> number, of those that need no GPU."""
    mesh = td.Mesh(cluster, s.grid)
    A, B = (td.distribute(x, mesh, runs.GRID) for x in (a, b))
    C = td.matmul(A, B, algorithm="summa", kernel="tiled", tile=s.tile)
    tiles: Any = C.tiles
    flops = [flop for flop, _ in runs.by_rows(cluster, a, b, s.rows, s.tile)]
    job = cluster.submit(0, _sectors, A.blocks[0], s.down)
    values = (
        max(map(sum, zip(A.block_bytes, B.block_bytes, C.block_bytes, strict=True))),
        C.traffic.measured.total,
        max(flops) * len(flops) / sum(flops),
        tiles.flops // mesh.ranks,
        tiles.intensity,
        *cluster.gather([job], "a warp's addresses", 60.0, cancel=True),
    )
    return dict(zip(GOALS, values, strict=False))


@question(
    9,
    "Match each of the following implementation goals to the level",
    "A product of {size} x {size} x {size} runs on {workers} workers, in tiles of {tile}. Which "
    "goals of its implementation belong to the high level, blocks over devices, and which to the "
    "low level, tiles within a device?",
    size=Input("rows and columns of A and B", 64, 65536, run=4096),
    workers=Input("workers, an even number", 2, 64),
    tile=Input("extent of a tile, 16 or 32", choices=(16, 32)),
    device=LIMITS,
)
def goals(size: int = 256, workers: int = 4, tile: int = 32, device: str = "H200") -> WorkedAnswer:
    """Every goal's number, as it is and after each change of one level."""
    if size % (2 * workers * 32) or workers % 2:
        raise ConfigError(
            "blocks must be whole tiles: size a multiple of 64 x workers, and workers even; got "
            f"size {size} and {workers} workers"
        )
    if not td.tile.candidates("mma_multistage", device):
        raise ConfigError(
            f"mma_multistage, the tensor-core kernel, does not run on a {device}; take a device of "
            f"compute capability 8.0 or more, such as A100-80GB"
        )
    square = next(g for g in td.formulas.grids(workers, 2) if g[0] ** 2 >= workers)
    usual = Setup(size, square, even(size, workers), tile, False, "smem_tiled", device)
    half, part = min(td.formulas.grids(workers // 2, 2), key=sum), size // (2 * workers)
    uneven = (size - (workers - 1) * part, *[part] * (workers - 1))
    changes = {
        "high": {
            f"blocks on 1 x {workers}": replace(usual, grid=(1, workers)),
            count(workers // 2, "worker"): replace(usual, grid=half, rows=even(size, workers // 2)),
            "uneven rows": replace(usual, rows=uneven),
        },
        "low": {
            "the other tile": replace(usual, tile=48 - tile),
            "threads read down columns": replace(usual, down=True),
            "a tensor-core kernel": replace(usual, kernel="mma_multistage"),
        },
    }

    def moved(number: Callable[[Setup], float]) -> dict[str, dict[str, float]]:
        """Level -> change -> the number, where it is another one."""
        every = {at: {n: number(s) for n, s in one.items()} for at, one in changes.items()}
        base = number(usual)
        return {at: {n: v for n, v in one.items() if v != base} for at, one in every.items()}

    lines, levels = [], {}
    numbers = {goal: number(usual) for goal, (_, _, number) in GOALS.items()}
    units = {goal: "bytes" * metric.startswith("bytes") for goal, (_, metric, _) in GOALS.items()}
    for goal, (_, metric, number) in GOALS.items():
        found, unit = moved(number), units[goal]
        levels[goal] = " and ".join(level for level, each in found.items() if each)
        by = [
            f"{format_value(v, unit)} with {n}" for each in found.values() for n, v in each.items()
        ]
        shown = format_value(numbers[goal], unit)
        lines.append(f"{levels[goal]}: {goal}. {metric}: {shown}; {', '.join(by)}")

    def run(cluster: Cluster) -> Comparison:
        """The usual product and every change, run and counted by NumPy's tiles."""
        a, b = runs.whole_numbers(9, (size, size), (size, size))
        setups = [usual, *(s for one in changes.values() for s in one.values())]
        counted = {s: _counted(cluster, s, a, b) for s in setups}
        rows = []
        for goal, (level, metric, number) in GOALS.items():
            runs_it = goal in counted[usual]
            measured = counted[usual].get(goal)
            rule = "equal" if runs_it else None
            rows.append(Claim(goal, None, numbers[goal], measured, units[goal], rule, metric))
            said = moved(number)
            of_run = {s: found.get(goal, 0.0) for s, found in counted.items()}
            seen = moved(of_run.__getitem__) if runs_it else None
            note = "" if runs_it else "by the device's description, not run"
            rows += [
                Claim(f"{goal}: moves with the {where} level", where == level, bool(said[where]),
                      bool(seen[where]) if seen else None, rule="equal", note=note)
                for where in changes
            ]  # fmt: skip
        title = f"{size} x {size} x {size} on {workers} workers, one level at a time"
        return Comparison(title, rows)

    high, low = ([g for g, level in levels.items() if level == at] for at in changes)
    return WorkedAnswer(
        f"High level, blocks over devices ({len(high)}): {'; '.join(high)}. Low level, tiles "
        f"within a device ({len(low)}): {'; '.join(low)}.",
        lines,
        {"levels": levels, "numbers": numbers},
        run,
        workers,
        device="cpu",
    )
