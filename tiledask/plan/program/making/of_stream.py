"""The program of a product of matrices in files: tile after tile of C, panel after panel.

    a0[panel] = fetch A   @fetch      from the file, while the pair before it is multiplied
    b0[panel] = fetch B   @fetch
    C = do multiply a0[panel] b0[panel]
    keep C                            into the file: a sum that goes on may be left out

A product that is taken up again has a shorter line: a tile that was begun is fetched first.
"""

from collections.abc import Iterable

import numpy as np

from tiledask.plan.products.regions import Region, region_size
from tiledask.plan.products.streaming import DEPTH, Cuts, StreamPlan
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Do,
    Fetch,
    Instruction,
    Instructions,
    Keep,
    ProgramLine,
    ProgramPart,
    ProgramRole,
)
from tiledask.plan.program.program import Program

__all__ = ["stream_line", "stream_program"]


def stream_program(plan: StreamPlan, sum_itemsize: int | None = None) -> Program:
    """The Program of ``plan``: a rank for each slot. Tiles are held in ``sum_itemsize``, 4 bytes a
    number for halves.

    >>> from tiledask.plan.products.streaming import Problem, StorageLayout, plan_cuts
    >>> f = StorageLayout((8, 8), 4)
    >>> plan = plan_cuts(Problem(f, f, f, 4), Cuts((0, 4, 8), (0, 8), 4), 2, 10**9)
    >>> program = stream_program(plan)
    >>> len(program), program.memory.per_place
    (16, {0: 512, 1: 512})
    """
    tiles: list[list[tuple[Region, int]]] = [[] for _ in range(plan.slots)]
    for tile in plan.tiles:
        tiles[tile.slot].append((tile.region, tile.begin))
    k, size = plan.extents[2], plan.a.itemsize
    lines = [stream_line(plan.cuts, k, mine, size, sum_itemsize or size) for mine in tiles]
    roles = tuple(line.roles[0] for line in lines)
    return Program(roles, tuple(x.lines[0] for x in lines), tuple(range(plan.slots)), "files")


def stream_line(
    cuts: Cuts, k: int, tiles: Iterable[tuple[Region, int]], itemsize: int, sum_itemsize: int
) -> Instructions:
    """What one slot does for ``tiles``, each with up to which k it is summed already."""
    fetches, lines = list[list[Instruction]](), list[list[Instruction]]()
    for region, begin in tiles:
        mine = list[Instruction]()
        if 0 < begin < k:
            nbytes = region_size(region) * sum_itemsize
            mine.append(Fetch("C", "C", region, nbytes, stream=COMPUTE_STREAM))
        for depth in cuts.panels(k, begin):
            come, multiply = _panel(len(fetches) % DEPTH, region, depth, itemsize)
            fetches.append(come)
            mine += [multiply, Keep("C", "C", region, depth[1], partial=depth[1] < k)]
            lines.append(mine)
            mine = []
    ahead = iter(fetches)
    program = [each for _ in range(DEPTH) for each in next(ahead, [])]
    for mine in lines:
        program += [*mine, *next(ahead, [])]
    (tm, tn), wide = cuts.tile, min(cuts.panel, k)
    stays = {"C": tm * tn * sum_itemsize} if lines else {}
    for room in range(min(DEPTH, len(lines))):
        stays |= {f"a{room}": tm * wide * itemsize, f"b{room}": wide * tn * itemsize}
    parts = (ProgramPart("multiply", -1, tuple(program)),) if lines else ()
    turns = np.zeros(len(parts), np.int32)
    line = ProgramLine(turns, turns, turns.astype(np.bool_))
    return Instructions((ProgramRole(parts, {}, stays),), (line,), (0,), "files")


def _panel(
    room: int, region: Region, depth: tuple[int, int], itemsize: int
) -> tuple[list[Instruction], Do]:
    """(what fetches a pair of panels, what multiplies them)."""
    rows, columns = region
    of_a, of_b = (rows, depth), (depth, columns)
    a, b = f"a{room}[panel]", f"b{room}[panel]"
    come: list[Instruction] = [
        Fetch(a, "A", of_a, region_size(of_a) * itemsize),
        Fetch(b, "B", of_b, region_size(of_b) * itemsize),
    ]
    told = {
        "a": (((), of_a),),
        "b": (((), of_b),),
        "into": (region,),
        "c": region,
        "adds": depth[0] > 0,
        "product": (rows[1] - rows[0], depth[1] - depth[0], columns[1] - columns[0]),
    }
    return come, Do("multiply", (a, b), ("C",), options=tuple(told.items()))
