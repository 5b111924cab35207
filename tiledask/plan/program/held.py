"""The reader that weighs: what each rank holds, instruction by instruction.

x1 kept0 = do forward      + x1 + kept0       a buffer is there from the instruction that
send x1 to 1               - x1               writes it to the end of the last that reads it
"""

import numpy as np

from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.program.instructions import (
    Do,
    Instructions,
    ProgramLine,
    ProgramRole,
    buffer_of,
)

__all__ = ["held", "tensor_classes"]

_BY_WORD = {
    **dict.fromkeys(("ids", "targets"), "token ids"),
    **dict.fromkeys(("inverse", "mean", "maximum", "sums", "loss"), "statistics"),
    **dict.fromkeys(("whole", "cast"), "gathered weights"),
}
_IN_BACKWARD = {
    **dict.fromkeys(("db", "dw", "packed", "part", "shared"), "gradients of weights"),
    **dict.fromkeys(("dx", "dy", "handed", "sum"), "activation gradients"),
}
"""By the word with which a buffer's name begins."""
_LOGITS = {"largest_logit": "logits", "logits_grad": "logit gradients"}
"""By the kernel that reads, or writes, them alone."""


def held(program: Instructions) -> Ledger:
    """The Ledger of every rank's fullest moment: a row per buffer, for all frames together.

    Streams are taken in the order of the line, so that a send lets its buffer go at its turn. What
    stays is there at every moment, and what lies within that is no more; what frames share is there
    until it is dropped.

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


def tensor_classes(role: ProgramRole) -> dict[str, str]:
    """The tensor class of every buffer of a training's role, as ledgers have them.

    What a forward leaves to a backward are activations, but for statistics of norms and of the
    loss; what is gone before its part ends is "in between".
    """
    classes = {name: name.partition("/")[0].replace("_", " ") for name in role.stays}
    each_in = [(number, each) for number, part in enumerate(role.parts)
               for each in part.instructions]  # fmt: skip
    last = {buffer_of(name): number for number, each in each_in for name in each.reads}
    for number, each in each_in:
        forward = role.parts[number].kind == "F"
        for name in map(buffer_of, each.writes):
            word = name.partition(".")[0].partition(":")[0].rstrip("0123456789")
            usual = "activations" if last.get(name, number) != number else "in between"
            if not forward:
                usual = _IN_BACKWARD.get(word, "recomputed activations")
            classes.setdefault(name, _BY_WORD.get(word, usual))
        if isinstance(each, Do) and each.kernel in _LOGITS:
            named = each.reads[0] if each.kernel == "largest_logit" else each.writes[0]
            classes[named] = _LOGITS[each.kernel]
    return classes


_Held = tuple[str, str, int, str]
"""What, when, bytes, and of how many."""


def _fullest(role: ProgramRole, line: ProgramLine) -> list[_Held]:
    stays = [(name, ALWAYS, size, "stays") for name, size in role.stays.items()]
    if not len(line):
        return stays or [("nothing", ALWAYS, 0, "")]
    most = max((len(part.instructions) for part in role.parts), default=1)
    turns = np.arange(len(line)) * most
    frames = 1 + int(line.frame.max(initial=-1))
    change = np.zeros(len(line) * most + 1)
    born = {name: np.full(frames, -1) for name in role.nbytes}
    dies = {name: np.full(frames, -1) for name in role.nbytes}
    for number, part in enumerate(role.parts):
        here = line.part == number
        frame, turn = line.frame[here], turns[here]
        for at, each in enumerate(part.instructions):
            for name in map(buffer_of, each.writes):
                if name in born:
                    born[name][frame] = turn + at
            for name in map(buffer_of, (*each.reads, *each.writes)):
                if name in dies:
                    dies[name][frame] = np.maximum(dies[name][frame], turn + at)
            if isinstance(each, Do) and each.work:
                change[turn + at] += each.work
                change[turn + at + 1] -= each.work
    own = {name: size for name, size in role.nbytes.items() if name not in role.within}
    for name, size in own.items():
        there = born[name] >= 0
        np.add.at(change, born[name][there], size)
        np.add.at(change, dies[name][there] + 1, -size)
    moment = int(np.cumsum(change).argmax())
    turn = moment // most
    part = role.parts[line.part[turn]]
    when, found = f"{part.name}.{line.frame[turn]}", []
    for name, size in own.items():
        alive = int(((born[name] >= 0) & (born[name] <= moment) & (dies[name] >= moment)).sum())
        if alive:
            found.append((name, when, alive * size, f"{alive} x {size:g}"))
    at = part.instructions[moment % most : moment % most + 1]
    found += [("work space", when, each.work, each.kernel) for each in at
              if isinstance(each, Do) and each.work]  # fmt: skip
    return stays + found or [("nothing", when, 0, "")]
