"""One collective of a Group under way: all ranks agree in it, and at the end is its record."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.distributed.ranks.collectives import RankRound, rank_rounds, record
from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.records import NCCL, Terms, predicted
from tiledask.distributed.transport.transport import Port, Steps, driven
from tiledask.tile.backend import name_of
from tiledask.tile.nccl import on_gpu

__all__ = ["Exchange", "exchanging"]


@dataclass
class Exchange:
    """A collective among ``members`` (ranks of the run), in which this rank is number ``me``."""

    call: CollectiveCall
    algorithm: str
    members: tuple[int, ...]
    me: int
    port: Port
    dtype: np.dtype | None
    payload: int
    """Bytes."""
    devices: Any = None
    """The way from GPU to GPU, if the arrays take it (a Devices)."""
    terms: Terms = ()
    """For the record's prediction; known at the latest when the collective is done."""

    def rounds(self, root: int = 0) -> tuple[RankRound, ...]:
        return rank_rounds(self.call.kind, self.algorithm, len(self.members), self.me, root)

    def learn(self, about: Any) -> None:
        """Keep what another rank's call is ``about``, to be passed on."""
        if self.call.about is None and about is not None:
            self.call = self.call._replace(about=about)

    def swap(
        self,
        sends: Sequence[tuple[int, Sequence[Any]]],
        sources: Sequence[int],
        lend: bool = False,
    ) -> list[Sequence[Any]]:
        """A round: send (number, arrays) each; the arrays that come from each of ``sources``."""
        if self.devices is not None:
            came: list[Sequence[Any]] = self.devices.swap(self, sends, sources)
            return came
        for to, parts in sends:
            self.port.put(to, parts, self.call, lend)
        messages = self.port.get(sources) if sources else []
        for message in messages:
            self.learn(message.call.about)
        return [message.parts for message in messages]

    def carry(self, steps: Steps) -> Any:
        """The result of ``steps``."""
        if self.devices is not None or self.call.kind == "broadcast":
            return driven(steps, self.swap)
        return self.port.transport.carry(self.port, steps, self.call, self.payload)


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
    about = array.shape if kind == "broadcast" and array is not None else None
    call = CollectiveCall(rank.index, kind, members, number, rank.here, agreed, about)
    dtype, payload = (None, 0) if array is None else (array.dtype, array.nbytes)
    me, port = members.index(rank.index), transport.port(members)
    exchange = Exchange(call, algorithm, members, me, port, dtype, payload)
    transport.box.check()
    begun = port.enter(call)
    if devices is not None and (kind == "broadcast" or on_gpu(array)):
        devices.open(exchange)
        exchange.devices = devices
    yield exchange
    if len(members) == 1:
        port.leave(begun)
        return
    assert exchange.terms, f"{kind} has nothing to predict its bytes from"
    # NCCL goes its own way
    moved = predicted(kind, algorithm, me, exchange.terms) if algorithm == NCCL else None
    name = "" if exchange.dtype is None else name_of(exchange.dtype)
    what = kind, algorithm, members, axes, name, exchange.payload
    record(rank, port, begun, what, call.label, exchange.terms, number > 0, moved)
