"""The reader that times: when every instruction runs, each stream in its order.

    compute   [0F.0 ][0F.1 ]         [0B.0 ]      an instruction starts when its stream is free and
    to_1             [x1.0 ][x1.1 ]               what it reads is there; what a send has carried
    from_1                        dx1.0           is there at the other end a latency later

A stream is a coroutine: it goes on until it lacks something, says what, and is taken up again when
that is there. So whatever the order of the lines, nothing is looked at twice in vain.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tiledask.errors import ProgramError
from tiledask.plan.data import short
from tiledask.plan.pipelines.timeline import TRANSFER, Span, Timeline
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Do,
    Instructions,
    ProgramPart,
    Recv,
    Send,
)

__all__ = ["clock"]

Lacks = tuple[Any, ...]
"""What a stream waits for: (rank, buffer, frame), or (from, to, buffer, frame) of a message."""
Seconds = float | Sequence[float]
"""One number, or one per frame."""


def clock(
    program: Instructions,
    seconds: Mapping[str, Seconds],
    *,
    latency: float | Sequence[Sequence[float]] = 0.0,
    bandwidth: float | Sequence[Sequence[float]] = float("inf"),
    overlapped: Mapping[str, Seconds] | None = None,
) -> Timeline:
    """The Timeline of ``program``: its kernels, and what is on its way to a rank beneath them.

    seconds       of a part's kernel, by the part's name ("0F") or its kind ("F"): one number, or
                  one per frame
    latency       seconds on the way of a message: a number, or a table [from rank][to rank]
    bandwidth     bytes/s of a link from one rank to another: a message takes up its stream for
                  its bytes over that
    overlapped    of two parts at once, by the first of them; default: the sum of both

    A message on the stream of the work takes up both ends for latency and carrying, first the
    sender's, then the receiver's. Raises ProgramError for a program that cannot go on, and for
    times that are missing, negative or not finite.

    >>> import tiledask as td
    >>> program = td.program(td.schedule("1f1b", 4, 8))
    >>> clock(program, {"F": 1.0, "B": 2.0}).makespan
    33.0
    """
    run = _Run(program, seconds, overlapped or {}, latency, bandwidth)
    streams = {
        (rank, each.stream): run.stream(rank, each.stream)
        for rank in range(program.ranks)
        for part in program.role(rank).parts
        for each in part.instructions
    }
    _to_the_end(streams, run)
    return Timeline.of(program.ranks, run.spans)


def _to_the_end(streams: dict[tuple[int, str], Iterator[Lacks]], run: "_Run") -> None:
    """Take every stream to its end. Raises ProgramError where some can't get there."""
    ready, waiting = list(streams), defaultdict[Lacks, list[tuple[int, str]]](list)
    while ready:
        key = ready.pop()
        for lacks in streams[key]:
            waiting[lacks].append(key)
            break
        while run.news:
            ready += waiting.pop(run.news.pop(), ())
    if waiting:
        lacks, [(rank, stream), *_] = next(iter(waiting.items()))
        raise ProgramError(
            f"rank {rank} waits for {lacks[-2]} of frame {lacks[-1]} for ever, on its stream "
            f"{stream}; program.check() says why"
        )


