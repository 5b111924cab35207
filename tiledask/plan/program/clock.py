"""The reader that times: when every op runs, each stream in its order.

    compute   [0F.0 ][0F.1 ]         [0B.0 ]      an op starts when its stream is free and what it
    to_1             [x1.0 ][x1.1 ]               reads is there; what a send has carried is there
    from_1                        dx1.0           at the other end a latency later

Ops are taken in an order in which they can run (walk.py); each starts once all it needs is there.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tiledask.errors import ProgramError
from tiledask.plan.collectives.cost import replayed
from tiledask.plan.pipelines.timeline import COMPUTE, TRANSFER, Span, Timeline
from tiledask.plan.program.ops import COMPUTE_STREAM, Block, Op, ProgramData, buffer_of
from tiledask.plan.program.walk import OpPlace, walk

__all__ = ["clock"]

Seconds = float | Sequence[float]
"""One number, or one per micro-batch."""


def clock(
    program: ProgramData,
    seconds: Mapping[str, Seconds],
    *,
    latency: float = 0.0,
    bandwidth: float = float("inf"),
) -> Timeline:
    """The Timeline of ``program``: its blocks' work, and what is on its way to a rank beneath it.

    seconds       of a block, by its name ("0F") or its kind ("F", "update"): one number, or one
                  per micro-batch; its kernels take as much each, and two blocks at once both times
    latency       seconds on the way of a message
    bandwidth     bytes/s of a link from one rank to another: a message takes up its stream for
                  its bytes over that

    A collective begins when all members can, and ends for all, after as long as its messages take.
    Raises ProgramError for a program that is wrong, and for times that are missing, negative or
    not finite.

    >>> import tiledask as td
    >>> program = td.program(td.schedule("1f1b", 4, 8))
    >>> clock(program, {"F": 1.0, "B": 2.0}).makespan
    33.0
    """
    if not bandwidth > 0 or not 0 <= latency < np.inf:
        raise ProgramError(
            f"bandwidth is above 0 bytes/s and latency a finite number of s of 0 or more, got "
            f"{bandwidth} and {latency}"
        )
    for block in (block for role in program.roles for block in role.blocks.values()):
        if block.kind in COMPUTE and not _key(block, seconds):
            raise ProgramError(
                f"no seconds for {block.name}; give seconds={{{block.kind!r}: ...}}, or "
                f"{block.name!r}; there are {', '.join(map(repr, seconds)) or 'none'}"
            )
    times = _Times(program, seconds, latency, bandwidth)
    for places in walk(program):
        times.happen(places)
    return Timeline.of(program.ranks, [span for of in times.spans.values() for span in of])


class _Times:
    """When ops are done, one after the other, and the spans of what they do."""

    def __init__(self, program: ProgramData, seconds: Mapping[str, Seconds], *links: float) -> None:
        self.program, self.seconds = program, seconds
        self.latency, self.bandwidth = links
        self.spans: dict[tuple[int, int, str], list[Span]] = {}
        """By rank, step and kind: what it did there, one behind the other."""
        self.free: dict[tuple[int, str], float] = {}
        """By rank and stream, when it is free."""
        self.there: dict[Any, float] = {}
        """By rank and buffer, or message: when it is there."""

    def happen(self, places: list[OpPlace]) -> None:
        """What is done at once is, as soon as streams are free, and what is read is there."""
        place, waits = places[0], [0.0]
        (rank, *_, op), peer = place, 0
        if op.is_message:
            peer = self.program.peer(rank, op)
        for each in places:
            waits += [self.there.get(self._where(each, name), 0.0) for name in each.op.reads]
            waits.append(self.free.get((each.rank, each.op.stream), 0.0))
        if op.name == "recv":
            waits.append(self.there[peer, rank, op.buffer, place.microbatch])
        free = start = max(waits)
        if op.is_kernel:
            free += sum(map(self._kernel, places))
        elif op.is_collective:
            free += _collective(op, self.latency, self.bandwidth)
        there = free
        if op.name == "send":
            free += self.program.role(rank).size(op.buffer) / self.bandwidth
            there = free + self.latency
            self.there[rank, peer, op.buffer, place.microbatch] = there
            self._span(place, peer, TRANSFER, start, there)
        for each in places:
            self.free[each.rank, each.op.stream] = free
            for name in each.op.writes:
                self.there[self._where(each, name)] = there
                if base := self.program.role(each.rank).alias.get(name):
                    self.there[each.rank, base] = there
            if op.is_kernel:
                kind = each.block.kind if each.block.kind in COMPUTE else "U"
                self._span(each, each.rank, kind, start, there)
            elif op.is_collective:
                self._span(each, each.rank, TRANSFER, start, there)

    def _where(self, place: OpPlace, name: str) -> Any:
        """State is one; of other buffers there is one per micro-batch."""
        role = self.program.role(place.rank)
        buffer = name if name in role.sizes else buffer_of(name)
        key = place.rank, buffer
        return key if buffer in role.state else (*key, place.microbatch)

    def _kernel(self, place: OpPlace) -> float:
        """Seconds of a kernel; none of blocks without, or on another stream than the work's."""
        block, name = place.block, _key(place.block, self.seconds)
        if not name or place.op.stream != COMPUTE_STREAM:
            return 0.0
        given = self.seconds[name]
        took = float(given[place.microbatch] if isinstance(given, Sequence) else given)
        if not 0 <= took < np.inf:
            raise ProgramError(f"{block.name} takes a finite time of 0 s or more, got {took:g}")
        return took / sum(op.is_kernel for op in block.ops)

    def _span(self, place: OpPlace, rank: int, kind: str, start: float, end: float) -> None:
        """Work of a step that goes on is one span."""
        here = self.spans.setdefault((rank, place.step, kind), [])
        if kind != TRANSFER:
            if start == end and here:
                return
            if here and here[-1][5] == start:
                start = here.pop()[4]
        microbatch = place.microbatch if place.block.kind in COMPUTE else -1
        here.append((rank, kind, place.block.stage, microbatch, start, end))


@lru_cache(10_000)
def _collective(op: Op, latency: float, bandwidth: float) -> float:
    return float(max(replayed(op.moves(), op.size, latency, bandwidth)))


def _key(block: Block, of: Mapping[str, Seconds]) -> str:
    """How a block is called there: by its name, its stage and kind, or its kind; "": not at all."""
    names = block.name, f"{block.stage}{block.kind}", block.kind
    return next((name for name in names if name in of), "")
