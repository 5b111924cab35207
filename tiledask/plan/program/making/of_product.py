"""The program of a blocked product: panels come into two rooms in turn, and are multiplied.

    room0[a0] = fetch A from 2   @fetch          what others hold; what a rank has it reads as it is
    room1[a0] = fetch A from 3   @fetch
    C = do multiply room0[a0] B                  C += A panel @ B panel
    room0[a0] = fetch A from 5   @fetch          its room is free again
    C = do multiply room1[a0] B
    keep C

A second program adds partial sums up, where k is shared out. The algorithms differ in whom a panel
is fetched from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tiledask.plan.products.product_plan import ProductPanel, ProductPlan
from tiledask.plan.products.regions import (
    Region,
    around,
    ends_within,
    extents_of,
    region_size,
)
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Do,
    Fetch,
    Instruction,
    Keep,
    ProgramLine,
    ProgramPart,
    ProgramRole,
)
from tiledask.plan.program.program import Program

__all__ = ["AHEAD", "multiply_program", "sum_program"]

AHEAD = 2
"""Fetched panels in memory at a time: the one in use and the next."""
_ALIGN = 64
"""Bytes: pieces in a room begin where a line of the cache does."""


def multiply_program(plan: ProductPlan, itemsize: int, sum_itemsize: int | None = None) -> Program:
    """The Program by which each rank multiplies, from operands of ``itemsize`` bytes a number.

    C is held in ``sum_itemsize``, the type that is summed in: 4 for halves.

    >>> from tiledask.plan.products.placement import Shard, Tiling
    >>> from tiledask.plan.products.product import plan_product
    >>> a, b = Tiling((4, 4), (2,), (Shard(0),)), Tiling((4, 4), (2,), (Shard(1),))
    >>> program = multiply_program(plan_product("column_parallel", a, b), 4)
    >>> program.role(1).parts[0].instructions[0], program.traffic.received
    (room0[a0] = fetch A from 0 {'region': ((0, 2), (0, 4)), 'nbytes': 32} @fetch, (32, 32))
    """
    ranks = [
        _Rank(plan, rank, itemsize, sum_itemsize or itemsize).multiplies()
        for rank in range(plan.ranks)
    ]
    return _of_roles(plan, "multiply", ranks)


def sum_program(plan: ProductPlan, itemsize: int, sum_itemsize: int | None = None) -> Program:
    """The Program by which partial sums are added up, of a plan that ``sums``; in a fixed order."""
    ranks = [
        _Rank(plan, rank, itemsize, sum_itemsize or itemsize).sums_up()
        for rank in range(plan.ranks)
    ]
    return _of_roles(plan, "sum", ranks)


def _of_roles(plan: ProductPlan, word: str, roles: Sequence[ProgramRole]) -> Program:
    once = np.zeros(1, np.int32)
    line = ProgramLine(once, once, np.zeros(1, np.bool_))
    ranks = tuple(range(plan.ranks))
    return Program(tuple(roles), (line,) * plan.ranks, ranks, f"{plan.algorithm}, {word}")


@dataclass
class _Rank:
    """What one rank does for a plan."""

    plan: ProductPlan
    rank: int
    size: int
    """Bytes of a number of A and B."""
    wide: int
    """Bytes of a number of C while it is summed."""

    @cached_property
    def operands(self) -> dict[str, int]:
        tilings = ("A", self.plan.a), ("B", self.plan.b)
        return {name: region_size(t.regions[self.rank]) * self.size for name, t in tilings}

    def multiplies(self) -> ProgramRole:
        plan, region = self.plan, self.plan.work.regions[self.rank]
        strips = [region]
        if plan.sums_in_place:
            strips = list(around(region, plan.result.regions[self.rank]))
        lines, rooms = self.panels(region, strips, adds=False)
        held = sum(map(region_size, strips)) * self.wide
        return self.role("multiply", lines, {"C": held, **rooms}, region)

    def sums_up(self) -> ProgramRole:
        plan, region = self.plan, self.plan.result.regions[self.rank]
        own = plan.work.regions[self.rank]
        lines: list[Instruction] = []
        filled: set[Region] = set()
        for piece in plan.partials[self.rank]:
            adds = piece.region in filled
            if piece.source != self.rank:
                nbytes = piece.size * self.wide
                lines.append(
                    Fetch(
                        "C", "partial", piece.region, nbytes, piece.source, COMPUTE_STREAM,
                        adds=adds,
                    )
                )  # fmt: skip
            elif plan.sums_in_place:
                continue
            else:
                told = ("ends", ends_within(piece.region, own)), ("into", piece.region)
                lines.append(Do("add_up", ("partial",), ("C",), options=(*told, ("adds", adds))))
            filled.add(piece.region)
        rooms: dict[str, int] = {}
        if plan.sums_in_place:
            product, rooms = self.panels(region, [region], adds=bool(filled))
            lines += product
        partial = region_size(own) * self.wide
        if plan.sums_in_place:
            partial -= region_size(region) * self.wide
        held = region_size(region) * self.wide
        return self.role("sum", lines, {"partial": partial, "C": held, **rooms}, region)

    def role(
        self, word: str, lines: list[Instruction], stays: dict[str, int], region: Region
    ) -> ProgramRole:
        if not lines:
            lines = [Do("clear", (), ("C",))]
        lines = [*lines, Keep("C", "C", region)]
        given = frozenset((*self.operands, "partial")) & {*self.operands, *stays}
        part = ProgramPart(word, -1, tuple(lines))
        return ProgramRole((part,), {}, {**self.operands, **stays}, given=given)

    # -- panels -----------------------------------------------------------------------------------

    def panels(
        self, region: Region, strips: list[Region], adds: bool
    ) -> tuple[list[Instruction], dict[str, int]]:
        """(what multiplies all panels into the ``strips`` of C, which has ``region``; the bytes of
        each room). What is fetched is so as soon as its room is free."""
        turns = self.plan.panels[self.rank]
        fetches, lines = list[list[Instruction]](), list[Instruction]()
        products = []
        rooms: dict[str, int] = {}
        for number, panel in enumerate(turns):
            room = f"room{len(fetches) % AHEAD}"
            come, reads, told, nbytes = self.panel(panel, room)
            made = self.product(panel, strips, region)
            told = (*told, ("into", tuple(strips)), ("c", region), ("adds", adds or number > 0))
            products.append((Do("multiply", reads, ("C",), options=(*told, made)), bool(come)))
            if come:
                fetches.append(come)
                rooms[room] = max(nbytes, rooms.get(room, 0))
        ahead = iter(fetches)
        for _ in range(AHEAD):
            lines += next(ahead, [])
        for multiply, fetched in products:
            lines.append(multiply)
            if fetched:
                lines += next(ahead, [])
        return lines, rooms

    def panel(
        self, panel: ProductPanel, room: str
    ) -> tuple[list[Instruction], tuple[str, ...], tuple[Any, ...], int]:
        """(its fetches, what its product reads, which regions these are, bytes of its room)."""
        come, reads, told, at = list[Instruction](), list[str](), [], 0
        for name, tiling, pieces in (
            ("A", self.plan.a, panel.a),
            ("B", self.plan.b, panel.b),
        ):
            regions = []
            for number, piece in enumerate(pieces):
                if piece.source == self.rank:
                    reads.append(name)
                    own = tiling.regions[self.rank]
                    regions.append((ends_within(piece.region, own), piece.region))
                    continue
                buffer, nbytes = f"{room}[{name.lower()}{number}]", piece.size * self.size
                come.append(Fetch(buffer, name, piece.region, nbytes, piece.source, at=at))
                reads.append(buffer)
                regions.append(((), piece.region))
                at += -(-nbytes // _ALIGN) * _ALIGN
            told.append((name.lower(), tuple(regions)))
        return come, tuple(reads), tuple(told), at

    def product(
        self, panel: ProductPanel, strips: Iterable[Region], region: Region
    ) -> tuple[str, tuple[int, int, int]]:
        """("product", its m, k and n over all strips)."""
        lead = len(self.plan.a.shape) - 1
        shapes = [extents_of(strip) for strip in strips]
        k = panel.depth[1] - panel.depth[0]
        n = prod(extents_of(region)[lead:])
        if all(prod(shape[lead:]) == n for shape in shapes):
            return "product", (sum(prod(shape[:lead]) for shape in shapes), k, n)
        m = prod(extents_of(region)[:lead])
        return "product", (m, k, sum(prod(shape[lead:]) for shape in shapes))
