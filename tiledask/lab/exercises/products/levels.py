"""Cores idle waiting for data: runs on workers are measured, and the level at fault is named.

          |<----------------------- makespan ------------------------>|
worker 0  |busy busy busy busy busy busy busy busy busy busy busy busy|
worker 1  |wait wait|busy busy busy busy|              idle           |
          |<------ mean busy ------>|<------- lost between workers -->|
          |<- ideal ->|<- in tiles->|    ideal: all FLOP at the rate of a good tile
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import Worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.style import BLUE, INK, PALE, RED, YELLOW, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile import TileTraffic, count_traffic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BLOCKING", "TILE", "BlockRun", "four_products", "levels_at_fault", "run_blocks"]

BLOCKING, TILE = "blocking", "tile"


@dataclass(frozen=True, repr=False)
class BlockRun:
    """What a product by rows measured on each worker."""

    tile: int
    traffic: tuple[TileTraffic, ...]
    """What each worker's tiles moved, counted."""
    busy: tuple[float, ...]
    """Seconds of processor time in the kernel; of a core each, whoever else wants it."""
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
    if len(rows) != cluster.slots or sum(rows) != len(a) or min(rows) < 1:
        raise ConfigError(
            f"rows has one entry of 1 or more for each of {cluster.slots} workers, {len(a)} in "
            f"all; got {tuple(rows)}, {sum(rows)} in all"
        )
    ends = np.cumsum([0, *rows])
    slots = range(cluster.slots)
    blocks = [
        cluster.submit(slot if home is None else home, _kept, a[ends[slot] : ends[slot + 1]])
        for slot in slots
    ]
    others = [cluster.submit(slot, _kept, b) for slot in slots]
    cluster.wait([*blocks, *others], "the blocks", cancel=True)
    before = cluster.run(_transfers)
    tasks = [
        cluster.submit(slot, _multiply, blocks[slot], others[slot], tile, name="tile_product")
        for slot in slots
    ]
    done = cluster.gather(tasks, "the products", cancel=True)
    after = cluster.run(_transfers)
    came = [late[len(early) :] for early, late in zip(before, after, strict=True)]
    return BlockRun(
        tile,
        tuple(t for _, t in done),
        tuple(s for s, _ in done),
        tuple(sum(seconds for seconds, _ in log) for log in came),
        tuple(sum(size for _, size in log) for log in came),
    )


def _kept(block: np.ndarray) -> np.ndarray:
    return block


def _multiply(a: np.ndarray, b: np.ndarray, tile: int) -> tuple[float, TileTraffic]:
    """Seconds of this thread, BLAS's only one on a worker: workers may outnumber cores."""
    count_traffic(a[:tile, :tile], b[:tile, :tile], tile=tile)  # the first call is not like others
    begun = time.thread_time()
    _, counted = count_traffic(a, b, tile=tile)
    return time.thread_time() - begun, counted


def _transfers(dask_worker: Worker) -> list[tuple[float, int]]:
    return [(e["duration"], e["total"]) for e in dask_worker.transfer_incoming_log]


_PRODUCTS: dict[str, dict[str, Any]] = {
    "I": {"rows": (256, 256, 256, 256), "tile": 16},
    "II": {"rows": (928, 32, 32, 32), "tile": 256},
    "III": {"rows": (1024, 1024, 1024, 1024), "tile": 256, "home": 0},
    "IV": {"rows": (400, 208, 208, 208), "tile": 16},
}
"""How the four products are split: here, and not where they are asked about."""
_SHAPES = {"III": ((4096, 2048), (2048, 32))}
"""Shapes of A and B where they are not these:"""
_USUAL = ((1024, 512), (512, 512))


def four_products(cluster: Cluster, seed: int = 0) -> tuple[dict[str, BlockRun], float]:
    """(four products by rows, measured; FLOP per second of a good tile), for `levels_at_fault`.

    Whole numbers in float32, drawn from ``seed``. ``cluster`` has four workers.
    """
    rng = np.random.default_rng(seed)

    def run(name: str, **split: Any) -> BlockRun:
        shapes = _SHAPES.get(name, _USUAL)
        a, b = (rng.integers(-4, 5, shape).astype("float32") for shape in shapes)
        return run_blocks(cluster, a, b, **split)

    good = run("", rows=(256, 256, 256, 256), tile=256)
    return {name: run(name, **split) for name, split in _PRODUCTS.items()}, good.rate


def levels_at_fault(runs: Mapping[str, BlockRun], rate: float) -> Exercise:
    """Say for each of ``runs`` at which level more time is lost: "blocking" or "tile".

    ``rate``: FLOP/s of the kernel with a good tile, measured. The judge splits each makespan, see
    `BlockRun.lost`; nothing else is known of the runs.
    """

    def measure(answer: Any) -> list[Target]:
        if not isinstance(answer, Mapping) or set(answer) != set(runs):
            raise ConfigError(
                f"an answer is a dict with a level for each of {', '.join(runs)}, got {answer!r}"
            )
        if unknown := sorted({str(v) for v in answer.values()} - {BLOCKING, TILE}):
            raise ConfigError(f"a level is {BLOCKING!r} or {TILE!r}, got {unknown[0]!r}")
        wrong = [name for name, run in runs.items() if run.at_fault(rate) != answer[name]]
        named = f" ({', '.join(wrong)})" if wrong else ""
        return [Target(f"levels named wrongly{named}", 0, len(wrong), 0)]

    def figure(answer: Any) -> "Figure":
        return _bars(runs, rate)

    return Exercise(name="which level is at fault", measured=measure, drawn=figure)


@styled
def _bars(runs: Mapping[str, BlockRun], rate: float) -> "Figure":
    figure = canvas(0.9 + 1.25 * len(runs), "Where did the workers' time go?")
    axes = [figure.subplots()] if len(runs) == 1 else figure.subplots(len(runs), 1)
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        for worker, (busy, waited) in enumerate(zip(run.busy, run.waited, strict=True)):
            ax.barh(worker, waited, 0.7, color=YELLOW, gid=f"{name} waited {worker}")
            ax.barh(worker, busy, 0.7, left=waited, color=BLUE, gid=f"{name} busy {worker}")
            ax.barh(
                worker,
                run.makespan - waited - busy,
                0.7,
                left=waited + busy,
                color=PALE,
                gid=f"{name} idle {worker}",
            )
        ideal = sum(run.flops) / len(run.flops) / rate
        ax.axvline(ideal, color=RED, linestyle="--", linewidth=1.4)
        ax.set_xlim(0, 1.02 * run.makespan)
        ax.set_yticks(range(len(run.busy)), [f"worker {w}" for w in range(len(run.busy))])
        ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_formatter(lambda s, _: format_seconds(s) if s else "0")
        ax.set_title(f"{name}: busy {run.utilisation:.0%} of the time; {run!r}", color=INK)
    for colour, words in (
        (BLUE, "in the kernel"),
        (YELLOW, "its block on the way"),
        (PALE, "done, the others are not"),
    ):
        axes[-1].barh(0, 0, color=colour, label=words)
    axes[-1].plot([], [], color=RED, linestyle="--", label="a good tile, evenly split")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower left", ncols=4)
    return figure
