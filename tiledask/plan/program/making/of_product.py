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

import numpy as np

from tiledask.plan.products.product_plan import AHEAD, ProductPanel, ProductPlan
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

__all__ = [
    "Pieces",
    "Turn",
    "in_turn",
    "multiplication",
    "multiply_program",
    "once",
    "sum_program",
]

_ALIGN = 64
"""Bytes: pieces in a room begin where a line of the cache does."""

Pieces = tuple[tuple[Region, Region], ...]
"""Pieces of an operand that a product reads: which part of what is read, or () for all of it; where
that lies."""
Turn = tuple[list[Instruction], list[Instruction]]
"""(what is fetched for it, what is done)."""


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
    return once(ranks, f"{plan.algorithm}, multiply")


def sum_program(plan: ProductPlan, itemsize: int, sum_itemsize: int | None = None) -> Program:
    """The Program by which partial sums are added up, of a plan that ``sums``; in a fixed order."""
    ranks = [
        _Rank(plan, rank, itemsize, sum_itemsize or itemsize).sums_up()
        for rank in range(plan.ranks)
    ]
    return once(ranks, f"{plan.algorithm}, sum")


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
        each room)."""
        turns = list[Turn]()
        rooms: dict[str, int] = {}
        for panel in self.plan.panels[self.rank]:
            room = f"room{sum(bool(come) for come, _ in turns) % AHEAD}"
            come, reads, pieces, nbytes = self.panel(panel, room)
            first, lead = not (adds or turns), len(self.plan.a.shape) - 1
            multiply = multiplication(reads, pieces, panel.depth, region, strips, not first, lead)
            turns.append((come, [multiply]))
            if come:
                rooms[room] = max(nbytes, rooms.get(room, 0))
        return in_turn(turns), rooms

    def panel(
        self, panel: ProductPanel, room: str
    ) -> tuple[list[Instruction], tuple[str, ...], list[Pieces], int]:
        """(its fetches, what its product reads, which pieces of A and of B these are, bytes of its
        room)."""
        come, reads, told, at = list[Instruction](), list[str](), list[Pieces](), 0
        for name, tiling, pieces in (
            ("A", self.plan.a, panel.a),
            ("B", self.plan.b, panel.b),
        ):
            regions = list[tuple[Region, Region]]()
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
            told.append(tuple(regions))
        return come, tuple(reads), told, at


# -- what every product's program has, wherever its operands lie ----------------------------------


def once(roles: Sequence[ProgramRole], name: str) -> Program:
    """The Program in which each rank goes through its role's one part, if it has one."""
    turns = (np.zeros(len(role.parts), np.int32) for role in roles)
    lines = tuple(ProgramLine(turn, turn, turn.astype(np.bool_)) for turn in turns)
    return Program(tuple(roles), lines, tuple(range(len(roles))), name)


def in_turn(turns: Iterable[Turn]) -> list[Instruction]:
    """What is fetched and done ``turns`` by turn, through so many rooms as are fetched `AHEAD`:
    each fetch as soon as its room is free.

    >>> come, done = ([Fetch(f"x{i}", "A", (), 0)] for i in range(4)), Do("multiply")
    >>> [each.writes for each in in_turn((one, [done]) for one in come)]
    [('x0',), ('x1',), (), ('x2',), (), ('x3',), (), ()]
    """
    turns = list(turns)
    ahead = iter([come for come, _ in turns if come])
    lines = [each for _ in range(AHEAD) for each in next(ahead, [])]
    for come, done in turns:
        lines += done
        if come:
            lines += next(ahead, [])
    return lines


def multiplication(
    reads: Sequence[str],
    pieces: Sequence[Pieces],
    depth: tuple[int, int],
    region: Region,
    strips: Sequence[Region],
    adds: bool,
    lead: int,
) -> Do:
    """C (+)= A[..., depth] @ B[depth, :] in the ``strips`` of C, which has ``region``.

    ``pieces``: those of A and those of B that are read. ``lead``: dimensions that C has from A.
    """
    shapes = [(prod(shape[:lead]), prod(shape[lead:])) for shape in map(extents_of, strips)]
    k, extents = depth[1] - depth[0], extents_of(region)
    m, n = prod(extents[:lead]), prod(extents[lead:])
    if all(columns == n for _, columns in shapes):
        m = sum(rows for rows, _ in shapes)
    else:
        n = sum(columns for _, columns in shapes)
    a, b = pieces
    told = {"a": a, "b": b, "into": tuple(strips), "c": region, "adds": adds}
    return Do("multiply", tuple(reads), ("C",), options=(*told.items(), ("product", (m, k, n))))
