"""Where sends, receives and waits stand among a schedule's actions, in PyTorch's words.

    rank 0     0F0 0SEND_F0                      0RECV_B0 0B0 0WAIT_SEND_F0
    rank 1                  1RECV_F0 1F0 1B0 1SEND_B0                       1WAIT_SEND_B0

In rounds each device does its next block of actions, if what they read is there. It sends a result
at once, and at that moment the receive stands on the other device: so every message is sent and
received in the same order, and nothing hangs. Whoever sent a forward waits for that send after the
backward of the same micro-batch, which could not come before it; for others, at the end.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from tiledask.errors import ScheduleError

__all__ = ["with_messages"]

Block = tuple[str, tuple[tuple[str, int, int], ...]]
"""What a device does at once: the word for it, and its actions, one or both of a pair, each as
(kind, stage, micro-batch)."""


def with_messages(
    rows: Sequence[Iterable[Block]], place: Sequence[int], waits: bool
) -> list[list[str]]:
    """The words of each device: those of its blocks, and those of messages between devices.

    ``place``: the device of each stage. ``waits``: whether each send, and each sum of gradients, is
    waited for. Raises ScheduleError where devices wait for each other, and no message comes next.
    """
    last = len(place) - 1
    words: list[list[str]] = [[] for _ in rows]
    sent: list[dict[tuple[str, int, int], None]] = [{} for _ in rows]
    """Sends that nothing waited for."""
    there = set[tuple[str, int, int]]()
    """Of which inputs are there: (F or B, stage, micro-batch)."""
    rest = [deque(_waited_for(row) if waits else row) for row in rows]
    while any(rest):
        before = sum(map(len, rest))
        for device, blocks in enumerate(rest):
            if not blocks or not all(
                (read := _reads(action, last)) is None or read in there for action in blocks[0][1]
            ):
                continue
            word, block = blocks.popleft()
            words[device].append(word)
            for kind, stage, number in block:
                if waits and kind in "BI" and ("F", stage, number) in sent[device]:
                    del sent[device]["F", stage, number]
                    words[device].append(f"{stage}WAIT_SEND_F{number}")
            for kind, stage, number in block:
                way, to = ("F", stage + 1) if kind == "F" else ("B", stage - 1)
                if kind not in "FBI" or not 0 <= to <= last:
                    continue
                there.add((way, to, number))
                if place[to] != device:
                    words[device].append(f"{stage}SEND_{way}{number}")
                    sent[device][way, stage, number] = None
                    words[place[to]].append(f"{to}RECV_{way}{number}")
        if sum(map(len, rest)) == before:
            stuck = ", ".join(blocks[0][0] for blocks in rest if blocks)
            raise ScheduleError(
                f"{stuck} wait for what comes after them, so no message comes next; "
                f"td.validate(schedule) says what is wrong with the order"
            )
    if waits:
        for row, left in zip(words, sent, strict=True):
            row += [f"{stage}WAIT_SEND_{way}{number}" for way, stage, number in left]
    return words


def _waited_for(row: Iterable[Block]) -> Iterator[Block]:
    """A device's blocks, with the waits for sums of gradients, each behind its own."""
    for block in row:
        yield block
        for kind, stage, _ in block[1]:
            if kind == "REDUCE_GRAD":
                yield f"{stage}WAIT_REDUCE_GRAD", ()


def _reads(action: tuple[str, int, int], last: int) -> tuple[str, int, int] | None:
    """What an action reads that another stage makes; None if there is nothing."""
    kind, stage, number = action
    if kind == "F":
        return ("F", stage, number) if stage else None
    return ("B", stage, number) if kind in ("B", "I") and stage < last else None
