"""10: any plan of a product judged, line by line, and the plan as advised run beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
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
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.judged import Judged
from tiledask.plan.products.cost import MachineRates, cost
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import plan_product
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["QUESTION"]

ITEM = 4
"""Bytes of a float32."""
STRATEGIES = "column_parallel", "row_parallel", "summa", "cannon", "gather"
TILES = 16, 32, 64, 128, 256


@dataclass(frozen=True)
class Proposal:
    """A plan of a product: blocks, strategy, tile; on GPUs of which the limits are known."""

    shape: tuple[int, int, int]
    grid: tuple[int, int]
    strategy: str
    tile: int
    device: str

    @cached_property
    def plan(self) -> ProductPlan:
        m, n, k = self.shape
        a, b = (Tiling(shape, self.grid, GRID) for shape in ((m, k), (k, n)))
        return plan_product(self.strategy, a, b)

    @cached_property
    def moved(self) -> int:
        """Bytes between workers."""
        return self.plan.traffic(ITEM).total

    @cached_property
    def held(self) -> int:
        """Bytes on the fullest worker."""
        return ledger_of(self.plan, np.dtype("float32"), "tiled", self.tile).peak

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
    def seconds(self) -> float:
        """On the GPUs by formula: tiles at their roofline, messages beside them."""
        spec = td.load_cluster(f"{self.plan.ranks}x{self.device}")
        gpu, link = spec.device, spec.within_node
        speed = min(gpu.peak("fp32"), self.intensity * gpu.memory_bandwidth)
        rates = MachineRates(
            flops=speed, touch=gpu.memory_bandwidth, call=0.0, read=link.reached,
            message=link.latency, run=0.0, task=0.0, request=0.0, overlapped=True,
        )  # fmt: skip
        return cost(self.plan, ITEM, ITEM, rates).total

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


def _others(given: Proposal) -> Iterator[Proposal]:
    """Every strategy on every grid, in every tile."""
    for grid in td.formulas.grids(given.plan.ranks, 2):
        for strategy in STRATEGIES:
            for tile in dict.fromkeys((given.tile, *TILES)):
                other = replace(given, grid=grid, strategy=strategy, tile=tile)
                try:
                    other.plan  # noqa: B018
                except PlacementError:
                    continue
                yield other


def _advised(given: Proposal, memory: int) -> Proposal:
    """The fastest by formula that fits and neither moves nor loads more, in the smallest tile
    that feeds the device; ``given`` if it is that."""
    ridge = td.tile.ridge(given.device)
    better = [
        each for each in _others(given)
        if each.held <= memory and each.moved <= given.moved and each.loaded <= given.loaded
    ]  # fmt: skip

    def worth(each: Proposal) -> tuple:
        return each.held > memory, each.seconds, max(0.0, ridge - each.intensity), each.tile

    return min([given, *better], key=worth)


def _lines(given: Proposal, memory: int) -> Iterator[Judged]:
    ridge = td.tile.ridge(given.device)
    least = min((each for each in _others(given) if each.held <= memory), default=given,
                key=lambda each: each.moved)  # fmt: skip
    yield Judged(
        "memory",
        given.held <= memory,
        f"the fullest worker holds {format_bytes(given.held)} of {format_bytes(memory)}",
    )
    yield Judged(
        "balance",
        given.balance <= 1.1,
        f"the fullest worker has {given.balance:.3g} times the mean FLOP; above 1.1 is a fault",
    )
    yield Judged(
        "traffic",
        given.moved <= 1.1 * least.moved,
        f"{format_bytes(given.moved)} between workers, {format_bytes(least.moved)} by "
        f"{least.strategy} on {least.grid[0]} x {least.grid[1]}; 1.1 times that is a fault",
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
        f"{td.tile.ridge_extent(given.device)}",
    )
    yield Judged(
        "time",
        given.seconds <= 2 * given.ideal,
        f"{format_seconds(given.seconds)} by formula, {given.seconds / given.ideal:.3g} times the "
        f"ideal {format_seconds(given.ideal)}; above 2 is a fault",
    )


def work(memory: int, **plan: Any) -> WorkedAnswer:
    """Six lines on the plan, and what would be better."""
    given = _proposal(**plan)
    lines, advised = list(_lines(given, memory)), _advised(given, memory)
    faults = [line.about for line in lines if not line.good]
    again = {line.about: line for line in _lines(advised, memory)}
    said = (
        f"Take {advised}: {format_seconds(advised.seconds)} for {format_seconds(given.seconds)}"
        if advised != given
        else f"Nothing is faster than {format_seconds(given.seconds)} by formula"
    )
    shown = ", ".join(faults) if faults else "none"
    return WorkedAnswer(
        f"Of {given}, {len(faults)} of {len(lines)} are faults: {shown}. {said}.",
        [
            *map(str, lines),
            f"advised: {advised}",
            *(str(again[name]) for name in faults),
        ],
        {
            "faults": faults,
            "advised": str(advised),
            "seconds": given.seconds,
            "seconds, advised": advised.seconds,
            "moved": given.moved,
            "held": given.held,
            "loaded": given.loaded,
            "room left": memory - given.held,
        },
    )


def run(cluster: Cluster, memory: int, **plan: Any) -> Comparison:
    """The plan, and the plan as advised, on workers: what they send, load and hold."""
    given = _proposal(**plan)
    advised = _advised(given, memory)
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
    asked="A product of 512 x 512 x 512 is computed by 4 workers, row-parallel from blocks on "
    "2 x 2, in tiles of 16. What is wrong with this plan, and what would be better?",
    inputs={
        "m": Input(512, 640, whole(1, 8192), "rows of A"),
        "n": Input(512, 640, whole(1, 8192), "columns of B"),
        "k": Input(512, 640, whole(1, 8192), "columns of A, and rows of B"),
        "workers": Input(4, 2, whole(2, 64), "workers"),
        "blocking": Input(
            "auto", "4x1", grid_of_workers, "rows x columns of workers; auto: square"
        ),
        "strategy": Input("row_parallel", "summa", choice(STRATEGIES), "who computes what"),
        "tile": Input(16, 64, whole(1, 1024), "extent of a tile"),
        "memory": Input(40_000_000, 20_000_000, size, "bytes of a worker"),
        "device": Input("H200", "L4", device_name, "GPU whose limits are told"),
    },
    work=work,
    run=run,
    workers=lambda workers, **_: workers,
    device="cpu",
)
