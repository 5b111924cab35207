"""Every algorithm for a product, side by side, and why one of them is chosen; nothing runs.

What follows from the operands' tilings and types alone is found once for equal ones: products are
often repeated. What a rank may hold is asked each time.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed.arrays.hosts import said_of_hosts
from tiledask.distributed.products.memory import PANELS, ledger_of
from tiledask.errors import PlacementError
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.cost import (
    MachineRates,
    ProductCost,
    break_even,
    cost,
    least_moved,
)
from tiledask.plan.products.placement import Shard, Tiling
from tiledask.plan.products.product import PANEL, algorithms, plan_product
from tiledask.plan.products.product_plan import RUNTIME, ProductPlan
from tiledask.plan.products.regions import region_size
from tiledask.plan.tables import Part, Printable, Table
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile import accumulator

__all__ = ["CACHE", "Choice", "Explanation", "ProductQuestion"]

CACHE = 64
"""Plans, and answers, that are kept."""
ALIKE = 1.02
"""How much longer what is as good as the fastest may take."""


@dataclass(frozen=True, eq=False)
class Choice:
    """One algorithm and what it would take."""

    algorithm: str
    options: str
    plan: ProductPlan | None
    """None if it cannot multiply these operands; ``why_not`` says why."""
    why_not: str = ""
    total: int = 0
    """Bytes that move between ranks, all together."""
    received: int = 0
    """Bytes that reach the rank that receives most."""
    messages: int = 0
    ledger: Ledger | None = None
    """What every rank holds, operands and result included."""
    fits: bool = False
    same_mesh: bool = False
    """Whether C lies on the mesh of A and B; only such plans are chosen unasked."""
    cost: ProductCost | None = None
    bound: int = 0
    """Bytes that some rank must move in any algorithm with this much memory."""
    between_hosts: int = 0
    """Bytes of ``total`` that go between hosts, where the mesh is known: in `tiledask.explain`."""

    @property
    def peak(self) -> int:
        """Bytes that the fullest rank holds; 0 where it cannot run."""
        return self.ledger.peak if self.ledger else 0

    @property
    def seconds(self) -> float:
        """Predicted; infinite where it cannot run."""
        return self.cost.total if self.cost else float("inf")


@dataclass(frozen=True, repr=False)
class Explanation(Printable):
    """What `explain` found: a row per algorithm, the one that is chosen, and why."""

    choices: tuple[Choice, ...]
    chosen: str
    """Name of the algorithm; empty if none fits."""
    why: str
    advice: str
    """Whether distributing pays, in a sentence."""
    counted: str = ""
    """Where A and B begin, and what the bytes are."""
    moved: str = ""
    """How parts of blocks get from worker to worker, and why so."""
    placed: str = ""
    """Which axes of the mesh cross hosts, and what that costs; empty on one host."""

    def on(self, mesh: Any, itemsizes: tuple[int, int]) -> "Explanation":
        """The same where the ranks are those of ``mesh``: with the bytes between hosts."""
        hosts, choices, placed = mesh.cluster.hosts, [], ""
        if len(set(hosts)) < 2:
            return self
        for c in self.choices:
            if c.plan:
                moved = c.plan.traffic(*itemsizes)
                c = replace(c, between_hosts=moved.on(hosts, mesh.at).between_hosts)
                if c.algorithm == self.chosen:
                    placed = said_of_hosts(moved, hosts, mesh.shape, mesh.names, mesh.at)
            choices.append(c)
        return replace(self, choices=tuple(choices), placed=placed)

    def __getitem__(self, algorithm: str) -> Choice:
        for choice in self.choices:
            if choice.algorithm == algorithm:
                return choice
        raise KeyError(f"{algorithm!r}; there are {', '.join(c.algorithm for c in self.choices)}")

    @property
    def table(self) -> Table:
        """A row for each algorithm, the chosen one marked; times where rates were measured."""
        rows = [self._row(c) for c in self.choices]
        head = ("", "algorithm", "to one", "in all", "messages", "peak", "time", "")
        return Table(head, rows, left=(0, 1, 7), bold=[i for i, row in enumerate(rows) if row[0]])

    def _row(self, c: Choice) -> tuple[str, ...]:
        mark = "→" if c.algorithm == self.chosen else ""
        if c.plan is None:
            return mark, c.algorithm, *("—",) * 5, "not as they lie"
        notes = [c.options] if c.options else []
        if not c.fits:
            notes.append("does not fit")
        elif not c.same_mesh:
            notes.append(f"C on {'x'.join(map(str, c.plan.result.mesh))}")
        if c.between_hosts:
            notes.append(f"{format_bytes(c.between_hosts)} between hosts")
        sizes = format_bytes(c.received), format_bytes(c.total), f"{c.messages}"
        cost = format_bytes(c.peak), format_seconds(c.seconds) if c.cost else "—"
        return mark, c.algorithm, *sizes, *cost, ", ".join(notes)

    def to_dict(self) -> dict[str, Any]:
        """The same in bytes and seconds, for programs."""
        names = "algorithm options why_not received total between_hosts messages peak fits bound"
        rows = [
            {name: getattr(c, name) for name in names.split()}
            | {"seconds": c.cost.total if c.cost else None}
            for c in self.choices
        ]
        words = ("chosen", "why", "advice", "counted", "moved", "placed")
        return {name: getattr(self, name) for name in words} | {"choices": rows}

    def printed(self) -> Iterator[Part]:
        """The table, and why."""
        yield self.table
        yield from filter(None, (self.why, self.advice, self.counted, self.moved, self.placed))

    def __repr__(self) -> str:
        return self.to_text(150).rstrip()


@dataclass(frozen=True)
class ProductQuestion:
    """How to multiply: all that the answer follows from, but the bytes that a rank may hold."""

    a: Tiling
    b: Tiling
    dtype: np.dtype[Any]
    kernel: str = "blas"
    tile: Any = None
    transport: str = "memory"
    rates: MachineRates | None = None
    """Without them nothing has times."""
    algorithm: str | None = None
    """The only one, if it was asked for by name."""
    options: tuple[tuple[str, Any], ...] = ()
    """(name, value) of those that were given."""

    @property
    def itemsizes(self) -> tuple[int, int]:
        """Bytes of an element and of a partial sum."""
        return self.dtype.itemsize, accumulator(self.dtype).itemsize

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, n and k, all leading dimensions of A taken as one m."""
        return prod(self.a.shape[:-1]), prod(self.b.shape[1:]), self.a.shape[-1]

    def weigh(self, allowed: int) -> Explanation:
        """Every algorithm, and the one to take, where a rank may hold ``allowed`` bytes."""
        names = [self.algorithm] if self.algorithm else algorithms
        choices = tuple(self._choice(name, allowed) for name in names)
        chosen, why = _chosen(choices, allowed, self.algorithm)
        counted = (
            f"Bytes are those that ranks receive, with A in {_lies(self.a)} and B in "
            f"{_lies(self.b)} before; a peak is A, B, C, panels, partial sums and "
            f"{format_bytes(RUNTIME)} + 2 % of runtime."
        )
        return Explanation(choices, chosen, why, self._advice(choices), counted)

    def remembered(self, allowed: int) -> Explanation:
        """What `weigh` finds, `Choice.bound` apart: known of equal operands, if all that was found
        for them would fit."""
        with suppress(TypeError):  # an option that is none: the plan says so
            hash(self)
            found, most = _in_plenty(self, repr((self.tile, self.options)))
            if found.chosen and most <= allowed:
                return found
        return self.weigh(allowed)

    def _within(self, name: str, allowed: int) -> tuple[ProductPlan, Ledger]:
        """The plan of ``name``, with panels as wide as fit unless their width was asked for."""
        takes = algorithms[name].options
        options = {key: value for key, value in self.options if self.algorithm or key in takes}

        def planned(**more: Any) -> tuple[ProductPlan, Ledger]:
            plan = plan_product(name, self.a, self.b, **(options | more))
            return plan, ledger_of(plan, self.dtype, self.kernel, self.tile, self.transport)

        (plan, ledger), width = planned(), PANEL
        while "panel" in takes and "panel" not in options and ledger.peak > allowed and width > 1:
            # if panels had no width
            least = Ledger.of(row for row in ledger.rows if row.tensor != PANELS).peak
            width = width // 2 if least <= allowed else 1
            plan, ledger = planned(panel=width)
        return plan, ledger

    def _choice(self, name: str, allowed: int) -> Choice:
        try:
            plan, ledger = self._within(name, allowed)
        except PlacementError as error:
            return Choice(name, "", None, str(error))
        (itemsize, partial_sum), rates = self.itemsizes, self.rates
        traffic = plan.traffic(itemsize, partial_sum)
        # copies counted each time
        regions = (region for t in (plan.a, plan.b, plan.result) for region in t.regions)
        held = sum(map(region_size, regions)) / plan.ranks
        work = max(prod(plan.extents(rank)) for rank in range(plan.ranks))
        least = least_moved(*self.extents, plan.ranks, allowed / itemsize, held, work)
        return Choice(
            name,
            plan.options,
            plan,
            total=traffic.total,
            received=max(traffic.received),
            messages=traffic.count,
            ledger=ledger,
            fits=ledger.peak <= allowed,
            same_mesh=plan.result.mesh == self.a.mesh,
            cost=cost(plan, itemsize, partial_sum, rates) if rates else None,
            bound=int(least * itemsize),
        )

    def _advice(self, choices: Sequence[Choice]) -> str:
        """Whether distributing pays."""
        (m, n, k), rates, ranks = self.extents, self.rates, self.a.ranks
        seconds = min((c.seconds for c in choices), default=float("inf"))
        if rates is None or ranks == 1 or seconds == float("inf"):
            return ""
        itemsize, _ = self.itemsizes
        touched = (m * k + k * n + m * n) * itemsize
        alone = 2 * m * n * k / rates.flops + touched / rates.touch + rates.call
        limit = break_even(ranks, itemsize, rates)
        words = f"A task costs {format_seconds(rates.task)}; {ranks} ranks pay from about n = "
        words += f"{limit}."
        once = format_seconds(alone)
        if seconds < alone and once != format_seconds(seconds):
            return f"One rank alone would take {once}. {words}"
        return f"Not worth distributing: one rank with the memory would take {once}. {words}"


