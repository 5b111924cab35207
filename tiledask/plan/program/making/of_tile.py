"""The program of one task of a lazy product: a tile of C from blocks that are given, or made there.

x1 = fetch A                made within the task, when k comes to it
C = do multiply x1 y0       for each interval of k
C = do multiply x1 y3       and x1 is let go after the last that reads it
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tiledask.plan.products.regions import Region, region_size
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Do,
    Fetch,
    Instruction,
    Instructions,
    ProgramLine,
    ProgramPart,
    ProgramRole,
)

__all__ = ["TilePiece", "tile_line"]


class TilePiece(NamedTuple):
    """What a task uses of one block."""

    buffer: str
    region: Region
    """Where it lies: across within the tile, then along k."""
    made: bool
    """Whether it is made in the task; else the task is given it."""


def tile_line(
    left: Sequence[TilePiece],
    right: Sequence[TilePiece],
    bands: Iterable[tuple[int, int]],
    itemsize: int,
    adds: bool = False,
) -> Instructions:
    """What a task does that multiplies ``left`` by ``right``, k band by band, ascending.

    ``adds``: to what is in C already.

    >>> x = [TilePiece("x0", ((0, 4), (0, 8)), True)]
    >>> y = [TilePiece(f"y{i}", ((0, 2), (4 * i, 4 * i + 4)), False) for i in range(2)]
    >>> for each in tile_line(x, y, [(0, 4), (4, 8)], 8).roles[0].parts[0].instructions:
    ...     print(each.writes, each.reads)
    ('x0',) ()
    ('C',) ('x0', 'y0')
    ('C',) ('x0', 'y1')
    """
    lines, come = list[Instruction](), dict[str, int]()
    for band in bands:
        reads, told = list[str](), list[tuple[str, tuple[Region, ...]]]()
        for array, pieces in (("A", left), ("B", right)):
            here = [p for p in pieces if p.region[-1][0] < band[1] and band[0] < p.region[-1][1]]
            for piece in here:
                if piece.made and piece.buffer not in come:
                    come[piece.buffer] = nbytes = region_size(piece.region) * itemsize
                    fetch = Fetch(piece.buffer, array, piece.region, nbytes, stream=COMPUTE_STREAM)
                    lines.append(fetch)
            reads += [piece.buffer for piece in here]
            told.append((array.lower(), tuple(piece.region for piece in here)))
        options = (*told, ("band", band), ("adds", adds))
        lines.append(Do("multiply", tuple(reads), ("C",), options=options))
        adds = True
    given = {p.buffer: 0 for p in (*left, *right) if not p.made}
    part = ProgramPart("multiply", -1, tuple(lines))
    role = ProgramRole((part,), come, {**given, "C": 0}, given=frozenset(given))
    once = np.zeros(1, np.int32)
    return Instructions((role,), (ProgramLine(once, once, once.astype(np.bool_)),), (0,), "tile")
