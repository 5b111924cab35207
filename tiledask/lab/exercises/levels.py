"""Cores idle waiting for data: runs on workers are measured, and the level at fault is named.

          |<----------------------- makespan ------------------------>|
worker 1  |busy busy busy busy busy busy busy busy busy busy busy busy|
worker 2  |wait wait|busy busy busy busy|              idle           |
          |<------ mean busy ------>|<------- lost between workers -->|
          |<- ideal ->|<- in tiles->|    ideal: all FLOP at the rate of a good tile
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.exercises.exercise import exercise, instance, none_wrong
from tiledask.lab.judging import Target
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, PALE, RED, YELLOW, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile import TileTraffic, count_traffic

__all__ = ["BLOCKING", "TILE", "BlockRun", "four_products", "levels_at_fault", "run_blocks"]

BLOCKING, TILE = "blocking", "tile"


@dataclass(frozen=True, repr=False)
class BlockRun:
    """What a product by rows measured on each worker."""

    tile: int
    traffic: tuple[TileTraffic, ...]
    """What each worker's tiles moved, counted."""
    busy: tuple[float, ...]
    """Seconds of processor time in the kernel, the least of three: others slow a core's caches
    and clock down, but nobody makes it faster."""
    waited: tuple[float, ...]
    """Seconds that a worker's block took to arrive."""
    received: tuple[int, ...]
    """Bytes that came from other workers meanwhile."""

    @property
    def flops(self) -> tuple[int, ...]:
        return tuple(t.flops for t in self.traffic)

    @property
    def makespan(self) -> float:
        """Seconds of the worker that took longest, had each of them a core."""
        return max(b + w for b, w in zip(self.busy, self.waited, strict=True))

    @property
    def utilisation(self) -> float:
        """The share of the makespan in which workers compute."""
        return sum(self.busy) / len(self.busy) / self.makespan

    @property
    def rate(self) -> float:
        """FLOP per second of the kernel while it runs, on the worker where it is fastest."""
        return max(f / b for f, b in zip(self.flops, self.busy, strict=True))

    def lost(self, rate: float) -> dict[str, float]:
        """Seconds of the makespan lost at either level, beside a kernel of ``rate`` FLOP/s and
        an even split: by waiting for other workers, and inside the tiles' own loop."""
        mean = sum(self.busy) / len(self.busy)
        ideal = sum(self.flops) / len(self.flops) / rate
        return {BLOCKING: self.makespan - mean, TILE: mean - ideal}

    def at_fault(self, rate: float) -> str:
        """The level at which more is lost."""
        lost = self.lost(rate)
        return max(lost, key=lost.__getitem__)

    def __repr__(self) -> str:
        flops = ", ".join(f"{f / 1e6:.0f}" for f in self.flops)
        intensity = sum(self.flops) / sum(t.loaded for t in self.traffic)
        return (
            f"{flops} MFLOP on the workers, {format_bytes(sum(self.received))} between them, "
            f"{intensity:.3g} FLOP per byte loaded"
        )


def run_blocks(
    cluster: Cluster,
    a: np.ndarray,
    b: np.ndarray,
    rows: Sequence[int],
    tile: int,
    *,
    home: int | None = None,
) -> BlockRun:
    """``a @ b`` by the tile loop in ``tile`` cubed, each worker its ``rows`` of ``a``, measured.

    Blocks lie on their workers before the clock starts, or all on worker ``home``, if given, from
    where the others fetch theirs. ``b`` is everywhere. Raises ConfigError for rows that do not
    add up.
    """
    if not 1 <= len(rows) <= cluster.slots or sum(rows) != len(a) or min(rows) < 1:
        raise ConfigError(
            f"rows has one entry of 1 or more for each of up to {cluster.slots} workers, {len(a)} "
            f"in all; got {tuple(rows)}, {sum(rows)} in all"
        )
    slots, parts = range(len(rows)), np.split(a, np.cumsum(rows)[:-1])
    at = [slot if home is None else home for slot in slots]
    blocks = [cluster.submit(to, _same, part) for to, part in zip(at, parts, strict=True)]
    others = [cluster.submit(slot, _same, b) for slot in slots]
    cluster.wait([*blocks, *others], "the blocks", cancel=True)
    before = cluster.run(_transfers)
    tasks = [
        cluster.submit(slot, _multiply, blocks[slot], others[slot], tile, name="tile_product")
        for slot in slots
    ]
    busy, counted = zip(*cluster.gather(tasks, "the products", cancel=True), strict=True)
    after = cluster.run(_transfers)
    came = [after[slot][len(before[slot]) :] for slot in slots]
    waited = tuple(sum(seconds for seconds, _ in log) for log in came)
    return BlockRun(tile, counted, busy, waited, tuple(sum(n for _, n in log) for log in came))


