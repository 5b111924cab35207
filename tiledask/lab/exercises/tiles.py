"""One product in tiles: a loop to repair, sizes of tiles to choose, and which level is at fault.

          |<----------------------- makespan ------------------------>|
worker 1  |busy busy busy busy busy busy busy busy busy busy busy busy|
worker 2  |wait wait|busy busy busy busy|              idle           |
          |<------ mean busy ------>|<------- lost between workers -->|
          |<- ideal ->|<- in tiles->|    ideal: all FLOP at the rate of a good tile
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from distributed import Worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError, RuleError
from tiledask.lab import plots
from tiledask.lab.exercises.exercise import (
    calling,
    exercise,
    instance,
    none_wrong,
    whole_numbers,
)
from tiledask.lab.judging import Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile import Config, Tile, config_of, count_traffic, order, predict, traffic
from tiledask.tile.choice.residency import refusal

__all__ = ["four_products", "levels_at_fault", "repaired_kernel", "tile_within"]

MB = 1_000_000
Size = tuple[int, int, int]
"""(m, n, k) of a product."""

# -- a loop to repair ------------------------------------------------------------------------------

SHAPES = ((4, 6, 8), (7, 5, 3), (1, 1, 1), (1, 9, 4), (10, 1, 7), (13, 11, 9))
"""(m, n, k): tiles divide the first, and leave rests of the others."""
TILES = ((2, 3, 4), (4, 4, 4), (5, 2, 3), (16, 16, 16))


@exercise("repaired-kernel", instance(Callable))
def repaired_kernel(kernel: Callable[..., Any]) -> list[Target]:
    """Write a function (a, b, (tm, tn, tk)) -> a @ b that multiplies tile by tile, or repair one.

    It is run on whole numbers, whose sums are exact, in shapes that the tile divides and shapes
    that it does not. Every product of tiles is seen: none may be larger than the tile, and as many
    bytes are loaded as the formula of `td.tile.traffic` says."""
    elements, off, sums, large, loads = 0, 0, [], [], []
    for (m, n, k), tile in product(SHAPES, TILES):
        rng = np.random.default_rng([m, n, k])
        a, b = (rng.integers(1, 10, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        c, log = _run(kernel, a, b, tile)
        at, wrong = f"for {a.shape} @ {b.shape} in tiles of {tile}", np.argwhere(c != a @ b)
        if len(wrong):
            elements += len(wrong)
            (top, left), (low, right) = wrong.min(0), wrong.max(0)
            place = f"rows {top} to {low}, columns {left} to {right}"
            # what is wrong in a part of C says more than what is wrong everywhere
            sums.append((len(wrong) == c.size, f"C is wrong in {place}, {at}"))
        limits = ((tile[0], tile[2]), (tile[2], tile[1]))
        large += [
            f"{x} @ {y} is larger than a tile {at}"
            for x, y in log
            if len(x) != 2 or len(y) != 2 or (np.array([x, y]) > limits).any()
        ]
        wanted = traffic(m, n, k, tile, a.itemsize).loaded
        loaded = sum(a.itemsize * int(np.prod(shape)) for both in log for shape in both)
        off += abs(loaded - wanted)
        if loaded != wanted:
            side = "many" if loaded > wanted else "few; what is counted is @, np.matmul and np.dot"
            loads.append(f"{loaded:,} bytes are loaded, of {wanted:,} by the formula: too {side}")
    located = [said for _, said in sorted(sums)[:1]]
    return [
        none_wrong("wrong elements of C", located, elements),
        none_wrong("products larger than a tile", large[:1], len(large)),
        none_wrong("bytes loaded beside the formula", loads[:1], off),
    ]


def _run(
    kernel: Callable[..., Any], a: np.ndarray, b: np.ndarray, tile: Tile
) -> tuple[np.ndarray, list[Any]]:
    """(what a kernel returns, the shapes of both operands of each product that it made)."""
    log: list[Any] = []

    class CountedOperand(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            if ufunc is np.matmul:
                log.append(tuple(np.shape(x) for x in inputs))
            if "out" in options:
                options["out"] = tuple(map(plain, options["out"]))
            return getattr(ufunc, method)(*map(plain, inputs), **options)

        def __array_function__(self, called: Any, types: Any, args: Any, options: Any) -> Any:
            if called is np.dot:  # of matrices the same
                return np.matmul(*args, **options)
            return super().__array_function__(called, types, args, options)

        def dot(self, other: Any, out: Any = None) -> Any:
            return np.matmul(self, other, out=out)

    def plain(x: Any) -> Any:
        return x.view(np.ndarray) if isinstance(x, CountedOperand) else x

    with calling(kernel, f"for {a.shape} @ {b.shape} in tiles of {tile}"):
        c = np.asarray(kernel(*(x.copy().view(CountedOperand) for x in (a, b)), tile))
    if c.shape != (len(a), b.shape[1]):
        raise RuleError(f"{a.shape} @ {b.shape} is {(len(a), b.shape[1])}; got {c.shape} back")
    return c, log


# -- a tile within shared memory -------------------------------------------------------------------

SIDES, STEPS, STAGES = (64, 128, 256), (16, 32, 64), (2, 3, 4, 5, 6)
"""Rows or columns of C, elements of k, and stages that an answer may have."""
L2 = "L2 -> shared memory"


@cache
def space() -> dict[tuple[Tile, int], Config]:
    """Every answer there is: tiles of the bf16 kernel, with any step and number of stages."""
    return {
        (tile, stages): replace(config_of("mma_multistage", "bfloat16", tile), stages=stages)
        for tile, stages in product(product(SIDES, SIDES, STEPS), STAGES)
    }


def _tile_of(answer: Any) -> Config | None:
    tile, stages = answer
    (count,) = whole_numbers((stages,), 1)
    return space().get((whole_numbers(tile, 3), count))


def _levels(
    config: Config | None, size: Size, device: str, limit: int, stages: int, **_: Any
) -> Figure:
    shown = config or space()[(64, 64, 16), stages]
    levels = predict(*size, shown, device).levels
    inside = replace(levels, levels=levels.levels[1:])  # DRAM is not what is chosen for
    bars = {f"{level.name}\n{level.intensity:.4g} FLOP/byte": level.name for level in inside.levels}
    return plots.memory_bars(
        {words: {"time": 1e6 * inside.times[name]} for words, name in bars.items()},
        unit="µs",
        place="level",
        title=f"{shown} on {device}, {limit / 1e3:g} kB allowed",
    )


@cache
def _best(
    size: Size, device: str, limit: int, stages: int, most: float, steps: int
) -> tuple[int, float]:
    """(bytes into shared memory, at least; seconds) of the tiles that keep to all limits."""
    usable = [
        each
        for each in space().values()
        if each.stages >= stages and each.shared_bytes <= limit and not refusal(each, device)
    ]
    fitting = [
        p
        for p in order(*size, usable, device)
        if p.levels[L2].loaded <= most and -(-size[2] // p.config.block[2]) <= steps
    ]
    return min(p.levels[L2].loaded for p in fitting), fitting[0].seconds


@exercise("tile-within", _tile_of, _levels)
def tile_within(
    config: Config,
    size: Size = (4096, 4096, 4096),
    device: str = "H200",
    limit: int = 100_000,
    stages: int = 4,
    intensity: float = 800 / 10.14,
    steps: int = 128,
) -> list[Target]:
    """Choose tile and stages of the bf16 kernel mma_multistage, within a limit of shared memory,
    with enough FLOP per byte and few enough steps along k; the fastest by its bound."""
    if config.stages < stages:
        raise RuleError(f"the task has {stages} stages or more; got {config.stages}")
    (m, n, k), (tm, tn, tk), flops = size, config.block, 2 * int(np.prod(size))
    least, seconds = _best(size, device, limit, stages, flops / intensity, steps)
    found = predict(m, n, k, config, device)
    loaded, shared = found.levels[L2].loaded, config.shared_bytes / 1e3
    took, best = (round(1e6 * each, 2) for each in (found.seconds, seconds))
    stage = f"a stage of ({tm} + {tn}) x {tk} numbers takes {shared / config.stages:.4g}"
    reuse = f"a byte brings {flops / loaded:.3g} FLOP, {intensity:.3g} are asked"
    most, bound = flops / intensity / 1e9, f"bound by {found.binding}"
    return [
        Target("kB of shared memory per block", limit / 1e3, shared, where=stage),
        Target("GB into shared memory", most, loaded / 1e9, least / 1e9, where=reuse),
        Target("steps along k", steps, -(-k // tk), where=f"{k} / {tk} steps"),
        Target("microseconds at least", best, took, best, where=bound),
    ]


# -- which level is at fault -----------------------------------------------------------------------


class BlockRun(NamedTuple):
    """What a product by rows measured, a number for each worker."""

    flops: tuple[int, ...]
    loaded: tuple[int, ...]
    """Bytes that the tiles loaded, counted."""
    busy: tuple[float, ...]
    """Seconds of processor time in the kernel, the least of three."""
    waited: tuple[float, ...]
    """Seconds that its block took to arrive."""
    received: tuple[int, ...]
    """Bytes that came from other workers meanwhile."""

    def lost(self, rate: float) -> dict[str, float]:
        """Seconds lost at either level, beside a kernel of ``rate`` FLOP/s and an even split: by
        waiting for other workers, and inside the tiles' own loop."""
        makespan = max(b + w for b, w in zip(self.busy, self.waited, strict=True))
        mean = sum(self.busy) / len(self.busy)
        return {
            "blocking": makespan - mean,
            "tile": mean - sum(self.flops) / len(self.flops) / rate,
        }

    def __repr__(self) -> str:
        flops = ", ".join(f"{f / 1e6:.0f}" for f in self.flops)
        return (
            f"{flops} MFLOP on the workers, {format_bytes(sum(self.received))} between them, "
            f"{sum(self.flops) / sum(self.loaded):.3g} FLOP per byte loaded"
        )


