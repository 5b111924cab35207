"""The readers that count: bytes and messages between ranks, what each rank calls, in order, and
what it holds, op by op.

0F0   embedding/forward, layer 0/attention/wo/forward, ..., send          block by block, each
0B0   recv, layer 0/mlp/w_1/backward, ..., layer 0/gradients (ZeRO 2, 3)  with its micro-batch
update   embedding/gradients, ..., embedding/weights (ZeRO 1, 2)

x1 kept0 = do forward      + x1 + kept0       a buffer is there from the op that writes it to the
send x1 to 1               - x1               end of the last that reads it
"""

from collections import Counter
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.ops import Block, Op, Order, ProgramData, ProgramRole, buffer_of

__all__ = ["STEP", "PlannedCall", "call_label", "calls", "count", "label_of", "memory"]

STEP = "step"
"""The kind of a block that is all of a training's step."""


class PlannedCall(NamedTuple):
    """One collective or message, on one rank."""

    label: str
    kind: str
    sent: int
    """Bytes."""
    received: int
    """Bytes."""
    messages: int
    """That it sends."""


def count(program: ProgramData) -> Traffic:
    """The Traffic of ``program``: what is sent, and collectives' messages.

    >>> import tiledask as td
    >>> count(td.program(td.schedule("gpipe", 2, 3), block_bytes=8)).bytes.tolist()
    [[0, 24], [24, 0]]
    """
    moved = np.zeros((2, program.ranks, program.ranks), np.int64)
    found: dict[tuple[int, int], list[tuple[Op, int, Any]]] = {}
    for rank, order in enumerate(program.orders):
        key = program.role_of[rank], id(order)
        if key not in found:
            found[key] = _between(program.role(rank), order)
        for op, times, each in found[key]:
            if op.is_message:
                moved[:, rank, program.peer(rank, op)] += times * each, times
            else:
                members = program.members(rank, op)
                moved[:, rank, members] += times * each[:, members.index(rank)]
    return Traffic(*moved)


def _between(role: ProgramRole, order: Order) -> list[tuple[Op, int, Any]]:
    """What a rank's order sends: (op, how often, bytes of a send, or of a collective bytes and
    messages between members)."""
    often = Counter(step.block for step in order)
    ops = [(op, times) for name, times in often.items() for op in role.blocks[name].ops]
    sends = [(op, times, role.size(op.buffer)) for op, times in ops if op.name == "send"]
    alike = Counter[Op]()
    for op, times in ops:
        if op.is_collective:
            args = tuple(arg for arg in op.args if arg[0] != "label")
            alike[Op(op.name, (), (), args)] += times
    return [*sends, *((op, times, _table(op)) for op, times in alike.items())]


@lru_cache(10_000)
def _table(op: Op) -> np.ndarray:
    """[bytes or messages, from, to], of a collective's members."""
    found = np.zeros((2, op.size, op.size), np.int64)
    for move, nbytes in chain.from_iterable(op.moves()):
        found[:, move.source, move.destination] += nbytes, 1
    return found


def label_of(block: Block, microbatch: int) -> str:
    """What a run calls a block of a micro-batch: an action, "0F1", or a word, "update"; nothing if
    it is a whole step, whose calls say themselves what they are."""
    if block.kind == STEP:
        return ""
    return block.kind if block.stage < 0 else f"{block.stage}{block.kind}{microbatch}"


def call_label(block: str, op: Op) -> str:
    """What a run calls a message or a collective in a block of this label: a message has that of
    its block, or of its buffer."""
    if op.is_message:
        return block or op.buffer
    return f"{block}/{op['label']}" if block and op["label"] else block or op["label"]


def calls(program: ProgramData, rank: int) -> list[PlannedCall]:
    """What a rank calls when it goes through its order; behind a "stop" too.

    >>> import tiledask as td
    >>> for call in calls(td.program(td.schedule("gpipe", 2, 1), block_bytes=8), 0):
    ...     print(*call)
    0F0 send 8 0 1
    0B0 recv 0 8 0
    """
    blocks, found = program.role(rank).blocks, list[PlannedCall]()
    moved = {
        name: [(op, _moved(program, rank, op)) for op in b.ops if op.is_message or op.is_collective]
        for name, b in blocks.items()
    }
    for name, microbatch, _ in program.orders[rank]:
        label = label_of(blocks[name], microbatch)
        found += [PlannedCall(call_label(label, op), op.name, *of) for op, of in moved[name]]
    return found


def _moved(program: ProgramData, rank: int, op: Op) -> tuple[int, int, int]:
    """(bytes sent, received, messages sent) by a rank."""
    if op.is_message:
        size = program.role(rank).size(op.buffer)
        return (size, 0, 1) if op.name == "send" else (0, size, 0)
    me, of = program.members(rank, op).index(rank), op.cost
    return of.sent[me], of.received[me], of.messages[me]


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