class _Run:
    def __init__(
        self,
        program: Instructions,
        seconds: Mapping[str, Seconds],
        overlapped: Mapping[str, Seconds],
        latency: Any,
        bandwidth: Any,
    ) -> None:
        n = program.ranks
        self.program, self.seconds, self.overlapped = program, seconds, overlapped
        self.latency = _table(latency, n, "latency")
        self.bandwidth = _table(bandwidth, n, "bandwidth")
        if not (self.bandwidth > 0).all() or not np.isfinite(self.latency).all():
            raise ProgramError("bandwidth is above 0 bytes/s, and latency a finite number of s")
        for part in (part for role in program.roles for part in role.parts):
            if part.name not in seconds and part.kind not in seconds:
                raise ProgramError(
                    f"no seconds for {part.name}; give seconds={{{part.kind!r}: ...}}, or "
                    f"{part.name!r}; there are {', '.join(map(repr, seconds)) or 'none'}"
                )
        self.there: dict[Lacks, float] = {}
        """When what can be lacked is there."""
        self.news: list[Lacks] = []
        self.spans: list[Span] = []

    def put(self, what: Lacks, moment: float) -> None:
        self.there[what] = moment
        self.news.append(what)

    def took(self, part: ProgramPart, frame: int, of: Mapping[str, Seconds]) -> float:
        """Seconds of a part's kernel, for one frame."""
        given = of[part.name] if part.name in of else of[part.kind]
        value = float(given[frame] if isinstance(given, Sequence | np.ndarray) else given)
        if not 0 <= value < np.inf:
            raise ProgramError(f"{part.name} takes a finite time of 0 s or more, got {value:g}")
        return value

    def stream(self, rank: int, name: str) -> Iterator[Lacks]:
        """Go through a stream of a rank; what it lacks is yielded until it is there."""
        line, role, free = self.program.lines[rank], self.program.role(rank), 0.0
        of_part = [
            tuple(each for each in part.instructions if each.stream == name) for part in role.parts
        ]
        turns = list(
            zip(line.part.tolist(), line.frame.tolist(), line.paired.tolist(), strict=True)
        )
        block: list[tuple[ProgramPart, int, tuple[Any, ...]]] = []
        for number, frame, paired in turns:
            block.append((role.parts[number], frame, of_part[number]))
            if paired:
                continue
            for kind in (Recv, Do, Send):  # of a pair, the kernels run at once
                mine: list[tuple[ProgramPart, int, Any]]
                mine = [(p, f, o) for p, f, each in block for o in each if isinstance(o, kind)]
                for what in [need for _, f, o in mine for need in self.needs(rank, f, o)]:
                    if what not in self.there:
                        yield what
                    free = max(free, self.there[what])
                if kind is Do and mine:
                    free = self.kernels(rank, mine, free)
                elif kind is not Do:
                    for part, f, o in mine:
                        free = self.message(rank, part, f, o, free)
            block = []

    def needs(self, rank: int, frame: int, each: Any) -> list[Lacks]:
        if isinstance(each, Recv):
            return [(each.peer, rank, each.buffer, frame)]
        return [(rank, name, frame) for name in each.reads]

    def message(self, rank: int, part: ProgramPart, frame: int, each: Any, start: float) -> float:
        """When a stream is free again."""
        source, target = (rank, each.peer) if isinstance(each, Send) else (each.peer, rank)
        nbytes = self.program.role(rank).nbytes[each.buffer]
        carried, way = nbytes / self.bandwidth[source, target], self.latency[source, target]
        blocking = each.stream == COMPUTE_STREAM
        free = float(start + carried + (way if blocking else 0.0))
        if isinstance(each, Send):
            there = free if blocking else float(free + way)
            self.put((source, target, each.buffer, frame), there)
            self.spans.append((target, TRANSFER, part.stage, frame, start, there))
            return free
        self.put((rank, each.buffer, frame), free if blocking else start)
        return free if blocking else start

    def kernels(self, rank: int, mine: list[tuple[ProgramPart, int, Do]], start: float) -> float:
        """When the kernel, or both of a pair, have run."""
        first, frame, _ = mine[0]
        if len(mine) > 1 and (first.name in self.overlapped or first.kind in self.overlapped):
            end = start + self.took(first, frame, self.overlapped)
        else:
            end = start + sum(self.took(p, f, self.seconds) for p, f, _ in mine)
        for part, f, each in mine:
            self.spans.append((rank, part.kind, part.stage, f, start, end))
            for name in each.writes:
                self.put((rank, name, f), end)
        return end


def _table(values: Any, n: int, name: str) -> np.ndarray:
    try:
        table = np.asarray(values, float)
    except (TypeError, ValueError):
        raise ProgramError(f"{name} must be numbers, got {short(values)}") from None
    if table.shape not in ((), (n, n)) or not (table >= 0).all():
        raise ProgramError(
            f"{name} is one number of 0 or more, or a table of {n} x {n} (from rank, to rank); got "
            f"{short(values)}"
        )
    return np.broadcast_to(table, (n, n))
