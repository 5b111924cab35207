"""The reader that weighs: what each rank holds, instruction by instruction.

x1 kept0 = do forward      + x1 + kept0       a buffer is there from the instruction that
send x1 to 1               - x1               writes it to the end of the last that reads it
"""

import numpy as np

from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.program.instructions import (
    Drop,
    Instructions,
    ProgramLine,
    ProgramRole,
    buffer_of,
)

__all__ = ["held"]


def held(program: Instructions) -> Ledger:
    """The Ledger of every rank's fullest moment: a row per buffer, for all frames together.

    Streams are taken in the order of the line, so that a send lets its buffer go at its turn. What
    stays is there at every moment, what frames share until it is dropped.

    >>> import tiledask as td
    >>> held(td.program(td.schedule("1f1b", 4, 8))).per_place
    {0: 4, 1: 3, 2: 2, 3: 1}
    """
    found: dict[tuple[int, int], list[_Held]] = {}
    rows = []
    for rank, line in enumerate(program.lines):
        key = program.of_rank[rank], id(line)
        if key not in found:
            found[key] = _fullest(program.role(rank), line)
        rows += [Row(rank, *row) for row in found[key]]
    return Ledger.of(rows)


_Held = tuple[str, str, int, str]
"""What, when, bytes, and of how many."""


def _fullest(role: ProgramRole, line: ProgramLine) -> list[_Held]:
    stays = [(name, ALWAYS, size, "stays") for name, size in role.stays.items()]
    if not len(line):
        return stays or [("nothing", ALWAYS, 0, "")]
    most = max((len(part.instructions) for part in role.parts), default=1)
    turns = np.arange(len(line)) * most
    frames = 1 + int(line.frame.max(initial=-1))
    born = {name: np.full(frames, -1) for name in role.nbytes}
    dies = {name: np.full(frames, -1) for name in role.nbytes}
    made, dropped = ({name: list[np.ndarray]() for name in role.shared} for _ in range(2))
    for number, part in enumerate(role.parts):
        here = line.part == number
        frame, turn = line.frame[here], turns[here]
        for at, each in enumerate(part.instructions):
            for name in map(buffer_of, each.writes):
                if name in born:
                    born[name][frame] = turn + at
                elif name in made and name not in map(buffer_of, each.reads):
                    (dropped if isinstance(each, Drop) else made)[name].append(turn + at)
            for name in map(buffer_of, (*each.reads, *each.writes)):
                if name in dies:
                    dies[name][frame] = np.maximum(dies[name][frame], turn + at)
    for of, each_time in (
        (born, made),
        (dies, dropped),
    ):  # each one made is dropped before the next
        of.update({n: np.sort(np.concatenate(found)) for n, found in each_time.items() if found})
    sizes = {name: size for name, size in (role.nbytes | role.shared).items() if name in born}
    change = np.zeros(len(line) * most + 1)
    for name, size in sizes.items():
        there = born[name] >= 0
        np.add.at(change, born[name][there], size)
        np.add.at(change, dies[name][there] + 1, -size)
    moment = int(np.cumsum(change).argmax())
    turn = moment // most
    when = f"{role.parts[line.part[turn]].name}.{line.frame[turn]}"
    found = []
    for name, size in sizes.items():
        alive = int(((born[name] >= 0) & (born[name] <= moment) & (dies[name] >= moment)).sum())
        if alive:
            found.append((name, when, alive * size, f"{alive} x {size:g}"))
    return stays + found or [("nothing", when, 0, "")]
