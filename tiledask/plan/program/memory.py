"""The reader that weighs: what each rank holds, op by op.

x1 kept0 = do forward      + x1 + kept0       a buffer is there from the op that writes it to the
send x1 to 1               - x1               end of the last that reads it
"""

from collections import Counter
from itertools import accumulate

import numpy as np

from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.program.ops import Order, ProgramData, ProgramRole, buffer_of

__all__ = ["memory"]


def memory(program: ProgramData) -> Ledger:
    """The Ledger of every rank's fullest moment: a row per buffer, for all micro-batches together.

    Ops are taken in their order, whatever their stream, so that a send lets its buffer go at its
    turn. State is there at every moment, and what lies within it is no more.

    >>> import tiledask as td
    >>> memory(td.program(td.schedule("1f1b", 4, 8))).per_place
    {0: 4, 1: 3, 2: 2, 3: 1}
    """
    found: dict[tuple[int, int], list[_Held]] = {}
    rows = []
    for rank, order in enumerate(program.orders):
        key = program.role_of[rank], id(order)
        if key not in found:
            found[key] = _fullest(program.role(rank), order)
        rows += [Row(rank, *row) for row in found[key]]
    return Ledger.of(rows)


_Held = tuple[str, str, int, str]
"""What, when, bytes, and of how many."""


def _fullest(role: ProgramRole, order: Order) -> list[_Held]:
    state = [(name, ALWAYS, size, "stays") for name, size in role.state.items()]
    ops = [(step, op) for step in order for op in role.blocks[step.block].ops]
    born: dict[tuple[str, int], int] = {}
    dies: dict[tuple[str, int], int] = {}
    change = [0] * (len(ops) + 1)
    for at, (step, op) in enumerate(ops):
        for name in op.writes:
            born[buffer_of(name), step.microbatch] = at
        for name in (*op.reads, *op.writes):
            dies[buffer_of(name), step.microbatch] = at
        if op.args:
            change[at] += op["work"]
            change[at + 1] -= op["work"]
    own = role.sizes.keys() - role.alias.keys()
    born = {key: at for key, at in born.items() if key[0] in own}
    for key, at in born.items():
        change[at] += role.sizes[key[0]]
        change[dies[key] + 1] -= role.sizes[key[0]]
    if not ops:
        return state or [("nothing", ALWAYS, 0, "")]
    moment = int(np.argmax(list(accumulate(change))))
    step, op = ops[moment]
    when, found = f"{step.block}.{step.microbatch}", []
    alive = Counter(key[0] for key, at in born.items() if at <= moment <= dies[key])
    for name, size in role.sizes.items():
        if count := alive[name]:
            found.append((name, when, count * size, f"{count} x {size:g}"))
    found += [("work space", when, op["work"], op.name)] if op["work"] else []
    return state + found or [("nothing", when, 0, "")]
