"""Every algorithm for a product, side by side, and why one of them is chosen; nothing runs.

It is found once for equal operands in equal memory: products are often repeated.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import inf
from typing import Any

import numpy as np

from tiledask.distributed.cluster.room import MORE, Room
from tiledask.distributed.products.memory import PANELS, ledger_of
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.cost import MachineRates, product_seconds
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import algorithms
from tiledask.plan.products.product_plan import PANEL, RUNTIME
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.tables import Part, Printable, Table
from tiledask.plan.units import format_bytes, format_seconds, format_up
from tiledask.tile import accumulator
from tiledask.tile.table import kernel_for

__all__ = ["Choice", "Explanation", "ProductQuestion", "kernel_of", "refusal"]

ALIKE = 1.02
"""How much longer what is as good as the fastest may take."""


@dataclass(frozen=True, eq=False)
class Choice:
    """One algorithm and what it would take."""

    algorithm: str
    plan: Any = None
    """A ProductPlan; None if it cannot multiply these operands, and ``why_not`` says why."""
    why_not: str = ""
    traffic: Traffic = field(default_factory=partial(Traffic.of, 1))
    """What moves between ranks."""
    ledger: Ledger | None = None
    """What every rank holds, operands and result included."""
    fits: bool = False
    seconds: float = inf
    """Predicted; infinite where it cannot run, or nothing was measured."""
    busy: tuple[float, ...] = ()
    """Of each rank, predicted seconds of multiplying and summing."""

    @property
    def options(self) -> str:
        """Those of the plan, in words."""
        return self.plan.options if self.plan else ""

    @property
    def received(self) -> int:
        """Bytes that reach the rank that receives most."""
        return max(self.traffic.received)

    @property
    def same_mesh(self) -> bool:
        """Whether C lies on the mesh of A and B; only such plans are chosen unasked."""
        return bool(self.plan) and self.plan.result.mesh == self.plan.a.mesh

    @property
    def peak(self) -> int:
        """Bytes that the fullest rank holds; 0 where it cannot run."""
        return self.ledger.peak if self.ledger else 0


@dataclass(frozen=True, repr=False)
class Explanation(Printable):
    """What `explain` found: a row per algorithm, the one that is chosen, and why."""

    choices: tuple[Choice, ...]
    chosen: str
    """Name of the algorithm; empty if none fits."""
    why: str

    def __getitem__(self, algorithm: str) -> Choice:
        return {choice.algorithm: choice for choice in self.choices}[algorithm]

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
        elsewhere = "" if c.same_mesh else f"C on {'x'.join(map(str, c.plan.result.mesh))}"
        notes = ", ".join(filter(None, (c.options, elsewhere if c.fits else "does not fit")))
        sizes = format_bytes(c.received), format_bytes(c.traffic.total), f"{c.traffic.count}"
        cost = format_bytes(c.peak), format_seconds(c.seconds) if c.busy else "—"
        return mark, c.algorithm, *sizes, *cost, notes

    def to_dict(self) -> dict[str, Any]:
        """The same in bytes and seconds, for programs."""
        names = "algorithm", "options", "why_not", "received", "peak", "fits"
        rows = [
            {name: getattr(c, name) for name in names}
            | {"total": c.traffic.total, "messages": c.traffic.count}
            | {"seconds": c.seconds if c.busy else None}
            for c in self.choices
        ]
        return {"chosen": self.chosen, "why": self.why, "choices": rows}

    def printed(self) -> Iterator[Part]:
        """The table, and why."""
        yield self.table
        if self.why:
            yield self.why
        yield (
            f"Bytes are those that ranks receive; a peak is A, B, C, panels, partial sums and "
            f"{format_bytes(RUNTIME)} + 2 % of runtime."
        )

    def __repr__(self) -> str:
        return self.to_text(150).rstrip()


@dataclass(frozen=True)
class ProductQuestion:
    """How to multiply: all that the answer follows from, but the bytes that a rank may hold.

    Without ``rates`` nothing has times; ``algorithm`` and ``panel`` if they were asked for.
    """

    a: Tiling
    b: Tiling
    dtype: np.dtype[Any]
    kernel: str = "blas"
    tile: Any = None
    messages: bool = False
    """Whether parts of blocks may go as messages."""
    rates: MachineRates | None = None
    algorithm: str | None = None
    panel: int | None = None

    @lru_cache(64)  # noqa: B019
    def weigh(self, allowed: int) -> Explanation:
        """Every algorithm, and the one to take, where a rank may hold ``allowed`` bytes."""
        names = [self.algorithm] if self.algorithm else algorithms
        choices = tuple(self._choice(name, allowed) for name in names)
        return Explanation(choices, *_chosen(choices, allowed, self.algorithm))

    def _choice(self, name: str, allowed: int) -> Choice:
        """The algorithm with panels as wide as fit, unless their width was asked for."""
        algorithm, width, panel = algorithms[name], PANEL, self.panel
        takes = "panel" in algorithm.options
        try:
            while True:
                plan = algorithm(self.a, self.b, panel=panel if takes or self.algorithm else None)
                ledger = ledger_of(plan, self.dtype, self.kernel, self.tile, self.messages)
                if not takes or self.panel or ledger.peak <= allowed or width == 1:
                    break
                # if panels had no width
                least = Ledger.of(row for row in ledger.rows if row.tensor != PANELS).peak
                panel = width = width // 2 if least <= allowed else 1
        except PlacementError as error:
            return Choice(name, why_not=str(error))
        sizes = self.dtype.itemsize, accumulator(self.dtype).itemsize
        timed = self.rates and product_seconds(plan, *sizes, self.rates)
        traffic, fits = plan.traffic(*sizes), ledger.peak <= allowed
        return Choice(name, plan, "", traffic, ledger, fits, *(timed or ()))


def _chosen(choices: tuple[Choice, ...], allowed: int, only: str | None) -> tuple[str, str]:
    """(the algorithm, why)."""
    fitting = [c for c in choices if c.fits and (c.same_mesh or only)]
    if not fitting:
        return "", f"Nothing fits into {format_bytes(allowed)} per rank."
    if only:
        return only, f"{only} was asked for."
    if fitting[0].algorithm == "local":
        return "local", "local: the operands lie so that nothing has to move."
    fastest = min(c.seconds for c in fitting)
    alike = [c for c in fitting if c.seconds <= ALIKE * fastest]
    # of equally fast ones, what leaves C cut as A is, and then what needs least memory
    moved = {c: c.plan.result.placements != c.plan.a.placements for c in alike}
    best = min(alike, key=lambda c: (moved[c], c.peak))
    if not best.busy:
        return best.algorithm, ""  # without rates there are no times to compare
    second = min((c for c in fitting if c is not best), key=lambda c: c.seconds, default=None)
    behind = "no other fits"
    if second:
        behind = f"{second.algorithm} would take {format_seconds(second.seconds)}"
    return best.algorithm, (
        f"{best.algorithm}: predicted {format_seconds(best.seconds)}, "
        f"{format_bytes(best.received)} to the rank that receives most; {behind}."
    )


def refusal(found: Explanation, room: Room, question: ProductQuestion) -> Exception:
    """Why nothing that was ``found`` of a question is chosen: a DoesNotFitError with what would fit
    instead; a PlacementError where memory is not what is wrong."""
    only, ways = question.algorithm, list[str]()
    able = [c for c in found.choices if c.plan and (c.same_mesh or only)]
    if not able:
        return PlacementError(found.choices[-1].why_not)
    least = min(able, key=lambda c: c.peak)
    if only or question.panel:
        others = replace(question, algorithm=None, panel=None).weigh(room.bytes).choices
        fitting = (c.algorithm for c in others if c.fits and c.algorithm != only)
        ways += [f"algorithm={name!r}" for name in fitting][:1]
    fits = least.peak <= room.free
    ways.append(f"memory_limit={format_up(least.peak)!r}" if fits else MORE)
    return DoesNotFitError(
        f"no plan of A {question.a.shape} @ B {question.b.shape} fits: {least.algorithm}"
        f"{', ' + least.options if least.options else ''} needs least, {format_bytes(least.peak)} "
        f"on a rank, allowed are {room}. What would fit: {'; or '.join(ways)}"
    )


# -- what operands must have in common ------------------------------------------------------------


def kernel_of(a: Any, b: Any, name: str, arrays: str) -> str:
    """The own name of the kernel that multiplies ``arrays`` of types ``a`` and ``b`` on the
    workers. KernelError if it does not take those arrays, PlacementError for the types."""
    kernel = kernel_for(name, arrays)
    if a == b and a.name in kernel.dtypes:
        return kernel.name
    rule = f"the kernel {name!r} takes {', '.join(kernel.dtypes)}" if a == b else "must be equal"
    raise PlacementError(f"A is {a} and B is {b}, {rule}; convert with astype")
