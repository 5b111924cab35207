"""The program of a training's end: what was sharded is whole again, is written, and is brought.

    end   weights/layer_0 whole (ZeRO 3), states whole (ZeRO 1 to 3), the loss of all ranks;
          write_checkpoint, if there is a folder; bring, the weights

A checkpoint is of whole arrays, so that it is taken up again under any other layout.
"""

from math import prod

import numpy as np

from tiledask.plan.collectives.cost import even
from tiledask.plan.program.instructions import ProgramLine, ProgramPart, ProgramRole
from tiledask.plan.program.making.layers import TENSOR
from tiledask.plan.program.making.of_training import TrainingTerms, by_role
from tiledask.plan.program.making.unit_states import DATA, PIPELINE, UnitStates
from tiledask.plan.program.making.writer import ProgramWriter, Value
from tiledask.plan.program.program import Program

__all__ = ["end_program"]


def end_program(terms: TrainingTerms, mesh: tuple[int, int, int], saved: bool) -> Program:
    """The Program of what a (dp, tp, pp) mesh does after a training's last step.

    ``saved``: whether a checkpoint is written.
    """
    roles, of_rank = by_role(terms, mesh, lambda at: _role(terms, mesh, at, saved))
    line = ProgramLine(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, bool))
    name = "checkpoint" if saved else "weights brought back"
    return Program(tuple(roles), (line,) * prod(mesh), of_rank, name, mesh)


def _role(
    terms: TrainingTerms, mesh: tuple[int, int, int], at: tuple[int, int, int], saved: bool
) -> ProgramRole:
    copy, rank, device = at
    writer = ProgramWriter(terms.itemsize)
    shapes = {unit: terms.model.shapes(unit, mesh[TENSOR], rank) for unit in terms.units(device)}
    states = UnitStates(writer, shapes, terms.recipe, terms.zero, mesh[DATA], copy)
    names = [s.tensor for s in terms.recipe.states if s.tensor != "gradients"]
    found = {(tensor, unit): states.whole(tensor, unit)
             for tensor in (names if saved else ["weights"]) for unit in shapes}  # fmt: skip
    loss = Value("loss", (), 8)
    stays = states.stays
    if saved:
        stays = stays | {loss.name: loss.itemsize}
        ranks = mesh[DATA] * mesh[PIPELINE]
        if ranks > 1:
            axes, counts = (DATA, PIPELINE), even(1, ranks)
            loss = writer.all_reduce(loss, "loss", axes, counts=counts, stream="all")
        writer.do("write_checkpoint", (loss, *found.values()), what=tuple(found))
    weights = {unit: whole for (tensor, unit), whole in found.items() if tensor == "weights"}
    writer.do("bring", list(weights.values()), units=tuple(weights))
    part = ProgramPart("end", -1, tuple(writer.written))
    return ProgramRole((part,), writer.nbytes, stays, given=frozenset(stays), items=writer.items)
