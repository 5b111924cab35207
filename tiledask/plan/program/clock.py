"""The reader that times: when every instruction runs, each stream in its order.

    compute   [0F.0 ][0F.1 ]         [0B.0 ]      an instruction starts when its stream is free and
    to_1             [x1.0 ][x1.1 ]               what it reads is there; what a send has carried
    from_1                        dx1.0           is there at the other end a latency later

What waits for what is a graph (graph.py); a node starts with the last of those it waits for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tiledask.errors import ProgramError, short
from tiledask.plan.collectives.cost import replayed
from tiledask.plan.pipelines.timeline import COMPUTE, TRANSFER, Span, Timeline
from tiledask.plan.program.graph import LinePlace, Node, followers, graph
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Collective,
    Do,
    Fetch,
    Instructions,
    ProgramPart,
    Recv,
    Send,
)

__all__ = ["clock"]

Seconds = float | Sequence[float]
"""One number, or one per frame."""


def clock(
    program: Instructions,
    seconds: Mapping[str, Seconds] | Callable[[Do], float],
    *,
    latency: float | Sequence[Sequence[float]] = 0.0,
    bandwidth: float | Sequence[Sequence[float]] = float("inf"),
    overlapped: Mapping[str, Seconds] | None = None,
    collective: Callable[[Collective], float] | None = None,
    fetch: Callable[[Fetch], float] | None = None,
) -> Timeline:
    """The Timeline of ``program``: its kernels, and what is on its way to a rank beneath them.

    seconds       of a part's kernel on the stream of the work, by the part's name ("0F") or its
                  kind ("F"): one number, or one per frame; or a function of every kernel
    latency       seconds on the way of a message: a number, or a table [from rank][to rank]
    bandwidth     bytes/s of a link from one rank to another: a message takes up its stream for
                  its bytes over that
    overlapped    of two parts at once, by the first of them; default: the sum of both
    collective    the seconds of a collective among its members; default: its messages' by latency
                  and bandwidth, if these are numbers
    fetch         the seconds of a fetch; default: its bytes by latency and bandwidth

    A message on the stream of the work takes up its sender's for latency and carrying; it lies in a
    buffer then, and a receiver at most waits for it. A collective begins when all members can, and
    ends for all.
    Raises ProgramError for a program that cannot go on, and for times that are missing, negative
    or not finite.

    >>> import tiledask as td
    >>> program = td.program(td.schedule("1f1b", 4, 8))
    >>> clock(program, {"F": 1.0, "B": 2.0}).makespan
    33.0
    """
    run = _Run(program, seconds, overlapped or {}, latency, bandwidth, collective, fetch)
    nodes = graph(program)
    users, left = followers(nodes)
    starts = [0.0] * len(nodes)
    ready = [number for number, count in enumerate(left) if not count]
    done = 0
    while ready:
        number = ready.pop()
        done += 1
        node = nodes[number]
        free, there = run.node(node, starts[number])
        stream, rank = node.places[0].instruction.stream, node.places[0].rank
        for user in users[number]:
            place = nodes[user].places[0]
            # a send's stream is free before what it carries is there
            arrives = isinstance(place.instruction, Recv) and place.rank != rank
            same = place.instruction.stream == stream or len(node.places) > 1
            starts[user] = max(starts[user], there if arrives or not same else free)
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    if done < len(nodes):
        place = next(node for node, count in zip(nodes, left, strict=True) if count).places[0]
        raise ProgramError(
            f"rank {place.rank} waits for ever, on its stream {place.instruction.stream}: {place}; "
            f"program.check() says why"
        )
    return Timeline.of(program.ranks, run.spans())


class _Run:
    def __init__(
        self,
        program: Instructions,
        seconds: Mapping[str, Seconds] | Callable[[Do], float],
        overlapped: Mapping[str, Seconds],
        latency: Any,
        bandwidth: Any,
        collective: Callable[[Collective], float] | None,
        fetch: Callable[[Fetch], float] | None,
    ) -> None:
        n = program.ranks
        self.program, self.overlapped = program, overlapped
        self.by_kernel = seconds if callable(seconds) else None
        self.seconds: Mapping[str, Seconds] = {} if callable(seconds) else seconds
        self.latency = _table(latency, n, "latency")
        self.bandwidth = _table(bandwidth, n, "bandwidth")
        if not (self.bandwidth > 0).all() or not np.isfinite(self.latency).all():
            raise ProgramError("bandwidth is above 0 bytes/s, and latency a finite number of s")
        self.collective = collective or self._by_messages
        self.fetch = fetch
        self._known: dict[Any, float] = {}
        for part in (part for role in program.roles for part in role.parts):
            given = self.by_kernel or _said(part, self.seconds)
            if part.stage >= 0 and part.kind in COMPUTE and not given:
                raise ProgramError(
                    f"no seconds for {part.name}; give seconds={{{part.kind!r}: ...}}, or "
                    f"{part.name!r}; there are {', '.join(map(repr, seconds)) or 'none'}"  # type: ignore[arg-type]
                )
        self._spans: dict[tuple[int, int, str], list[Span]] = {}
        """By rank, turn and kind: what it did there, one behind the other."""

    def node(self, node: Node, start: float) -> tuple[float, float]:
        """(when its stream is free again, when what it makes is there)."""
        place, each = node.places[0], node.places[0].instruction
        if isinstance(each, Do):
            end = start + self._kernels(node.places)
            for one in node.places:
                self._span(one, one.rank, _kind_of(one), start, end)
            return end, end
        if isinstance(each, Collective):
            end = start + self._took(each)
            for one in node.places:
                self._span(one, one.rank, _kind_of(one, TRANSFER), start, end)
            return end, end
        if isinstance(each, Send | Recv):
            return self._message(place, each, start)
        if isinstance(each, Fetch):
            return self._fetch(place, each, start)
        return start, start

    def _fetch(self, place: LinePlace, each: Fetch, start: float) -> tuple[float, float]:
        """Its stream is taken up until all is there: a rank reads one after the other."""
        end = start
        if self.fetch is not None:
            end = start + self._finite(each.array, self.fetch(each))
        elif each.source is not None:
            link = each.source, place.rank
            end = float(start + self.latency[link] + each.nbytes / self.bandwidth[link])
        self._span(place, place.rank, TRANSFER, start, end)
        return end, end

    def _message(self, place: LinePlace, each: Send | Recv, start: float) -> tuple[float, float]:
        peer, rank = self.program.peer(place.rank, each), place.rank
        source, target = (rank, peer) if isinstance(each, Send) else (peer, rank)
        nbytes = self.program.role(rank).size(each.buffer)
        carried, way = nbytes / self.bandwidth[source, target], self.latency[source, target]
        blocking = each.stream == COMPUTE_STREAM
        free = float(start + carried + (way if blocking else 0.0))
        if isinstance(each, Recv):
            return start, start
        there = free if blocking else float(free + way)
        self._span(place, target, TRANSFER, start, there)
        return free, there

    def _kernels(self, places: list[LinePlace]) -> float:
        """Seconds of a kernel, or of both of a pair."""
        first = places[0].part
        if len(places) > 1 and _said(first, self.overlapped):
            return self._of_part(first, places[0].frame, self.overlapped)
        return float(sum(self._kernel(place) for place in places))

    def _kernel(self, place: LinePlace) -> float:
        if self.by_kernel is None:
            if place.part.kind not in COMPUTE or place.instruction.stream != COMPUTE_STREAM:
                return 0.0
            return self._of_part(place.part, place.frame, self.seconds)
        each = place.instruction
        assert isinstance(each, Do)
        return self._finite(each.kernel, self.by_kernel(each))

    def _of_part(self, part: ProgramPart, frame: int, of: Mapping[str, Seconds]) -> float:
        given = of[_said(part, of)]
        return self._finite(part.name, given[frame] if np.ndim(given) else given)  # type: ignore[index]

    @staticmethod
    def _finite(name: str, value: Any) -> float:
        took = float(value)
        if not 0 <= took < np.inf:
            raise ProgramError(f"{name} takes a finite time of 0 s or more, got {took:g}")
        return took

    def _took(self, each: Collective) -> float:
        key = each.kind, each.counts, each.itemsize, each.axes, each.label
        if key not in self._known:
            self._known[key] = self._finite(each.kind, self.collective(each))
        return self._known[key]

    def _by_messages(self, each: Collective) -> float:
        if any((table != table.flat[0]).any() for table in (self.latency, self.bandwidth)):
            raise ProgramError("with links that differ, say how long collectives take: collective=")
        latency, rate = (float(table.flat[0]) for table in (self.latency, self.bandwidth))
        return float(max(replayed(each.loads(), each.size, latency, rate)))

    def _span(self, place: LinePlace, rank: int, kind: str, start: float, end: float) -> None:
        """Work of a part that goes on is one span; of a product each panel, by its number."""
        here = self._spans.setdefault((rank, place.turn, kind), [])
        frame = place.frame if place.part.kind in COMPUTE else -1
        if kind == "M":
            frame = len(here)
        elif kind != TRANSFER:
            if start == end and here:
                return
            if here and here[-1][5] == start:
                start = here.pop()[4]
        here.append((rank, kind, place.part.stage, frame, start, end))

    def spans(self) -> list[Span]:
        """All that was done."""
        return [span for found in self._spans.values() for span in found]


def _kind_of(place: LinePlace, moves: str = "") -> str:
    """The kind of a part's work in a Timeline; what else is of no stage belongs to the update.
    ``moves``: of what moves numbers instead."""
    kind = place.part.kind
    return moves or (kind if kind in COMPUTE else "M" if kind in ("multiply", "sum") else "U")


def _said(part: ProgramPart, of: Mapping[str, Seconds]) -> str:
    """How a part is called there: by its name, its stage and kind, or its kind; "": not at all."""
    names = part.name, f"{part.stage}{part.kind}", part.kind
    return next((name for name in names if name in of), "")


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
