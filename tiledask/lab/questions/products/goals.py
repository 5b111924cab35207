"""9: eight goals, two levels. Each goal is a number; one level is changed at a time, and what moves
belongs to that level.

high   blocks over workers    memory, traffic, balance, how many devices
low    tiles within a worker  reuse, coalesced loads, tensor cores, occupancy
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.claim import format_value
from tiledask.lab.exercises.levels import run_blocks
from tiledask.lab.product_claims import GRID
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.readers import device as device_name
from tiledask.lab.questions.shares import count
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.hardware import load_device

__all__ = ["GOALS", "QUESTION"]

ITEM, WARP, SECTOR = 4, 32, 32
"""Bytes of a float32; threads of a warp; bytes that a load fetches at least."""


@dataclass(frozen=True)
class Setup:
    """One way to compute a size x size x size product."""

    size: int
    grid: tuple[int, int]
    rows: tuple[int, ...]
    """Rows of C of each worker, where they are dealt out by rows."""
    tile: int
    down: bool
    """Whether neighbouring threads read down a column."""
    kernel: str
    device: str

    @property
    def blocks(self) -> int:
        """Bytes of a worker's blocks of A, B and C, at most."""
        p, q = self.grid
        return 3 * ITEM * even(self.size, p)[0] * even(self.size, q)[0]

    @property
    def config(self) -> Any:
        """How the GPU kernel tiles."""
        found = td.tile.candidates(self.kernel, self.device)
        of_tile = [c for c in found if c.block == (self.tile,) * 3]
        return of_tile[0] if of_tile else td.tile.config_of(self.kernel)


def _tile(value: Any) -> int:
    """A reader of the extents that the GPU kernel is built for."""
    if value not in (16, 32) or isinstance(value, float):
        raise ValueError("must be 16 or 32")
    return value


def _usual(size: int, workers: int, tile: int, device: str) -> Setup:
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
    grid = next(g for g in td.formulas.grids(workers, 2) if g[0] ** 2 >= workers)
    return Setup(size, grid, even(size, workers), tile, False, "smem_tiled", device)


