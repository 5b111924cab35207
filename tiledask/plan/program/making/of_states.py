"""The program of a step of which only a number of parameters is known: their states, and the update.

rank 0: begin.0 backward.0 update.0

begin    gradients are cleared         backward   gradients are there: of layers nothing is known
update   sums over the copies, the optimizer's step
"""  # noqa: E501

import numpy as np

from tiledask.plan.collectives.shards import shards
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.program.instructions import ProgramLine, ProgramPart, ProgramRole
from tiledask.plan.program.making.unit_states import UnitStates, flat_name
from tiledask.plan.program.making.writer import ProgramWriter, Value
from tiledask.plan.program.program import Program

__all__ = ["UNIT", "states_program"]

UNIT = "parameters"
"""What all of them are called."""


def states_program(count: int, recipe: Recipe, zero: int = 0, copies: int = 1) -> Program:
    """The Program of ``copies`` ranks that hold the same ``count`` parameters, by ZeRO.

    A recipe that does not train keeps weights, and nothing is done with them.

    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> kept = states_program(1000, load_recipe("mixed-adam-16"), zero=1, copies=4).check().memory
    >>> kept.by_tensor(0)["momentum/parameters"], kept.peak  # 4 B of each, 12 B of a quarter
    (1000, 7008)
    """
    roles: dict[int, ProgramRole] = {}
    (extents,) = shards([count], copies)
    for copy, extent in enumerate(extents):
        if extent not in roles:
            roles[extent] = _role(count, recipe, zero, copies, copy)
    parts = len(next(iter(roles.values())).parts)
    line = ProgramLine(
        np.arange(parts, dtype=np.int32), np.zeros(parts, np.int32), np.zeros(parts, bool)
    )
    numbers = list(roles)
    of_rank = tuple(numbers.index(extent) for extent in extents)
    name = f"states of {count:,} parameters"
    return Program(tuple(roles.values()), (line,) * copies, of_rank, name, (copies, 1, 1))


def _role(count: int, recipe: Recipe, zero: int, copies: int, copy: int) -> ProgramRole:
    writer = ProgramWriter(recipe.compute_bytes)
    states = UnitStates(writer, {UNIT: {"w": (count,)}}, recipe, zero, copies, copy)
    if not recipe.trains:
        return ProgramRole((), {}, states.stays, given=frozenset(states.stays))
    parts = []

    def part(kind: str) -> None:
        parts.append(ProgramPart(kind, -1, tuple(writer.written)))
        writer.part()

    states.begin()
    part("begin")
    writer.do("gradients", (), (Value(flat_name("gradients", UNIT), (), 0),))
    part("backward")
    states.update({}, None)
    part("update")
    return ProgramRole(
        tuple(parts),
        writer.nbytes,
        states.stays | {"updates": 8},
        frozenset(states.scratch),
        items=writer.items,
        within=writer.within,
    )
