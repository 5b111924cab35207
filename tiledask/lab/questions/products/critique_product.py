"""10: any plan of a product judged, line by line, and the plan as advised run beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.product_claims import GRID
from tiledask.lab.puzzles.fields import choice, size, whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.readers import device as device_name
from tiledask.lab.questions.readers import grid as grid_of_workers
from tiledask.lab.questions.shares import held
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.judged import Judged
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.cost import MachineRates, ProductCost, cost
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import plan_product
from tiledask.plan.products.product_plan import RUNTIME, ProductPlan
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["QUESTION"]

ITEM = 4
"""Bytes of a float32."""
STRATEGIES = "column_parallel", "row_parallel", "summa", "cannon", "gather"
TILES = 16, 32, 64, 128, 256


@lru_cache(64)
def _planned(shape: tuple[int, int, int], grid: tuple[int, int], strategy: str) -> ProductPlan:
    m, n, k = shape
    a, b = (Tiling(shape, grid, GRID) for shape in ((m, k), (k, n)))
    return plan_product(strategy, a, b)


@dataclass(frozen=True)
class Proposal:
    """A plan of a product: blocks, strategy, tile; on GPUs of which the limits are known."""

    shape: tuple[int, int, int]
    grid: tuple[int, int]
    strategy: str
    tile: int
    device: str

    @property
    def plan(self) -> ProductPlan:
        return _planned(self.shape, self.grid, self.strategy)

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
        every = (self.plan.extents(rank) for rank in range(self.plan.ranks))
        return sum(td.tile.traffic(*each, self.tile, ITEM).loaded for each in every if all(each))

    @cached_property
    def balance(self) -> float:
        """FLOP of the fullest worker over the mean."""
        flops = [np.prod(self.plan.extents(rank)) for rank in range(self.plan.ranks)]
        return float(max(flops) * len(flops) / sum(flops))

    @property
    def intensity(self) -> float:
        return 2 * float(np.prod(self.shape)) / self.loaded

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

    @property
    def ideal(self) -> float:
        """Seconds of an even share of the FLOP at the peak."""
        peak = td.load_cluster(f"1x{self.device}").device.peak("fp32")
        return 2 * float(np.prod(self.shape)) / self.plan.ranks / peak

    def __str__(self) -> str:
        return f"{self.strategy} on {self.grid[0]} x {self.grid[1]}, tiles of {self.tile}"


def _proposal(
    m: int, n: int, k: int, workers: int, blocking: str, strategy: str, tile: int, device: str
) -> Proposal:
    grids = {"x".join(map(str, g)): g for g in td.formulas.grids(workers, 2)}
    grids["auto"] = max(grids.values(), key=lambda g: (-max(g), g))
    if blocking not in grids:
        raise ConfigError(
            f"a blocking of {blocking} is not one of {workers} workers; there are "
            f"{', '.join(grids)}"
        )
    return Proposal((m, n, k), grids[blocking], strategy, tile, device)


@lru_cache(4)
def _others(given: Proposal) -> tuple[Proposal, ...]:
    """Every strategy on every grid, in every tile."""
    found = []
    for grid in td.formulas.grids(given.plan.ranks, 2):
        for strategy in STRATEGIES:
            for tile in dict.fromkeys((given.tile, *TILES)):
                other = replace(given, grid=grid, strategy=strategy, tile=tile)
                try:
                    other.plan  # noqa: B018
                except PlacementError:
                    continue
                found.append(other)
    return tuple(found)


def _advised(given: Proposal, memory: int) -> Proposal | None:
    """The fastest by formula that fits and neither moves nor loads more, in the smallest tile
    that feeds the device; None if nothing is faster than ``given`` by more than rounding.
    Where ``given`` does not fit, the fastest that does."""
    ridge, fits = td.tile.ridge(given.device), given.held <= memory
    better = [
        each for each in _others(given)
        if (not fits or (each.moved <= given.moved and each.loaded <= given.loaded))
        and each.held <= memory
    ]  # fmt: skip

    def worth(each: Proposal) -> tuple:
        return each.seconds, max(0.0, ridge - each.intensity), each.tile

    best = min(better, key=worth, default=None)
    if best is None or not fits:
        return best
    gains = best.seconds < given.seconds
    return best if gains and _time(best.seconds) != _time(given.seconds) else None


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1e-6 else f"{1e9 * seconds:.3g} ns"


def _lines(first: Proposal, memory: int, given: Proposal | None = None) -> Iterator[Judged]:
    """What is good and bad of ``given``, or of the ``first`` plan, beside all others."""
    given = given or first
    ridge = td.tile.ridge(given.device)
    others = [each for each in _others(first) if each.tile == first.tile]
    fitting = [each for each in others if each.held <= memory] or others
    least = min([given, *fitting], key=lambda each: each.moved)
    yield Judged(
        "memory",
        given.held <= memory,
        f"the fullest worker holds {format_bytes(given.held)} of {format_bytes(memory)}: "
        f"{held(given.ledger)}",
    )
    yield Judged(
        "balance",
        given.balance <= 1.1,
        f"the fullest worker has {given.balance:.3g} times the mean FLOP; above 1.1 is a fault",
    )
    by = "as little as any" if least.moved == given.moved else (
        f"{format_bytes(least.moved)} by {least.strategy} on {least.grid[0]} x {least.grid[1]}; "
        f"1.1 times that is a fault"
    )  # fmt: skip
    yield Judged(
        "traffic",
        given.moved <= 1.1 * least.moved,
        f"workers receive {format_bytes(given.moved)}, from A and B in {given.grid[0]} x "
        f"{given.grid[1]} blocks, {by}",
    )
    sums = given.plan.sums
    yield Judged(
        "barriers",
        not sums,
        "partial sums of C: all workers wait for each other once more, and send them"
        if sums
        else "nothing is summed: each worker ends by itself",
    )
    yield Judged(
        "tiles",
        given.intensity >= ridge,
        f"{given.intensity:.3g} FLOP a byte loaded; the {given.device} needs {ridge:.3g}, tiles of "
        f"{ceil(ITEM * ridge)}",
    )
    what = "messages" if given.cost.read >= given.cost.multiply else "tiles"
    yield Judged(
        "time",
        given.seconds <= 2 * given.ideal,
        f"{_time(given.seconds)} by formula, set by {what}: {given.seconds / given.ideal:,.4g} "
        f"times the ideal {_time(given.ideal)}; above 2 is a fault",
    )


def work(memory: int, **plan: Any) -> WorkedAnswer:
    """Six lines on the plan, and what would be better."""
    given = _proposal(**plan)
    lines, advised = [*_lines(given, memory)], _advised(given, memory)
    faults = [line.about for line in lines if not line.good]
    words = [*map(str, lines)]
    if advised:
        said = f"Take {advised}: {_time(advised.seconds)} for {_time(given.seconds)}"
        again = [str(line) for line in _lines(given, memory, advised) if line.about in faults]
        words += [f"advised: {advised}", *again]
    elif given.held > memory:
        least = min(_others(given), key=lambda each: each.held)
        more = "workers" if memory > RUNTIME else "memory"
        said = f"No plan fits: {least} still holds {format_bytes(least.held)}; take more {more}"
    else:
        said = f"No other plan that moves and loads no more is faster than {_time(given.seconds)}"
    shown = ", ".join(faults) if faults else "none"
    return WorkedAnswer(
        f"Faults of {given}: {shown} ({len(faults)} of {len(lines)} points). {said}.",
        words,
        {
            "faults": faults,
            "advised": str(advised or given),
            "seconds": given.seconds,
            "seconds, advised": (advised or given).seconds,
            "moved": given.moved,
            "held": given.held,
            "loaded": given.loaded,
            "room left": memory - given.held,
        },
    )


def run(cluster: Cluster, memory: int, **plan: Any) -> Comparison:
    """The plan, and the plan as advised, on workers: what they send, load and hold."""
    given = _proposal(**plan)
    advised = _advised(given, memory) or given
    m, n, k = given.shape
    rng = np.random.default_rng(10)
    a, b = (rng.integers(-2, 3, shape).astype("float32") for shape in ((m, k), (k, n)))
    counted, rows = {}, []
    for name, plan_of in {"as given": given, "as advised": advised}.items():
        mesh = td.Mesh(cluster, plan_of.grid)
        A, B = (td.distribute(x, mesh, GRID) for x in (a, b))
        C = td.matmul(A, B, algorithm=plan_of.strategy, kernel="tiled", tile=plan_of.tile)
        moved, loaded = C.traffic.measured.total, C.tiles.loaded
        counted[name] = moved, loaded
        same = bool((td.to_numpy(C) == a @ b).all())
        rows += [
            Claim(f"{name}: between workers", plan_of.moved, C.traffic.predicted.total, moved,
                  "bytes", "equal", str(plan_of)),
            Claim(f"{name}: loaded by tiles", plan_of.loaded, None, loaded, "bytes", "equal"),
            Claim(f"{name}: on the fullest worker", plan_of.held, None, C.memory.measured.peak,
                  "bytes", "at most"),
            Claim(f"{name}: C is A B, every number", measured=same, rule="true",
                  note=f"{C.seconds:.3g} s here, on CPU workers"),
        ]  # fmt: skip
    for i, what in enumerate(("between workers", "loaded by tiles")):
        rows.append(
            Claim(f"{what}: advised at most as given", counted["as given"][i], None,
                  counted["as advised"][i], "bytes", "at most",
                  note="both measured, the plan as given first")
        )  # fmt: skip
    return Comparison(
        f"{m} x {n} x {k} on {plan['workers']} workers, as given and as advised", rows
    )


QUESTION = CourseQuestion(
    number=10,
    title="Critique of a Parallelization Strategy",
    asked=lambda memory, **plan: (
        f"A product, {plan['m']} x {plan['k']} by {plan['k']} x {plan['n']}, is computed by "
        f"{plan['workers']} workers as {_proposal(**plan)}. What is wrong with this plan, and what "
        f"would be better?"
    ),
    inputs={
        "m": Input(512, whole(1, 65536), "rows of A"),
        "n": Input(512, whole(1, 65536), "columns of B"),
        "k": Input(512, whole(1, 65536), "columns of A, and rows of B"),
        "workers": Input(4, whole(2, 64), "workers"),
        "blocking": Input("auto", grid_of_workers, "rows x columns of workers; auto: square"),
        "strategy": Input("row_parallel", choice(STRATEGIES), "who computes what"),
        "tile": Input(16, whole(1, 1024), "extent of a tile"),
        "memory": Input(40_000_000, size, "bytes of a worker"),
        "device": Input("H200", device_name, "GPU whose limits count"),
    },
    work=work,
    run=run,
    workers=lambda workers, **_: workers,
    device="cpu",
    largest_run={"m": 8192, "n": 8192, "k": 8192},
)
