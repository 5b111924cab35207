"""10: any plan of a product judged, point by point, and the plan as advised run beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.questions.question import Input, WorkedAnswer, device, grid, question
from tiledask.lab.questions.shares import held
from tiledask.lab.questions.worked import runs
from tiledask.lab.questions.worked.products import (
    ITEM,
    MEMORY,
    MNK,
    WORKERS,
    Grid,
    by_name,
    planned,
)
from tiledask.lab.table import Comparison
from tiledask.plan.judged import Judged
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.cost import MachineRates, ProductCost, cost
from tiledask.plan.products.product_plan import RUNTIME, ProductPlan
from tiledask.plan.units import format_bytes, format_seconds

STRATEGIES = "column_parallel", "row_parallel", "summa", "cannon", "gather"
TILES = 16, 32, 64, 128, 256
cached_plan = lru_cache(64)(planned)


@dataclass(frozen=True)
class Proposal:
    """A plan of a product: blocks, strategy, tile; on GPUs of which the limits are known."""

    shape: tuple[int, int, int]
    grid: Grid
    strategy: str
    tile: int
    device: str

    @property
    def plan(self) -> ProductPlan:
        return cached_plan(*self.shape, self.grid, self.strategy)

    @cached_property
    def moved(self) -> int:
        """Bytes between workers."""
        return self.plan.traffic(ITEM).total

    @cached_property
    def ledger(self) -> Ledger:
        return ledger_of(self.plan, np.dtype("float32"), "tiled", self.tile)

    @property
    def held(self) -> int:
        """Bytes on the fullest worker."""
        return self.ledger.peak

    @cached_property
    def loaded(self) -> int:
        """Bytes that all tiles load."""
        every = map(self.plan.extents, range(self.plan.ranks))
        return sum(td.tile.traffic(*each, self.tile, ITEM).loaded for each in every if all(each))

    @property
    def flops(self) -> float:
        return 2 * float(prod(self.shape))

    @property
    def intensity(self) -> float:
        return self.flops / self.loaded

    @cached_property
    def cost(self) -> ProductCost:
        """On the GPUs by formula: tiles at their roofline, messages at the same time."""
        spec = td.load_cluster(f"{self.plan.ranks}x{self.device}")
        gpu, link = spec.device, spec.within_node
        speed = min(gpu.peak("fp32"), self.intensity * gpu.memory_bandwidth)
        rates = MachineRates(
            flops=speed, touch=gpu.memory_bandwidth, call=0.0, read=link.reached,
            message=link.latency, run=0.0, task=0.0, request=0.0, overlapped=True,
        )  # fmt: skip
        return cost(self.plan, ITEM, ITEM, rates)

    @property
    def seconds(self) -> float:
        return self.cost.total

    def __str__(self) -> str:
        return f"{self.strategy} on {self.grid[0]} x {self.grid[1]}, tiles of {self.tile}"


def _others(given: Proposal) -> Iterator[Proposal]:
    """Every strategy on every grid, in every tile."""
    grids = td.formulas.grids(given.plan.ranks, 2)
    for over, strategy in product(grids, STRATEGIES):
        try:
            cached_plan(*given.shape, over, strategy)
        except PlacementError:
            continue
        for tile in dict.fromkeys((given.tile, *TILES)):
            yield replace(given, grid=over, strategy=strategy, tile=tile)


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1e-6 else f"{1e9 * seconds:.3g} ns"


def _points(given: Proposal, others: list[Proposal], memory: int) -> list[Judged]:
    """What is good and bad of ``given`` beside ``others``."""
    ranks, ridge = given.plan.ranks, td.tile.ridge(given.device)
    least = min(
        [given, *([o for o in others if o.held <= memory] or others)], key=lambda o: o.moved
    )
    by = "as little as any" if least.moved == given.moved else (
        f"{format_bytes(least.moved)} by {least.strategy} on {least.grid[0]} x {least.grid[1]}; "
        f"1.1 times that is a fault"
    )  # fmt: skip
    flops = [float(prod(given.plan.extents(rank))) for rank in range(ranks)]
    balance = max(flops) * ranks / sum(flops)
    ideal = given.flops / ranks / td.load_cluster(f"1x{given.device}").device.peak("fp32")
    what = "messages" if given.cost.read >= given.cost.multiply else "tiles"
    return [
        Judged("memory", given.held <= memory,
               f"the fullest worker holds {format_bytes(given.held)} of {format_bytes(memory)}: "
               f"{held(given.ledger)}"),
        Judged("balance", balance <= 1.1,
               f"the fullest worker has {balance:.3g} times the mean FLOP; above 1.1 is a fault"),
        Judged("traffic", given.moved <= 1.1 * least.moved,
               f"workers receive {format_bytes(given.moved)}, from A and B in {given.grid[0]} x "
               f"{given.grid[1]} blocks, {by}"),
        Judged("barriers", not given.plan.sums,
               "partial sums of C: all workers wait for each other once more, and send them"
               if given.plan.sums else "nothing is summed: each worker ends by itself"),
        Judged("tiles", given.intensity >= ridge,
               f"{given.intensity:.3g} FLOP a byte loaded; the {given.device} needs {ridge:.3g}, "
               f"tiles of {ceil(ITEM * ridge)}"),
        Judged("time", given.seconds <= 2 * ideal,
               f"{_time(given.seconds)} by formula, set by {what}: {given.seconds / ideal:,.4g} "
               f"times the ideal {_time(ideal)}; above 2 is a fault"),
    ]  # fmt: skip


@question(
    10,
    "Critique of a Parallelization Strategy",
    "A product, {m} x {k} by {k} x {n}, is computed by {workers} workers as {strategy} on a "
    "blocking of {blocking}, in tiles of {tile}. What is wrong with this plan, and what would be "
    "better?",
    **MNK,
    workers=WORKERS,
    blocking=Input("rows x columns of workers; auto: square", check=grid),
    strategy=Input("who computes what", choices=STRATEGIES),
    tile=Input("extent of a tile", 1, 1024),
    memory=MEMORY,
    device=Input("GPU whose limits count", check=device),
)
def critique(
    m: int = 512,
    n: int = 512,
    k: int = 512,
    workers: int = 4,
    blocking: str = "auto",
    strategy: str = "row_parallel",
    tile: int = 16,
    memory: int = 40_000_000,
    device: str = "H200",
) -> WorkedAnswer:
    """Six lines on the plan, and what would be better.

    Advised is the fastest that fits and neither moves nor loads more, in the smallest tile that
    feeds the device, if it is faster by more than rounding; of a plan that does not fit, the
    fastest that does.
    """
    grids = by_name([*td.formulas.grids(workers, 2)])
    grids["auto"] = max(grids.values(), key=lambda g: (-max(g), g))
    if blocking not in grids:
        raise ConfigError(
            f"a blocking of {blocking} is not one of {workers} workers; there are "
            f"{', '.join(grids)}"
        )
    given = Proposal((m, n, k), grids[blocking], strategy, tile, device)
    given.plan  # noqa: B018  PlacementError
    others, fits, ridge = [*_others(given)], given.held <= memory, td.tile.ridge(device)
    alike = [other for other in others if other.tile == tile]
    points = _points(given, alike, memory)
    faults = [point.about for point in points if not point.good]
    words = [*map(str, points)]
    better = (
        o for o in others
        if (not fits or (o.moved <= given.moved and o.loaded <= given.loaded)) and o.held <= memory
    )  # fmt: skip
    advised = min(
        better, key=lambda o: (o.seconds, max(0.0, ridge - o.intensity), o.tile), default=None
    )
    if advised and fits:
        gains = advised.seconds < given.seconds and _time(advised.seconds) != _time(given.seconds)
        advised = advised if gains else None
    if advised:
        end = f"Take {advised}: {_time(advised.seconds)} for {_time(given.seconds)}"
        again = _points(advised, alike, memory)
        words += [f"advised: {advised}", *(str(each) for each in again if each.about in faults)]
    elif not fits:
        least = min(others, key=lambda other: other.held)
        more = "workers" if memory > RUNTIME else "memory"
        end = f"No plan fits: {least} still holds {format_bytes(least.held)}; take more {more}"
    else:
        end = f"No other plan that moves and loads no more is faster than {_time(given.seconds)}"
    after = advised or given

    def run(cluster: Cluster) -> Comparison:
        """The plan, and the plan as advised, on workers: what they send, load and hold."""
        a, b = runs.whole_numbers(10, (m, k), (k, n))
        rows = []
        for name, each in {"as given": given, "as advised": after}.items():
            how: dict[str, Any] = {"algorithm": each.strategy, "kernel": "tiled", "tile": each.tile}
            C = runs.multiplied(cluster, a, b, each.grid, **how)
            rows += runs.product_claims(name, C, a @ b, each.moved, each.loaded)
        return Comparison(f"{m} x {n} x {k} on {workers} workers, as given and as advised", rows)

    return WorkedAnswer(
        f"Faults of {given}: {', '.join(faults) or 'none'} ({len(faults)} of {len(points)} "
        f"points). {end}.",
        words,
        {
            "faults": faults,
            "advised": str(after),
            "seconds": given.seconds,
            "seconds, advised": after.seconds,
            "moved": given.moved,
            "held": given.held,
            "loaded": given.loaded,
            "room left": memory - given.held,
        },
        run,
        workers,
        device="cpu",
    )