@lru_cache(CACHE)
def _in_plenty(question: ProductQuestion, _: str) -> tuple[Explanation, int]:
    """(what `weigh` finds in any amount of memory, the most bytes that any of it takes)."""
    found = question.weigh(sys.maxsize)
    return found, max(choice.peak for choice in found.choices)


def _chosen(choices: tuple[Choice, ...], allowed: int, only: str | None) -> tuple[str, str]:
    fitting = [c for c in choices if c.fits and (c.same_mesh or only)]
    if not fitting:
        return "", f"Nothing fits into {format_bytes(allowed)} per rank."
    if only:
        return only, f"{only} was asked for."
    first = fitting[0]
    if first.algorithm == "local":
        return "local", "local: the operands lie so that nothing has to move."
    fastest = min(c.seconds for c in fitting)
    alike = [c for c in fitting if c.seconds <= ALIKE * fastest]
    # of equally fast ones, what leaves C cut as A is, and then what needs least memory
    best = min(alike, key=lambda c: (not _keeps_placements(c.plan), c.peak))
    others = [c for c in fitting if c is not best]
    if not others:
        return best.algorithm, f"{best.algorithm}: the only one that fits."
    if best.seconds == float("inf"):  # without rates nothing has a time
        return best.algorithm, (
            f"{best.algorithm}: needs least memory, {format_bytes(best.peak)}, of those that leave "
            f"C as A lies; without rates there are no times."
        )
    second = min(others, key=lambda c: c.seconds)
    more = second.seconds / best.seconds - 1
    return best.algorithm, (
        f"{best.algorithm}: predicted {format_seconds(best.seconds)}, "
        f"{format_bytes(best.received)} to the rank that receives most; next is "
        f"{second.algorithm}, {f'{100 * more:.0f} % slower' if more >= 0.005 else 'as fast'}."
    )


def _keeps_placements(plan: ProductPlan | None) -> bool:
    """Whether C is cut as A is."""
    return plan is not None and plan.result.placements == plan.a.placements


def _lies(tiling: Tiling) -> str:
    """How a matrix lies, such as "2x2 blocks"; a number of copies is no block."""
    axes = zip(tiling.mesh, tiling.placements, strict=True)
    cut = [str(n) for n, placement in axes if isinstance(placement, Shard) and n > 1]
    return f"{'x'.join(cut)} blocks" if cut else "one block"
