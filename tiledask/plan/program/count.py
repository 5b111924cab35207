"""What each rank calls, in order.

0F0   embedding/forward, layer 0/attention/wo/forward, ..., send          block by block, each
0B0   recv, layer 0/mlp/w_1/backward, ..., layer 0/gradients (ZeRO 2, 3)  with its micro-batch
update   embedding/gradients, ..., embedding/weights (ZeRO 1, 2)
"""

from typing import NamedTuple

from tiledask.plan.program.ops import Op, action_of
from tiledask.plan.program.program import Program, moved_by

__all__ = ["STEP", "PlannedCall", "call_label", "calls", "label_of"]

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


def label_of(block: str, microbatch: int) -> str:
    """What a run calls a block of a micro-batch: "0F1", "update"; nothing if it is a whole step."""
    kind, stage = action_of(block)
    return "" if kind == STEP else kind if stage < 0 else f"{stage}{kind}{microbatch}"


def call_label(block: str, op: Op) -> str:
    """What it calls what an op does in a block of this label."""
    if op.kind == "message":
        return block or op.buffer
    return "/".join(filter(None, (block, op["label"])))


def calls(program: Program, rank: int) -> list[PlannedCall]:
    """What a rank calls when it goes through its order; behind a "stop" too.

    >>> import tiledask as td
    >>> for call in calls(td.program(td.schedule("gpipe", 2, 1), block_bytes=8), 0):
    ...     print(*call)
    0F0 send 8 0 1
    0B0 recv 0 8 0
    """
    role = program.role(rank)
    each: dict[str, list[tuple[Op, tuple[int, int, int]]]] = {}
    for name, ops in role.blocks.items():
        each[name] = []
        for op in ops:
            if op.kind == "collective":
                args = tuple(arg for arg in op.args if arg[0] != "label")
                me = program.members(rank, op["axes"], op["among"]).index(rank)
                each[name].append((op, moved_by(Op(op.name, args=args)).of_rank(me)))
            elif op.kind == "message":
                size = role.sizes[op.buffer]
                each[name].append((op, (size, 0, 1) if op.name == "send" else (0, size, 0)))
    found = []
    for name, microbatch, _ in program.orders[rank]:
        label = label_of(name, microbatch)
        found += [PlannedCall(call_label(label, op), op.name, *of) for op, of in each[name]]
    return found