def run_blocks(
    cluster: Cluster, a: np.ndarray, b: np.ndarray, rows: Sequence[int], tile: int, home: int = -1
) -> BlockRun:
    """``a @ b`` in tiles of ``tile`` cubed, each worker its ``rows`` of ``a``, measured. Blocks lie
    on their workers before, or all on worker ``home``, from where the others fetch theirs."""
    slots, parts = range(len(rows)), np.split(a, np.cumsum(rows)[:-1])
    at = [slot if home < 0 else home for slot in slots]
    lay = [cluster.submit(to, np.asarray, part) for to, part in zip(at, parts, strict=True)]
    others = [cluster.submit(slot, np.asarray, b) for slot in slots]
    cluster.wait([*lay, *others], "the blocks", cancel=True)
    before = cluster.run(_transfers)
    tasks = [
        cluster.submit(slot, _multiply, lay[slot], others[slot], tile, name="tile_product")
        for slot in slots
    ]
    made = cluster.gather(tasks, "the products", cancel=True)
    after = cluster.run(_transfers)
    came = [after[slot][len(before[slot]) :] for slot in slots]
    waited = [sum(seconds for seconds, _ in log) for log in came]
    received = [sum(nbytes for _, nbytes in log) for log in came]
    return BlockRun(*map(tuple, (*zip(*made, strict=True), waited, received)))