def _same(block: np.ndarray) -> np.ndarray:
    return block


def _multiply(a: np.ndarray, b: np.ndarray, tile: int) -> tuple[float, TileTraffic]:
    """Seconds of this thread, BLAS's only one on a worker: workers may outnumber cores."""
    count_traffic(a[:tile, :tile], b[:tile, :tile], tile=tile)  # the first call is not like others
    took = []
    for _ in range(3):
        begun = time.thread_time()
        _, counted = count_traffic(a, b, tile=tile)
        took.append(time.thread_time() - begun)
    return min(took), counted


def _transfers(dask_worker: Worker) -> list[tuple[float, int]]:
    return [(e["duration"], e["total"]) for e in dask_worker.transfer_incoming_log]


PRODUCTS: dict[str, dict[str, Any]] = {
    "I": {"rows": (256, 256, 256, 256), "tile": 16},
    "II": {"rows": (928, 32, 32, 32), "tile": 256},
    "III": {"rows": (1024, 1024, 1024, 1024), "tile": 256, "home": 0},
    "IV": {"rows": (304, 240, 240, 240), "tile": 16},
}
"""How the four products are split: here, and not where they are asked about. The level at fault
stays the same on a worker that is half as slow again as the others."""


def four_products(cluster: Cluster, seed: int = 0) -> tuple[dict[str, BlockRun], float]:
    """(four products by rows on four workers, measured; FLOP per second of a good tile), for
    `levels_at_fault`; whole numbers in float32, drawn from ``seed``."""
    rng = np.random.default_rng(seed)

    def run(name: str, **split: Any) -> BlockRun:
        shapes = ((4096, 2048), (2048, 32)) if name == "III" else ((1024, 512), (512, 512))
        a, b = (rng.integers(-4, 5, shape).astype("float32") for shape in shapes)
        return run_blocks(cluster, a, b, **split)

    good = run("", rows=(256, 256, 256, 256), tile=256)
    return {name: run(name, **split) for name, split in PRODUCTS.items()}, good.rate


@styled
def _bars(_: Any, runs: Mapping[str, BlockRun], rate: float) -> Figure:
    """Each worker's time, in the parts that were measured; dashed, where a good tile would end."""
    figure = canvas(0.9 + 1.25 * len(runs), "Where did the workers' time go?")
    axes = np.atleast_1d(figure.subplots(len(runs)))
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        workers = [f"worker {w + 1}" for w in range(len(run.busy))]
        waited, busy = np.array(run.waited), np.array(run.busy)
        ax.barh(workers, waited, color=YELLOW, label="its block on the way")
        ax.barh(workers, busy, left=waited, color=BLUE, label="in the kernel")
        idle = run.makespan - waited - busy
        ax.barh(workers, idle, left=waited + busy, color=PALE, label="done, the others are not")
        ideal = sum(run.flops) / len(run.flops) / rate
        ax.axvline(ideal, color=RED, linestyle="--", label="a good tile, evenly split")
        ax.invert_yaxis()
        ax.set_title(f"{name}: busy {100 * run.utilisation:.0f} % of the time; {run!r}")
        ax.set_xlabel("s")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@exercise("levels-at-fault", read=instance(Mapping), draw=_bars)
def levels_at_fault(
    answer: Mapping[str, Any], runs: Mapping[str, BlockRun], rate: float
) -> list[Target]:
    """Say for each of the products at which level more time is lost: "blocking", between the
    workers, or "tile", within them."""
    if set(answer) != set(runs) or not all(level in (BLOCKING, TILE) for level in answer.values()):
        raise ConfigError(f"a level, 'blocking' or 'tile', belongs to each of {', '.join(runs)}")
    wrong = {}
    for name, run in runs.items():
        level, lost = answer[name], run.lost(rate)
        if level != run.at_fault(rate):
            here, there = (format_seconds(max(0.0, lost[at])) for at in (level, run.at_fault(rate)))
            wrong[name] = f"{name}: {here} are lost at the level {level}, {there} at the other"
    named = f" ({', '.join(wrong)})" if wrong else ""
    return [none_wrong(f"levels named wrongly{named}", list(wrong.values()))]
