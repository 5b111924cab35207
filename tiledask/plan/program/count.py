"""What each rank calls, in order, and the bytes and messages of a collective.

0F0   embedding/forward, layer 0/attention/wo/forward, ..., send          block by block, each
0B0   recv, layer 0/mlp/w_1/backward, ..., layer 0/gradients (ZeRO 2, 3)  with its micro-batch
update   embedding/gradients, ..., embedding/weights (ZeRO 1, 2)
"""

from functools import lru_cache
from typing import NamedTuple

from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, ranks_of
from tiledask.plan.collectives.rows import halo_cost
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.ops import Op, ProgramData, action_of

__all__ = ["STEP", "PlannedCall", "call_label", "calls", "label_of", "moved_by"]

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


@lru_cache(10_000)
def moved_by(op: Op) -> Traffic:
    """The Traffic between the members of a collective without buffers and label."""
    n, counts = ranks_of(op.name, op["counts"]), op["counts"]
    if not op.name.startswith("halo"):
        return cost(op.name, default(op.name, n), counts, op["itemsize"])
    row = op["itemsize"] * (sum(counts) // max(1, sum(op["extents"])))
    return halo_cost(op.name, op["extents"], row, op["before"], op["after"])


def label_of(block: str, microbatch: int) -> str:
    """What a run calls a block of a micro-batch: "0F1", "update"; nothing if it is a whole step."""
    kind, stage = action_of(block)
    return "" if kind == STEP else kind if stage < 0 else f"{stage}{kind}{microbatch}"


def call_label(block: str, op: Op) -> str:
    if op.kind == "message":
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
    role = program.role(rank)
    each: dict[str, list[tuple[Op, tuple[int, int, int]]]] = {}
    for name, ops in role.blocks.items():
        each[name] = []
        for op in ops:
            if op.kind == "collective":
                args = tuple(arg for arg in op.args if arg[0] != "label")
                me, moved = program.members(rank, op).index(rank), moved_by(Op(op.name, args=args))
                each[name].append((op, moved.of_rank(me)))
            elif op.kind == "message":
                size = role.sizes[op.buffer]
                each[name].append((op, (size, 0, 1) if op.name == "send" else (0, size, 0)))
    found = []
    for name, microbatch, _ in program.orders[rank]:
        label = label_of(name, microbatch)
        found += [PlannedCall(call_label(label, op), op.name, *of) for op, of in each[name]]
    return found
