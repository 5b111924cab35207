"""Every algorithm for a product, side by side, and why one of them is chosen; nothing runs.

What follows from the operands' tilings and types alone is found once for equal ones: products are
often repeated. What a rank may hold is asked each time.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from tiledask.distributed.products.needed import PANELS, ProductNeeds
from tiledask.errors import PlacementError
from tiledask.plan import html
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.cost import MachineRates, ProductCost, break_even, cost, least_moved
from tiledask.plan.products.product import PANEL, algorithms, options_of, plan_product
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.products.regions import region_size
from tiledask.plan.program.explained import ProgramExplanation, explain_product
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["KEPT", "Choice", "Explanation", "fits_in", "remembered", "weigh"]

KEPT = 64
"""Plans that are kept, and the most ranks of one: a plan grows with the square of these."""


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
    _rated: tuple[int, int, MachineRates] | None = field(repr=False, default=None)
    """Bytes of an element and of a partial sum, and what this machine does."""

    @property
    def peak(self) -> int:
        """Bytes that the fullest rank holds; 0 where it cannot run."""
        return self.ledger.peak if self.ledger else 0

    @property
    def keeps_placements(self) -> bool:
        """Whether C is cut as A is."""
        return self.plan is not None and self.plan.result.placements == self.plan.a.placements

    @cached_property
    def programs(self) -> tuple[ProgramExplanation, ...]:
        """What the ranks would do, instruction by instruction, and when: one program, and where k
        is shared out a second that sums up; none where it cannot run."""
        if self.plan is None or self._rated is None:
            return ()
        return explain_product(self.plan, *self._rated)

    @property
    def seconds(self) -> float:
        """Predicted; infinite where it cannot run."""
        return self.cost.total if self.cost else float("inf")


@dataclass(frozen=True, repr=False)
class Explanation:
    """What `explain` found: a row per algorithm, the one that is chosen, and why."""

    choices: tuple[Choice, ...]
    chosen: str
    """Name of the algorithm; empty if none fits."""
    why: str
    advice: str
    """Whether distributing pays, in a sentence."""
    moved: str = ""
    """How parts of blocks get from worker to worker, and why so."""

    def __getitem__(self, algorithm: str) -> Choice:
        for choice in self.choices:
            if choice.algorithm == algorithm:
                return choice
        raise KeyError(f"{algorithm!r}; there are {', '.join(c.algorithm for c in self.choices)}")

    def rows(self) -> Iterator[tuple[str, ...]]:
        """A row of words under HEAD per algorithm, for reading."""
        for c in self.choices:
            mark = "→" if c.algorithm == self.chosen else ""
            if c.plan is None:
                yield mark, c.algorithm, *("—",) * 6, "not as they lie"
                continue
            notes = [c.options] if c.options else []
            if not c.fits:
                notes.append("does not fit")
            elif not c.same_mesh:
                notes.append(f"C on {'x'.join(map(str, c.plan.result.mesh))}")
            yield (
                mark,
                c.algorithm,
                format_bytes(c.received),
                format_bytes(c.total),
                f"{c.messages}",
                format_bytes(c.peak),
                format_seconds(c.seconds),
                format_bytes(c.bound),
                ", ".join(notes),
            )

    def to_dict(self) -> dict[str, Any]:
        """The same in bytes and seconds, for programs."""
        rows = [
            {
                "algorithm": c.algorithm,
                "options": c.options,
                "why_not": c.why_not,
                "received": c.received,
                "total": c.total,
                "messages": c.messages,
                "peak": c.peak,
                "fits": c.fits,
                "seconds": c.cost.total if c.cost else None,
                "bound": c.bound,
            }
            for c in self.choices
        ]
        return {
            "chosen": self.chosen,
            "why": self.why,
            "advice": self.advice,
            "moved": self.moved,
            "choices": rows,
        }

    def __repr__(self) -> str:
        rows = [HEAD, *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD) - 1)]
        lines = []
        for row in rows:
            cells = [
                cell.ljust(w) if i < 2 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=False))
            ]
            lines.append(("  ".join(cells) + "  " + row[-1]).rstrip())
        return "\n".join([*lines, "", *filter(None, (self.why, self.advice, self.moved))]).rstrip()

    def _repr_html_(self) -> str:
        rows = list(self.rows())
        chosen = [number for number, cells in enumerate(rows) if cells[0]]
        found = html.table(HEAD, rows, bold=chosen)
        said = map(html.words, filter(None, (self.why, self.advice, self.moved)))
        return f"{found}<p>{'<br>'.join(said)}</p>"


HEAD = (
    "",
    "algorithm",
    "to one",
    "in all",
    "messages",
    "peak",
    "time",
    "at least",
    "",
)


def weigh(
    a: Any,
    b: Any,
    needs: ProductNeeds,
    allowed: int,
    rates: MachineRates | None,
    itemsizes: tuple[int, int],
    options: dict[str, Any] | None = None,
    only: str | None = None,
) -> Explanation:
    """The Explanation for tilings ``a`` and ``b``; without ``rates`` it has no times.

    ``needs`` gives a plan's memory, ``allowed`` the bytes a rank may hold, ``itemsizes`` the
    bytes of an element and of a partial sum. ``only``: one algorithm, asked for by name.
    """
    options = options or {}
    names = [only] if only else list(algorithms)
    choices = tuple(
        _choice(
            name, a, b, needs, allowed, rates, itemsizes, options if only else _own(name, options)
        )
        for name in names
    )
    chosen, why = _chosen(choices, allowed, only)
    m, n, k = prod(a.shape[:-1]), prod(b.shape[1:]), a.shape[-1]
    return Explanation(choices, chosen, why, _advice(m, n, k, a.ranks, choices, itemsizes, rates))


def remembered(
    a: Any,
    b: Any,
    needs: ProductNeeds,
    allowed: int,
    rates: MachineRates | None,
    itemsizes: tuple[int, int],
    options: dict[str, Any],
    only: str | None,
) -> Explanation:
    """What `weigh` finds, `Choice.bound` apart: known of equal operands, if all that was found
    for them would fit."""
    key = a, b, needs, rates, itemsizes, tuple(options.items()), only, repr((needs, options))
    with suppress(TypeError):  # an option that is none: the plan says so
        hash(key)
        if prod(a.mesh) <= KEPT:
            found, most = _in_plenty(*key)
            if found.chosen and most <= allowed:
                return found
    return weigh(a, b, needs, allowed, rates, itemsizes, options, only)


@lru_cache(KEPT)
def _in_plenty(
    a: Any,
    b: Any,
    needs: ProductNeeds,
    rates: MachineRates | None,
    itemsizes: tuple[int, int],
    options: tuple[tuple[str, Any], ...],
    only: str | None,
    _: str,
) -> tuple[Explanation, int]:
    """(what `weigh` finds in any amount of memory, the most bytes that any of it takes)."""
    found = weigh(a, b, needs, sys.maxsize, rates, itemsizes, dict(options), only)
    return found, max(choice.peak for choice in found.choices)


def _choice(
    name: str,
    a: Any,
    b: Any,
    needs: ProductNeeds,
    allowed: int,
    rates: MachineRates | None,
    itemsizes: tuple[int, int],
    options: dict[str, Any],
) -> Choice:
    try:
        plan, ledger = _within(name, a, b, needs, allowed, options)
    except PlacementError as error:
        return Choice(name, "", None, str(error))
    itemsize, partial_sum = itemsizes
    traffic = plan.traffic(itemsize, partial_sum)
    m, n, k = prod(a.shape[:-1]), prod(b.shape[1:]), a.shape[-1]
    # copies counted each time
    regions = (region for t in (plan.a, plan.b, plan.result) for region in t.regions)
    held = sum(map(region_size, regions)) / plan.ranks
    work = max(prod(plan.extents(rank)) for rank in range(plan.ranks))
    bound = least_moved(m, n, k, plan.ranks, allowed / itemsize, held, work) * itemsize
    priced = cost if plan.ranks > KEPT else _cost_once
    seconds = priced(plan, itemsize, partial_sum, rates) if rates else None
    return Choice(
        name,
        plan.options,
        plan,
        "",
        traffic.total,
        max(traffic.received),
        traffic.count,
        ledger,
        ledger.peak <= allowed,
        plan.result.mesh == a.mesh,
        seconds,
        int(bound),
        None if rates is None else (*itemsizes, rates),
    )


def _within(
    name: str, a: Any, b: Any, needs: ProductNeeds, allowed: int, options: dict[str, Any]
) -> tuple[ProductPlan, Ledger]:
    """The plan of ``name``, with panels as wide as fit unless their width was asked for."""
    (plan, ledger), width = _planned(name, a, b, needs, options), PANEL
    narrows = "panel" in options_of(name) and options.get("panel") is None
    while narrows and ledger.peak > allowed and width > 1:
        width = width // 2 if _without_panels(ledger) <= allowed else 1
        plan, ledger = _planned(name, a, b, needs, options | {"panel": width})
    return plan, ledger


def _planned(
    name: str, a: Any, b: Any, needs: ProductNeeds, options: dict[str, Any]
) -> tuple[ProductPlan, Ledger]:
    # as text too: True is no panel of 1
    key = name, a, b, needs, tuple(options.items()), repr((needs, options))
    try:
        hash(key)
    except TypeError:  # an option that is none: the plan says so
        return _plan_anew(*key)
    return (_plan_anew if a.ranks > KEPT else _plan_once)(*key)


def _plan_anew(
    name: str, a: Any, b: Any, needs: ProductNeeds, options: tuple[tuple[str, Any], ...], _: str
) -> tuple[ProductPlan, Ledger]:
    plan = plan_product(name, a, b, **dict(options))
    return plan, needs(plan)


_plan_once = lru_cache(KEPT)(_plan_anew)
_cost_once = lru_cache(KEPT)(cost)


def fits_in(
    allowed: int,
    name: str,
    a: Any,
    b: Any,
    needs: ProductNeeds,
    options: Mapping[str, Any],
    elsewhere: bool = True,
) -> bool:
    """Whether `weigh` finds that algorithm ``name`` fits; nothing is planned that cannot help.

    ``elsewhere``: C may lie on another mesh than A.
    """
    options = _own(name, dict(options))
    try:
        plan = plan_product(name, a, b, **options)
        if plan.result.mesh != a.mesh and not elsewhere:
            return False
        if _without_panels(_planned(name, a, b, needs, options)[1]) > allowed:
            return False
        return _within(name, a, b, needs, allowed, options)[1].peak <= allowed
    except PlacementError:
        return False


def _without_panels(ledger: Ledger) -> int:
    """Bytes of the fullest rank if panels had no width."""
    return Ledger.of(row for row in ledger.rows if row.tensor != PANELS).peak


def _own(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those of ``options`` that the algorithm has."""
    return {key: value for key, value in options.items() if key in options_of(name)}


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
    alike = [c for c in fitting if c.seconds <= 1.02 * fastest]
    # of equally fast ones, what leaves C cut as A is, and then what needs least memory
    best = min(alike, key=lambda c: (not c.keeps_placements, c.peak))
    others = [c for c in fitting if c is not best]
    if not others:
        return best.algorithm, f"{best.algorithm}: the only one that fits."
    second = min(others, key=lambda c: c.seconds)
    more = max(0.0, second.seconds / best.seconds - 1)
    return best.algorithm, (
        f"{best.algorithm}: predicted {format_seconds(best.seconds)}, "
        f"{format_bytes(best.received)} to the rank that receives most; next is "
        f"{second.algorithm}, {more:.0%} slower."
    )


def _advice(
    m: int,
    n: int,
    k: int,
    ranks: int,
    choices: tuple[Choice, ...],
    itemsizes: tuple[int, int],
    rates: MachineRates | None,
) -> str:
    seconds = min((c.seconds for c in choices), default=float("inf"))
    if rates is None or ranks == 1 or seconds == float("inf"):
        return ""
    touched = (m * k + k * n + m * n) * itemsizes[0]
    alone = 2 * m * n * k / rates.flops + touched / rates.touch + rates.call
    limit = break_even(ranks, itemsizes[0], rates)
    words = f"A task costs {format_seconds(rates.task)}; {ranks} ranks pay from about n = {limit}."
    if seconds < alone:
        return f"One rank alone would take {format_seconds(alone)}. {words}"
    return (
        f"Not worth distributing: one rank alone would take {format_seconds(alone)}, if it has "
        f"the memory. {words}"
    )