def _changes(usual: Setup) -> dict[str, dict[str, Setup]]:
    """Level -> change -> what is then computed."""
    size, workers = usual.size, len(usual.rows)
    p, q = min(td.formulas.grids(workers // 2, 2), key=sum)
    first = size - (workers - 1) * (size // (2 * workers))
    uneven = (first, *[size // (2 * workers)] * (workers - 1))
    return {
        "high": {
            f"blocks on 1 x {workers}": replace(usual, grid=(1, workers)),
            count(workers // 2, "worker"): replace(
                usual, grid=(p, q), rows=even(size, workers // 2)
            ),
            "uneven rows": replace(usual, rows=uneven),
        },
        "low": {
            "the other tile": replace(usual, tile=48 - usual.tile),
            "threads read down columns": replace(usual, down=True),
            "a tensor-core kernel": replace(usual, kernel="mma_multistage"),
        },
    }


def _sectors(block: np.ndarray, down: bool) -> int:
    """Sectors that a warp's first load touches, by the addresses of what its threads read."""
    strides = block.strides
    addresses = [thread * strides[0 if down else 1] for thread in range(WARP)]
    return len({address // SECTOR for address in addresses})


def _warps(s: Setup) -> int:
    found = td.tile.occupancy(s.config, s.device)
    return found.blocks * found.warps


GOALS: dict[str, tuple[str, str, Callable[[Setup], float]]] = {
    "fit each part into a device's memory": (
        "high", "bytes of A, B and C on a worker", lambda s: s.blocks),
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


def _moved(values: dict[str, dict[str, float]], usual: float) -> dict[str, bool]:
    """Level -> whether any change there moved the number."""
    return {level: any(v != usual for v in each.values()) for level, each in values.items()}


def _unit(metric: str) -> str:
    return "bytes" if metric.startswith("bytes") else ""


def work(size: int, workers: int, tile: int, device: str) -> WorkedAnswer:
    """Every goal's number, as it is and after each change."""
    usual = _usual(size, workers, tile, device)
    changes, lines, levels, numbers = _changes(usual), [], {}, {}
    for goal, (_, metric, number) in GOALS.items():
        base = number(usual)
        told = {level: {n: number(s) for n, s in each.items()} for level, each in changes.items()}
        moved = _moved(told, base)
        levels[goal] = " and ".join(level for level, does in moved.items() if does)
        numbers[goal] = base
        by = [
            f"{format_value(v, _unit(metric))} with {name}"
            for each in told.values()
            for name, v in each.items()
            if v != base
        ]
        shown = format_value(base, _unit(metric))
        lines.append(f"{levels[goal]}: {goal}. {metric}: {shown}; {', '.join(by)}")
    high = [goal for goal, level in levels.items() if level == "high"]
    low = [goal for goal, level in levels.items() if level == "low"]
    return WorkedAnswer(
        f"High level, blocks over devices ({len(high)}): {'; '.join(high)}. Low level, tiles "
        f"within a device ({len(low)}): {'; '.join(low)}.",
        lines,
        {"levels": levels, "numbers": numbers},
    )


def _counted(cluster: Cluster, s: Setup, a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """What a run of ``s`` counts: goal -> number, of those that need no GPU."""
    mesh = td.Mesh(cluster, s.grid)
    A, B = (td.distribute(x, mesh, GRID) for x in (a, b))
    C = td.matmul(A, B, algorithm="summa", kernel="tiled", tile=s.tile)
    blocks = run_blocks(cluster, a, b, s.rows, s.tile)
    held = [sum(parts) for parts in zip(A.block_bytes, B.block_bytes, C.block_bytes, strict=True)]
    job = cluster.submit(0, _sectors, A.blocks[0], s.down)
    (touched,) = cluster.gather([job], "a warp's addresses", 60.0, cancel=True)
    values = (
        max(held),
        C.traffic.measured.total,
        max(blocks.flops) * len(blocks.flops) / sum(blocks.flops),
        C.tiles.flops // mesh.ranks,
        C.tiles.intensity,
        touched,
    )
    return dict(zip(GOALS, values, strict=False))


def run(cluster: Cluster, size: int, workers: int, tile: int, device: str) -> Comparison:
    """The usual product and every change, run and counted by NumPy's tiles on CPU workers."""
    usual = _usual(size, workers, tile, device)
    rng = np.random.default_rng(9)
    a, b = (rng.integers(-2, 3, (size, size)).astype("float32") for _ in range(2))
    base = _counted(cluster, usual, a, b)
    ran = {
        level: {name: _counted(cluster, s, a, b) for name, s in each.items()}
        for level, each in _changes(usual).items()
    }
    rows = []
    for goal, (level, metric, number) in GOALS.items():
        told = {
            where: {n: number(s) for n, s in each.items()}
            for where, each in _changes(usual).items()
        }
        simulated, measured = _moved(told, number(usual)), None
        if goal in base:
            seen = {w: {n: found[goal] for n, found in each.items()} for w, each in ran.items()}
            measured = _moved(seen, base[goal])
        rows.append(Claim(goal, None, number(usual), base.get(goal), _unit(metric),
                          "equal" if goal in base else None, metric))  # fmt: skip
        rows += [
            Claim(f"{goal}: moves with the {where} level", where == level, simulated[where],
                  measured and measured[where], rule="equal",
                  note="" if measured else "by the device's description, not run")
            for where in ("high", "low")
        ]  # fmt: skip
    return Comparison(f"{size} x {size} x {size} on {workers} workers, one level at a time", rows)


QUESTION = CourseQuestion(
    number=9,
    title="Match each of the following implementation goals to the level",
    asked="A product of {size} x {size} x {size} runs on {workers} workers, in tiles of {tile}. "
    "Which goals of its implementation belong to the high level, blocks over devices, and which to "
    "the low level, tiles within a device?",
    inputs={
        "size": Input(256, whole(64, 65536), "rows and columns of A and B"),
        "workers": Input(4, whole(2, 64), "workers, an even number"),
        "tile": Input(32, _tile, "extent of a tile, 16 or 32"),
        "device": Input("H200", device_name, "GPU whose limits count"),
    },
    work=work,
    run=run,
    workers=lambda workers, **_: workers,
    largest_run={"size": 4096},
    device="cpu",
)
