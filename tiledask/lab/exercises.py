"""The walkthroughs' exercises: each draws an answer, runs it or works it out, and judges it.

    exercise = tasks_on_slots(cluster)
    answer = None
    exercise.draw(answer)
    exercise.check(answer)             # a Result, as of the puzzles: quiet if not attempted
    exercise.check(answer).require()   # raises unless every target is met

No answer is stored. What the answer reaches is measured on the cluster or computed by the planner;
the best possible is found by trying everything.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import get_worker

from tiledask.dist.array import ShardedArray, distribute, to_numpy
from tiledask.dist.cluster import Cluster
from tiledask.dist.collectives import redistribute
from tiledask.dist.matmul import algorithms, choose, matmul
from tiledask.dist.mesh import Mesh
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab import plots
from tiledask.lab.plots.style import GREY, PALETTE, RED, canvas, fitting_text, lighter, styled
from tiledask.lab.puzzles import Result, Target
from tiledask.plan.comms import redistribution, traffic_of
from tiledask.plan.fit import Fit, fits
from tiledask.plan.hardware import ClusterSpec
from tiledask.plan.layout import RECOMPUTE, Layout
from tiledask.plan.model import Model
from tiledask.plan.placement import Partial, Placement, Replicate, Shard, Tiling
from tiledask.plan.specs import load_cluster, load_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Exercise",
    "blocks_of",
    "copies_that_fit",
    "fewest_bytes",
    "fewest_gpus",
    "tasks_on_slots",
]

MB = 1_000_000


@dataclass(frozen=True)
class Exercise:
    """A task of a walkthrough: what an answer reaches, and how it looks."""

    name: str
    measure: Callable[[Any], Sequence[Target]]
    """The targets that an answer meets or misses; a ValueError says what is not legal about it."""
    figure: Callable[[Any], "Figure"]
    """A figure of an answer, or of the task for None."""

    def check(self, answer: Any) -> Result:
        """The worth of ``answer``; None is "not attempted": false, and no complaint."""
        if answer is None:
            return Result(self.name, False, False, "Not attempted yet.")
        try:
            targets = tuple(self.measure(answer))
        except ValueError as error:
            return Result(self.name, True, False, f"Not legal: {error}")
        missed = [str(target) for target in targets if not target.met]
        reason = f"Legal, but {'; '.join(missed)}." if missed else "Solved: every target is met."
        return Result(self.name, True, True, reason, targets)

    def draw(self, answer: Any = None) -> "Figure":
        """A figure of ``answer``; of the task if there is none yet or it is not legal."""
        try:
            return self.figure(answer)
        except ValueError:
            return self.figure(None)


# -- tasks on slots ------------------------------------------------------------------------------

UNITS = (7, 7, 6, 6, 5, 5, 4, 4, 4)
"""Lengths of nine tasks. Longest first, each to the slot with the least to do, gives 15; 12 is
possible. That rule is never further off: Graham, "Bounds on multiprocessing timing anomalies",
1969, (4/3 - 1/12) x 12 on 4 machines."""
UNIT = 0.05
"""Seconds of one unit."""


def tasks_on_slots(cluster: Cluster, units: Sequence[int] = UNITS) -> Exercise:
    """Place each task in a slot so that the fullest slot has as little to do as can be.

    The answer is a tuple with the slot of each task. It is run: every task says which worker did
    it, and the units are added up by worker.
    """
    slots = cluster.slots

    def measure(answer: Any) -> list[Target]:
        places = _slots_of(answer, len(units), slots)
        done = _run_naps(cluster, places, units)
        load = [sum(n for slot, n in done if slot == s) for s in range(slots)]
        best = least_load(tuple(units), slots)
        return [Target("units in the fullest slot", best, max(load), best)]

    def figure(answer: Any) -> "Figure":
        places = None if answer is None else _slots_of(answer, len(units), slots)
        return _draw_slots(places, units, slots, least_load(tuple(units), slots))

    return Exercise("tasks on slots", measure, figure)


def _slots_of(answer: Any, tasks: int, slots: int) -> tuple[int, ...]:
    places = tuple(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else ()
    whole = all(isinstance(s, int) and not isinstance(s, bool) and 0 <= s < slots for s in places)
    if len(places) != tasks or not whole:
        raise ConfigError(
            f"an answer is a tuple of {tasks} slots, each 0..{slots - 1}, got {answer!r}"
        )
    return places


def _run_naps(
    cluster: Cluster, places: Sequence[int], units: Sequence[int]
) -> list[tuple[int, int]]:
    """For every task (the slot whose worker did it, the units that it did)."""
    tries = [
        cluster.submit(slot, _nap, n, name=f"nap_{n}")
        for slot, n in zip(places, units, strict=True)
    ]
    return cluster.gather(tries, "the tasks of the exercise")


def _nap(units: int) -> tuple[int, int]:
    time.sleep(units * UNIT)
    return int(get_worker().name), units


@lru_cache(maxsize=16)
def least_load(units: tuple[int, ...], slots: int) -> int:
    """The smallest possible load of the fullest slot, found by trying every placement.

    >>> least_load((3, 3, 2, 2, 2), slots=2)
    6
    """
    loads = {(0,) * slots}
    for n in units:  # slots are alike: sorted loads are all that matters of a placement
        loads = {
            tuple(sorted((*load[:s], load[s] + n, *load[s + 1 :])))
            for load in loads
            for s in range(slots)
        }
    return min(max(load) for load in loads)


@styled
def _draw_slots(
    places: Sequence[int] | None, units: Sequence[int], slots: int, best: int
) -> "Figure":
    rows = ["not placed"] if places is None else [f"slot {s}" for s in range(slots)]
    figure = canvas(1.2 + 0.36 * len(rows), "Tasks on slots")
    axes = figure.subplots()
    ends, words = [0] * len(rows), []
    for i, n in enumerate(units):
        row = 0 if places is None else places[i]
        colour = GREY if places is None else lighter(PALETTE[row % len(PALETTE)], 0.1)
        axes.barh(row, n, 0.72, left=ends[row], color=colour, edgecolor="white", gid=f"task {i}")
        words.append(((ends[row], row - 0.36, n, 0.72), f"task {i}: {n}", colour))
        ends[row] += n
    if places is not None:
        axes.axvline(best, color=RED, linestyle="--", label=f"target: at most {best}")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)
    axes.set_xlabel(f"units of {UNIT:g} s")
    figure.draw_without_rendering()
    for box, text, colour in words:
        fitting_text(axes, box, text, colour)
    return figure


# -- the fewest GPUs -----------------------------------------------------------------------------


def fewest_gpus(model: str = "llama-2-13b", device: str = "A10", most: int = 16) -> Exercise:
    """Find a Layout with which ``model`` trains on the fewest of ``most`` devices."""
    spec, what = load_cluster(f"{most}x{device}"), load_model(model)

    def measure(answer: Any) -> list[Target]:
        fit = _fit(what, answer, spec)
        if fit.verdict != "fits":
            raise ConfigError(f'the verdict is "{fit.verdict}": {fit.reason}')
        best = min(layout.devices for layout in layouts_that_fit(what, spec))
        return [Target("GPUs", best, answer.devices, best)]

    def figure(answer: Any) -> "Figure":
        layout = Layout() if answer is None else answer
        ledger = _fit(what, layout, spec).memory.ledger
        title = f"{model} on {layout.devices} {device}, without overhead: {layout}"
        return plots.memory_bars(ledger, spec.device.memory_bytes, place="stage", title=title)

    return Exercise("the fewest GPUs", measure, figure)


def _fit(model: Model, layout: Any, spec: ClusterSpec) -> Fit:
    if not isinstance(layout, Layout):
        raise ConfigError(f"an answer is a Layout such as td.Layout(tp=2, pp=4), got {layout!r}")
    if layout.tp > spec.devices_per_node:
        raise ConfigError(
            f"tp={layout.tp} would leave the node of {spec.devices_per_node} GPUs; "
            f"use tp of {spec.devices_per_node} or less"
        )
    return fits(model, layout, spec)


@lru_cache(maxsize=16)
def layouts_that_fit(model: Model, spec: ClusterSpec) -> tuple[Layout, ...]:
    """Every layout of micro-batches of one sequence that fits on ``spec``: all of them tried."""
    return tuple(
        layout for layout in _layouts(model, spec) if fits(model, layout, spec).verdict == "fits"
    )


def _layouts(model: Model, spec: ClusterSpec) -> Iterator[Layout]:
    counts = range(1, spec.devices + 1)
    for tp, pp, dp in product(range(1, spec.devices_per_node + 1), counts, counts):
        if tp * pp * dp > spec.devices or pp > model.layers or model.heads % tp:
            continue
        for zero, recompute, sequence_parallel in product(range(4), RECOMPUTE, (False, True)):
            yield Layout(
                dp=dp, tp=tp, pp=pp, zero=zero, recompute=recompute,
                sequence_parallel=sequence_parallel,
            )  # fmt: skip


# -- how many copies fit -------------------------------------------------------------------------

ENDLESS = 2**20
"""Data-parallel GPUs that stand for any number: beyond them a share changes by bytes."""


def copies_that_fit(model: str = "llama-2-13b", device: str = "A100-40GB") -> Exercise:
    """For each ZeRO stage, the fewest data-parallel GPUs that fit, or None if no number does.

    The answer is a tuple of four: ZeRO 0, 1, 2 and 3, with full recomputation.
    """
    what, one = load_model(model), load_cluster(f"{ENDLESS}x{device}")

    def fit(zero: int, dp: int) -> Fit:
        return fits(what, Layout(dp=dp, zero=zero, recompute="full"), one)

    def right(zero: int, dp: int | None) -> bool:
        if dp is None:
            return fit(zero, ENDLESS).verdict != "fits"
        fewer = dp > 1 and fit(zero, dp - 1).verdict == "fits"
        return fit(zero, dp).verdict == "fits" and not fewer

    def measure(answer: Any) -> list[Target]:
        numbers = _degrees(answer)
        wrong = sum(not right(zero, dp) for zero, dp in enumerate(numbers))
        return [Target("ZeRO stages judged wrongly", 0, wrong, 0)]

    def figure(answer: Any) -> "Figure":
        numbers = (1,) * 4 if answer is None else _degrees(answer)
        ledgers = {
            f"ZeRO-{zero}, dp {'as you like' if dp is None else dp}": fit(
                zero, dp or ENDLESS
            ).memory.ledger
            for zero, dp in enumerate(numbers)
        }
        title = f"{model} on {device}: bytes per data-parallel GPU, without overhead"
        return plots.memory_bars(ledgers, one.device.memory_bytes, place="GPU", title=title)

    return Exercise("how many copies fit", measure, figure)


def _degrees(answer: Any) -> tuple[int | None, ...]:
    numbers = tuple(answer) if isinstance(answer, tuple | list) else ()
    whole = all(
        n is None or (isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= ENDLESS)
        for n in numbers
    )
    if len(numbers) != 4 or not whole:
        raise ConfigError(
            f"an answer has four entries, one for each of ZeRO 0, 1, 2 and 3: a number of GPUs "
            f"from 1 to {ENDLESS:,}, or None; got {answer!r}"
        )
    return numbers


# -- the fewest bytes ----------------------------------------------------------------------------

Pair = tuple[tuple[Placement, ...], tuple[Placement, ...]]
"""Placements of X and of A, one per mesh axis."""


def fewest_bytes(
    cluster: Cluster, x: np.ndarray, a: np.ndarray, *, mesh: tuple[int, ...], limit: int
) -> Exercise:
    """Choose placements of X and A so that Y = X A moves the fewest bytes between workers.

    ``limit``: bytes of X and A that a worker may hold when the product begins. Addends that the
    product leaves are summed with Partial() -> Shard(0), and those bytes count too. The answer is
    (placements of X, placements of A); it is run, and the bytes are those that workers received.
    """
    over, expected = Mesh(cluster, mesh), x @ a
    least = fewest_planned(x.shape, a.shape, mesh, x.dtype.itemsize, limit) / MB

    def measure(answer: Any) -> list[Target]:
        X, A = (distribute(m, over, p) for m, p in zip((x, a), _pair(answer), strict=True))
        held = max(map(sum, zip(X.block_bytes, A.block_bytes, strict=True))) / MB
        Y = matmul(X, A)
        moved = Y.traffic.measured.total
        if Partial() in Y.placements:
            Y = redistribute(Y, _summed(Y.placements))
            moved += Y.traffic.measured.total
        wrong = int(np.count_nonzero(to_numpy(Y) != expected))
        return [
            Target("MB of X and A on the fullest worker", limit / MB, held, None),
            Target("MB between workers", least, moved / MB, least),
            Target("wrong numbers in Y", 0, wrong, 0),
        ]

    def figure(answer: Any) -> "Figure":
        none = ((Replicate(),) * len(mesh),) * 2
        title = "Who owns which block" + (" (not attempted: everything everywhere)" * (not answer))
        tilings = [
            Tiling(m.shape, mesh, p)
            for m, p in zip((x, a), none if answer is None else _pair(answer), strict=True)
        ]
        named = dict(zip(("X", "A"), map(blocks_of, tilings), strict=True))
        return plots.owners(named, title=title)

    return Exercise("the fewest bytes", measure, figure)


def _pair(answer: Any) -> Pair:
    pair = tuple(answer) if isinstance(answer, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(p, tuple | list) for p in pair):
        raise PlacementError(
            f"an answer is two tuples, the placements of X and those of A, for instance "
            f"((Shard(0), Replicate()), (Replicate(), Shard(1))); got {answer!r}"
        )
    return tuple(tuple(p) for p in pair)


def _summed(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    return tuple(Shard(0) if p == Partial() else p for p in placements)


def fewest_planned(
    x: tuple[int, int], a: tuple[int, int], mesh: tuple[int, ...], itemsize: int, limit: int
) -> int:
    """The fewest bytes that any placements within ``limit`` move, found by planning them all."""
    each = list(product((Replicate(), Shard(0), Shard(1)), repeat=len(mesh)))
    moved = [
        bytes_planned(tx, ta, itemsize)
        for tx, ta in product(
            (Tiling(x, mesh, p) for p in each), (Tiling(a, mesh, p) for p in each)
        )
        if _held(tx, ta, itemsize) <= limit
    ]
    if not moved:
        raise ConfigError(
            f"no placements on a mesh of {mesh} hold X {x} and A {a} in {limit:,} bytes a worker; "
            f"raise the limit"
        )
    return min(moved)


def _held(x: Tiling, a: Tiling, itemsize: int) -> int:
    """Bytes of both blocks on the fullest rank."""
    return itemsize * max(
        sum(int(np.prod(tiling.block_shape(at))) for tiling in (x, a)) for at in x.coordinates()
    )


def bytes_planned(x: Tiling, a: Tiling, itemsize: int) -> int:
    """Bytes between ranks for Y = X A, with the sum of the addends that it leaves."""
    plan = algorithms[choose(x, a)](x, a)
    pieces = [p for rank in (*plan.a, *plan.b) for p in rank]
    if Partial() in plan.result.placements:
        pieces += redistribution(
            plan.result, plan.result.replaced(*_summed(plan.result.placements))
        )
    return traffic_of(plan.result.ranks, pieces, itemsize).total


def blocks_of(array: ShardedArray | Tiling) -> plots.Blocks:
    """The blocks of a matrix for ``plots.owners``: edges, and the ranks that hold each block.

    >>> blocks_of(Tiling((4, 6), (2,), (Shard(1),)))
    Blocks(ranks=[[(0,), (1,)]], rows=[0, 4], columns=[0, 3, 6])
    """
    tiling = array.tiling if isinstance(array, ShardedArray) else array
    regions = [tiling.region(at) for at in tiling.coordinates()]
    rows, columns = (sorted({edge for region in regions for edge in region[dim]}) for dim in (0, 1))
    ranks = [
        [
            tuple(r for r, region in enumerate(regions) if (region[0][0], region[1][0]) == (i, j))
            for j in columns[:-1]
        ]
        for i in rows[:-1]
    ]
    return plots.Blocks(ranks, rows, columns)
