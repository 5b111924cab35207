"""The program of one task of a lazy product: a tile of C from blocks that are given, or made there.

x1 = fetch A                made within the task, when k comes to it
C = do multiply x1 y0       for each interval of k
C = do multiply x1 y3       and x1 is let go after the last that reads it
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiledask.plan.products.regions import Region, ends_within, region_size
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Fetch,
    Instruction,
    ProgramPart,
    ProgramRole,
)
from tiledask.plan.program.making.of_product import Pieces, multiplication

__all__ = ["TilePiece", "tile_role"]


class TilePiece(NamedTuple):
    """What a task uses of one block."""

    buffer: str
    region: Region
    """Where it lies: across within the tile, along k in the whole; [..., k] of A, [k, n] of B."""
    made: bool
    """Whether it is made in the task; else the task is given it."""


def tile_role(
    left: Sequence[TilePiece],
    right: Sequence[TilePiece],
    region: Region,
    bands: Iterable[tuple[int, int]],
    itemsize: int,
    adds: bool = False,
) -> ProgramRole:
    """What a task does that multiplies ``left`` by ``right``, k band by band, ascending, into a
    tile of C that has ``region``.

    ``adds``: to what is in C already.

    >>> x = [TilePiece("x0", ((0, 4), (0, 8)), True)]
    >>> y = [TilePiece(f"y{i}", ((4 * i, 4 * i + 4), (0, 2)), False) for i in range(2)]
    >>> role = tile_role(x, y, ((0, 4), (0, 2)), [(0, 4), (4, 8)], 8)
    >>> for each in role.parts[0].instructions:
    ...     print(each.writes, each.reads)
    ('x0',) ()
    ('C',) ('x0', 'y0')
    ('C',) ('x0', 'y1')
    """
    lines, come = list[Instruction](), dict[str, int]()
    for band in bands:
        reads, told = list[str](), list[Pieces]()
        for array, pieces, along in (("A", left, -1), ("B", right, 0)):
            parts = list[tuple[Region, Region]]()
            for name, lies, made in pieces:
                start, stop = max(lies[along][0], band[0]), min(lies[along][1], band[1])
                if start >= stop:
                    continue
                if made and name not in come:
                    come[name] = nbytes = region_size(lies) * itemsize
                    lines.append(Fetch(name, array, lies, nbytes, stream=COMPUTE_STREAM))
                k = ((start, stop),)
                part = (*lies[:-1], *k) if along else (*k, *lies[1:])
                parts.append((ends_within(part, lies) if part != lies else (), part))
                reads.append(name)
            told.append(tuple(parts))
        lead = len(region) - 1
        lines.append(multiplication(reads, told, band, region, [region], adds, lead))
        adds = True
    given = {p.buffer: 0 for p in (*left, *right) if not p.made}
    alone = (ProgramPart("multiply", -1, tuple(lines)),)
    return ProgramRole(alone, come, {**given, "C": 0}, given=frozenset(given))
