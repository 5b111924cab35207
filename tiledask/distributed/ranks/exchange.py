"""One collective of one rank under way: rounds of messages, and at the end its record."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.records import NCCL, Terms, predicted
from tiledask.distributed.ranks.reduce_ops import combined
from tiledask.distributed.transport.transport import Message, Transport
from tiledask.plan.collectives.algorithms import Move, rounds
from tiledask.plan.collectives.cost import SHAPES_AGREE
from tiledask.tile.backend import name_of
from tiledask.tile.nccl import on_gpu

__all__ = ["Exchange", "RankRound", "exchanging", "rank_rounds"]


class RankRound(NamedTuple):
    """What one rank does in one round."""

    sends: tuple[Move, ...]
    receives: tuple[Move, ...]
    """The moves that reach it, by rank of their source."""


@cache
def rank_rounds(kind: str, algorithm: str, n: int, root: int, me: int) -> tuple[RankRound, ...]:
    """The part of rank ``me`` in the rounds of a collective."""
    return tuple(
        RankRound(
            tuple(m for m in moves if m.source == me),
            tuple(sorted(m for m in moves if m.destination == me)),
        )
        for moves in rounds(kind, algorithm, n, root)
    )


@dataclass
class Exchange:
    """A collective among ``members`` (ranks of the run), in which this rank is number ``me``."""

    call: CollectiveCall
    algorithm: str
    members: tuple[int, ...]
    me: int
    transport: Transport
    dtype: np.dtype | None
    payload: int
    """Bytes."""
    devices: Any = None
    """The way from GPU to GPU, if the arrays take it (a Devices)."""
    terms: Terms = ()
    """For the record's prediction; known at the latest when the collective is done. Of a reduction
    the first is the elements of every chunk, and known before its rounds."""

    def rounds(self, root: int = 0) -> tuple[RankRound, ...]:
        return rank_rounds(self.call.kind, self.algorithm, len(self.members), root, self.me)

    def post(self, to: int, parts: Sequence[np.ndarray]) -> None:
        """Send arrays to number ``to``."""
        whole = [np.asarray(part, order="C") for part in parts]
        self.transport.post(self.members[to], self.call, whole)

    def take(self, source: int) -> Message:
        """The next message from number ``source``."""
        message = self.transport.take(self.members[source], self.call)
        self.learn(message.call.about)
        return message

    def learn(self, about: Any) -> None:
        """Keep what another rank's call is ``about``, to be passed on."""
        if self.call.about is None and about is not None:
            self.call = self.call._replace(about=about)

    def swap(
        self, sends: Sequence[tuple[int, Sequence[Any]]], sources: Sequence[int]
    ) -> list[Sequence[Any]]:
        """A round: send (number, arrays) each; the arrays that come from each of ``sources``."""
        if self.devices is not None:
            came: list[Sequence[Any]] = self.devices.swap(self, sends, sources)
            return came
        for to, parts in sends:
            self.post(to, parts)
        return [self.take(source).parts for source in sources]

    def copy(self, given: Sequence[RankRound], held: dict[int, np.ndarray]) -> None:
        """Go through rounds that copy chunks; they are put in ``held`` as they come."""
        for each in given:
            for move, parts in self._swapped(each, held):
                held.update(zip(move.chunks, parts, strict=True))

    def add(
        self, given: Sequence[RankRound], held: dict[int, np.ndarray], op: str, dtype: np.dtype
    ) -> None:
        """Go through rounds that add chunks to those in ``held``, as `combined` does."""
        for each in given:
            partials: dict[int, list[tuple[int, np.ndarray]]] = {}
            for move, parts in self._swapped(each, held):
                for chunk, part in zip(move.chunks, parts, strict=True):
                    partials.setdefault(chunk, []).append((move.source, part))
            for chunk, theirs in partials.items():
                ordered = sorted([*theirs, (self.me, held[chunk])], key=lambda each: each[0])
                spare = int(ordered[0][0] == self.me)  # what came is this rank's own
                held[chunk] = combined([part for _, part in ordered], op, dtype, spare)

    def _swapped(
        self, given: RankRound, held: dict[int, np.ndarray]
    ) -> Iterator[tuple[Move, Sequence[Any]]]:
        """The moves that reach this rank in a round, and what they bring."""
        sends, receives = given
        if self.call.kind in SHAPES_AGREE and 0 in (counts := self.terms[0]):
            # all know which chunks have no element, and none is sent for nothing
            sends, receives = (
                tuple(m for m in moves if any(counts[c] for c in m.chunks)) for moves in given
            )
        out = [(m.destination, [held[c] for c in m.chunks]) for m in sends]
        return zip(receives, self.swap(out, [m.source for m in receives]), strict=True)


@contextmanager
def exchanging(
    rank: Any,
    kind: str,
    members: tuple[int, ...],
    number: int,
    *,
    algorithm: str = "",
    axes: tuple[int, ...] = (),
    array: np.ndarray | None = None,
    **same: Any,
) -> Iterator[Exchange]:
    """An Exchange that is written down when the block ends; among one rank alone it is not."""
    transport = rank.transport
    facts: dict[str, Any] = {"algorithm": algorithm or None}
    if array is not None:
        facts |= {"dtype": name_of(array.dtype), "shape": array.shape}
    devices = transport.devices if number and len(members) > 1 else None
    if devices is not None and array is not None and kind != "broadcast":
        facts["place"] = "GPU" if on_gpu(array) else "host"
    facts |= same
    agreed = tuple((name, value) for name, value in facts.items() if value is not None)
    call = CollectiveCall(rank.index, kind, members, number, rank.here, agreed)
    if kind == "broadcast" and array is not None:
        call = call._replace(about=array.shape)
    dtype, payload = (None, 0) if array is None else (array.dtype, array.nbytes)
    me = members.index(rank.index)
    exchange = Exchange(call, algorithm, members, me, transport, dtype, payload)
    before, begin = (transport.sent, transport.received, transport.messages), transport.now()
    cpu = time.thread_time()
    transport.enter(call)
    if devices is not None and (kind == "broadcast" or on_gpu(array)):
        devices.open(exchange)
        exchange.devices = devices
    yield exchange
    transport.settle()
    transport.leave(call)
    if len(members) == 1:
        return
    assert exchange.terms, f"{kind} has nothing to predict its bytes from"
    after = transport.sent, transport.received, transport.messages
    sent, received, messages = (b - a for a, b in zip(before, after, strict=True))
    if algorithm == NCCL:  # goes its own way
        sent, received, messages = predicted(kind, algorithm, me, exchange.terms)
    rank.record(
        synchronises=number > 0,
        kind=kind,
        algorithm=algorithm,
        group=members,
        axes=axes,
        dtype="" if exchange.dtype is None else name_of(exchange.dtype),
        payload=exchange.payload,
        sent=sent,
        received=received,
        messages=messages,
        begin=begin,
        end=transport.now(),
        cpu=time.thread_time() - cpu,
        terms=exchange.terms,
    )
