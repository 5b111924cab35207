"""The reader that lists: what each rank of a program calls, in the order of its line.

0F0   embedding/forward, layer 0/attention/wo/forward, ..., send          part by part, each
0B0   recv, layer 0/mlp/w_1/backward, ..., layer 0/gradients (ZeRO 2, 3)  with its frame
update   embedding/gradients, ..., embedding/weights (ZeRO 1, 2)
"""

from typing import NamedTuple

from tiledask.plan.program.instructions import (
    Collective,
    Fetch,
    Instruction,
    Instructions,
    ProgramPart,
    Recv,
    Send,
)

__all__ = ["STEP", "Planned", "call_label", "calls", "label_of"]

STEP = "step"
"""The kind of a part that is all of a step."""


class Planned(NamedTuple):
    """One collective or message, on one rank."""

    label: str
    kind: str
    sent: int
    """Bytes."""
    received: int
    """Bytes."""
    messages: int
    """That it sends."""


def label_of(part: ProgramPart, frame: int) -> str:
    """What a run calls a part of a frame: an action, "0F1", or a word, "update"; nothing if the
    part is a whole step, whose calls say themselves what they are.

    >>> label_of(ProgramPart("F", 0, (), rows=2), 1), label_of(ProgramPart("update", -1, ()), 0)
    ('0F1', 'update')
    """
    if part.kind == STEP:
        return ""
    return part.kind if part.stage < 0 else f"{part.stage}{part.kind}{frame}"


def call_label(part: str, each: Instruction) -> str:
    """What a run calls a message or a collective of a part of this label: a message has that of
    its part, or of its buffer.

    >>> call_label("0F1", Recv("x1", 0)), call_label("", Recv("x1", 0))
    ('0F1', 'x1')
    """
    if isinstance(each, Send | Recv):
        return part or each.buffer
    own = each.array if isinstance(each, Fetch) else getattr(each, "label", "")
    return f"{part}/{own}" if part and own else part or own


def calls(program: Instructions, rank: int) -> list[Planned]:
    """What a rank calls when it goes through its line; behind a `Stop` too.

    >>> import tiledask as td
    >>> for call in calls(td.program(td.schedule("gpipe", 2, 1), block_bytes=8), 0):
    ...     print(*call)
    0F0 send 8 0 1
    0B0 recv 0 8 0
    """
    role, seen = program.role(rank), dict[int, list[tuple[Instruction, Planned]]]()
    found = []
    for number, frame in program.lines[rank]:
        part = role.parts[number]
        if number not in seen:
            made = ((each, _call(program, rank, each)) for each in part.instructions)
            seen[number] = [(each, call) for each, call in made if call]
        label = label_of(part, frame)
        for each, call in seen[number]:
            found.append(call._replace(label=call_label(label, each)))
    return found


def _call(program: Instructions, rank: int, each: Instruction) -> Planned | None:
    if isinstance(each, Send):
        return Planned("", "send", program.role(rank).size(each.buffer), 0, 1)
    if isinstance(each, Recv):
        return Planned("", "recv", 0, program.role(rank).size(each.buffer), 0)
    if isinstance(each, Fetch) and each.source is not None:
        return Planned("", "fetch", 0, each.nbytes, 0)
    if not isinstance(each, Collective):
        return None
    me, of = program.members(rank, each).index(rank), each.cost
    return Planned("", each.kind, of.sent[me], of.received[me], of.messages[me])
