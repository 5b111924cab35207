"""The program of a product of matrices in files: tile after tile of C, panel after panel.

    a0[panel] = fetch A   @fetch      from the file, while the pair before it is multiplied
    b0[panel] = fetch B   @fetch
    C = do multiply a0[panel] b0[panel]
    keep C                            into the file: a sum that goes on may be left out

A product that is taken up again has a shorter line: a tile that was begun is fetched first.
"""

from collections.abc import Iterable

from tiledask.plan.products.product_plan import AHEAD
from tiledask.plan.products.regions import Region, region_size
from tiledask.plan.products.streaming import Cuts, StreamPlan
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Fetch,
    Instruction,
    Keep,
    ProgramPart,
    ProgramRole,
)
from tiledask.plan.program.making.of_product import Turn, in_turn, multiplication, once
from tiledask.plan.program.program import Program

__all__ = ["stream_program", "stream_role"]


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
    roles = [stream_role(plan.cuts, k, mine, size, sum_itemsize or size) for mine in tiles]
    return once(roles, "files")


def stream_role(
    cuts: Cuts, k: int, tiles: Iterable[tuple[Region, int]], itemsize: int, sum_itemsize: int
) -> ProgramRole:
    """What one slot does for ``tiles``, each with up to which k it is summed already."""
    turns = list[Turn]()
    for region, begin in tiles:
        rows, columns = region
        mine = list[Instruction]()
        if 0 < begin < k:
            nbytes = region_size(region) * sum_itemsize
            mine.append(Fetch("C", "C", region, nbytes, stream=COMPUTE_STREAM))
        for depth in cuts.panels(k, begin):
            room, of_a, of_b = len(turns) % AHEAD, (rows, depth), (depth, columns)
            come = [
                Fetch(f"{name}{room}[panel]", name.upper(), part, region_size(part) * itemsize)
                for name, part in (("a", of_a), ("b", of_b))
            ]
            reads = [each.buffer for each in come]
            mine += [
                multiplication(
                    reads, [(((), of_a),), (((), of_b),)], depth, region, [region], depth[0] > 0, 1
                ),
                Keep("C", "C", region, depth[1], partial=depth[1] < k),
            ]
            turns.append(([*come], mine))
            mine = []
    (tm, tn), wide = cuts.tile, min(cuts.panel, k)
    stays = {"C": tm * tn * sum_itemsize} if turns else {}
    for room in range(min(AHEAD, len(turns))):
        stays |= {f"a{room}": tm * wide * itemsize, f"b{room}": wide * tn * itemsize}
    parts = (ProgramPart("multiply", -1, tuple(in_turn(turns))),) if turns else ()
    return ProgramRole(parts, {}, stays)