def _multiply(a: np.ndarray, b: np.ndarray, tile: int) -> tuple[int, int, float]:
    """(FLOP, bytes loaded, seconds of this thread): workers may outnumber cores."""
    count_traffic(a[:tile, :tile], b[:tile, :tile], tile=tile)  # the first call is not like others
    took = []
    for _ in range(3):
        begun = time.thread_time()
        _, counted = count_traffic(a, b, tile=tile)
        took.append(time.thread_time() - begun)
    return counted.flops, counted.loaded, min(took)


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
    rate = max(f / b for f, b in zip(good.flops, good.busy, strict=True))
    return {name: run(name, **split) for name, split in PRODUCTS.items()}, rate


def _bars(_: Any, runs: Mapping[str, BlockRun], rate: float) -> Figure:
    """Each worker's time, in the parts that were measured; last, a good tile and an even split."""
    panels: dict[str, Any] = {}
    for name, run in runs.items():
        lanes = {
            f"worker {w + 1}": [("its block on the way", 0, wait), ("kernel", wait, wait + busy)]
            for w, (wait, busy) in enumerate(zip(run.waited, run.busy, strict=True))
        }
        ideal = sum(run.flops) / len(run.flops) / rate
        panels[f"{name}: {run!r}"] = lanes | {"a good tile": [("good tile", 0, ideal)]}
    return plots.slots(panels, title="Where did the workers' time go?")


@exercise("levels-at-fault", dict, _bars)
def levels_at_fault(
    answer: dict[str, Any], runs: Mapping[str, BlockRun], rate: float
) -> list[Target]:
    """Say for each of the products at which level more time is lost: "blocking", between the
    workers, or "tile", within them."""
    lost = {name: run.lost(rate) for name, run in runs.items()}
    if set(answer) != set(lost) or not all(answer[name] in (*lost[name],) for name in lost):
        raise ConfigError(f"a level, 'blocking' or 'tile', belongs to each of {', '.join(runs)}")
    wrong = [
        f"{name}: {format_seconds(max(0.0, lost[name][level]))} are lost at the level {level}, "
        f"{format_seconds(max(lost[name].values()))} at the other"
        for name, level in answer.items()
        if lost[name][level] < max(lost[name].values())
    ]
    return [none_wrong("levels named wrongly", wrong)]
