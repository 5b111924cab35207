"""The reader that weighs: what each rank holds, instruction by instruction.

x1 kept0 = do forward      + x1 + kept0       a buffer is there from the instruction that
send x1 to 1               - x1               writes it to the end of the last that reads it
"""

import numpy as np

from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.program.instructions import Instructions

__all__ = ["held"]


def held(program: Instructions) -> Ledger:
    """The Ledger of every rank's fullest moment: a row per buffer, for all frames together.

    Streams are taken in the order of the line, so that a send lets its buffer go at its turn.

    >>> import tiledask as td
    >>> held(td.program(td.schedule("1f1b", 4, 8))).per_place
    {0: 4, 1: 3, 2: 2, 3: 1}
    """
    return Ledger.of(row for rank in range(program.ranks) for row in _fullest(program, rank))


def _fullest(program: Instructions, rank: int) -> list[Row]:
    line, role = program.lines[rank], program.role(rank)
    if not len(line):
        return [Row(rank, "nothing", ALWAYS, 0)]
    most = max((len(part.instructions) for part in role.parts), default=1)
    turns = np.arange(len(line)) * most
    frames = 1 + int(line.frame.max(initial=-1))
    born = {name: np.full(frames, -1) for name in role.nbytes}
    dies = {name: np.full(frames, -1) for name in role.nbytes}
    for number, part in enumerate(role.parts):
        here = line.part == number
        frame, turn = line.frame[here], turns[here]
        for at, each in enumerate(part.instructions):
            for name in each.writes:
                born[name][frame] = turn + at
            for name in (*each.reads, *each.writes):
                dies[name][frame] = np.maximum(dies[name][frame], turn + at)
    change = np.zeros(len(line) * most + 1)
    for name, size in role.nbytes.items():
        there = born[name] >= 0
        np.add.at(change, born[name][there], size)
        np.add.at(change, dies[name][there] + 1, -size)
    moment = int(np.cumsum(change).argmax())
    turn = moment // most
    when = f"{role.parts[line.part[turn]].name}.{line.frame[turn]}"
    found = []
    for name, size in role.nbytes.items():
        alive = int(((born[name] >= 0) & (born[name] <= moment) & (dies[name] >= moment)).sum())
        if alive:
            found.append(Row(rank, name, when, alive * size, f"{alive} x {size:g}"))
    return found or [Row(rank, "nothing", when, 0)]
