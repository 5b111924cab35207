"""Cores idle waiting for data: runs on workers are measured, and the level at fault is named.

          |<----------------------- makespan ------------------------>|
worker 1  |busy busy busy busy busy busy busy busy busy busy busy busy|
worker 2  |wait wait|busy busy busy busy|              idle           |
          |<------ mean busy ------>|<------- lost between workers -->|
          |<- ideal ->|<- in tiles->|    ideal: all FLOP at the rate of a good tile
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import BLUE, INK, PALE, RED, YELLOW, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile import TileTraffic, count_traffic

__all__ = ["BLOCKING", "TILE", "BlockRun", "four_products", "levels_at_fault", "run_blocks"]

BLOCKING, TILE = "blocking", "tile"
_TRIES = 3


@dataclass(frozen=True, repr=False)
class BlockRun:
    """What a product by rows measured on each worker."""

    tile: int
    traffic: tuple[TileTraffic, ...]
    """What each worker's tiles moved, counted."""
    busy: tuple[float, ...]
    """Seconds of processor time in the kernel, the least of `_TRIES`: others slow a core's caches
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
    ends = np.cumsum([0, *rows])
    slots = range(len(rows))
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
    came = [after[slot][len(before[slot]) :] for slot in slots]
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
    took = []
    for _ in range(_TRIES):
        begun = time.thread_time()
        _, counted = count_traffic(a, b, tile=tile)
        took.append(time.thread_time() - begun)
    return min(took), counted


def _transfers(dask_worker: Worker) -> list[tuple[float, int]]:
    return [(e["duration"], e["total"]) for e in dask_worker.transfer_incoming_log]


_PRODUCTS: dict[str, dict[str, Any]] = {
    "I": {"rows": (256, 256, 256, 256), "tile": 16},
    "II": {"rows": (928, 32, 32, 32), "tile": 256},
    "III": {"rows": (1024, 1024, 1024, 1024), "tile": 256, "home": 0},
    "IV": {"rows": (304, 240, 240, 240), "tile": 16},
}
"""How the four products are split: here, and not where they are asked about. The level at fault
stays the same on a worker that is half as slow again as the others."""
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

    def read(answer: Any) -> Mapping[str, Any] | None:
        return answer if isinstance(answer, Mapping) and set(answer) == set(runs) else None

    def measure(answer: Mapping[str, Any]) -> list[Target]:
        if unknown := sorted({str(v) for v in answer.values()} - {BLOCKING, TILE}):
            raise ConfigError(f"a level is {BLOCKING!r} or {TILE!r}, got {unknown[0]!r}")
        wrong = _misnamed(runs, rate, answer)
        named = f" ({', '.join(wrong)})" if wrong else ""
        remarks = tuple(wrong.values())
        return [Target(f"levels named wrongly{named}", 0, len(wrong), 0, remarks=remarks)]

    def figure(answer: Any) -> draw.Figure:
        return _bars(runs, rate, _misnamed(runs, rate, answer) if answer else ())

    return Exercise(
        name="which level is at fault",
        form=f"a dict with a level, {BLOCKING!r} or {TILE!r}, for each of {', '.join(runs)}, for "
        f"example {dict.fromkeys(runs, TILE)}",
        hints=(
            "A worker that computes all the time may compute badly: look at the red line, where a "
            "good tile and an even split would end.",
            "Between workers is lost what lies right of the mean of the blue bars, pale or yellow; "
            "within them what lies between the red line and that mean.",
            "Put a number on both parts of each product, from the axis. Where both are bad the "
            "larger one counts.",
        ),
        measured=measure,
        drawn=figure,
        read=read,
    )


def _misnamed(
    runs: Mapping[str, BlockRun], rate: float, answer: Mapping[str, Any]
) -> dict[str, str]:
    """Product -> what is wrong with the level that was named for it."""
    found = {}
    for name, run in runs.items():
        said, lost = answer.get(name), run.lost(rate)
        if said in lost and said != run.at_fault(rate):
            other = format_seconds(lost[BLOCKING if said == TILE else TILE])
            here = format_seconds(max(0.0, lost[said]))
            found[name] = f"{name}: {here} are lost at the level {said}, {other} at the other"
    return found


@styled
def _bars(runs: Mapping[str, BlockRun], rate: float, wrong: Collection[str] = ()) -> draw.Figure:
    figure = canvas(0.9 + 1.25 * len(runs), "Where did the workers' time go?")
    axes = draw.stacked_axes(figure, [1] * len(runs))
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        draw.lanes(ax, [f"worker {w + 1}" for w in range(len(run.busy))])
        for worker, (busy, waited) in enumerate(zip(run.busy, run.waited, strict=True)):
            parts = [
                (f"{name} waited {worker}", waited, YELLOW),
                (f"{name} busy {worker}", busy, BLUE),
                (f"{name} idle {worker}", run.makespan - waited - busy, PALE),
            ]
            draw.stack(ax, worker, parts, 0.7, linewidth=0)
        ideal = sum(run.flops) / len(run.flops) / rate
        draw.limit_line(ax, ideal, color=RED)
        ax.set_xlim(0, 1.02 * run.makespan)
        draw.second_ticks(ax.xaxis)
        if name in wrong:
            draw.mark_box(ax, (0, -0.45, run.makespan, len(run.busy) - 0.1), name)
        ax.set_title(f"{name}: busy {100 * run.utilisation:.0f} % of the time; {run!r}", color=INK)
    entries = [
        draw.patch_entry("in the kernel", BLUE),
        draw.patch_entry("its block on the way", YELLOW),
        draw.patch_entry("done, the others are not", PALE),
        draw.line_entry("a good tile, evenly split", RED, linestyle="--"),
    ]
    draw.legend(figure, entries, 4)
    return figure
