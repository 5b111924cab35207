"""A rank function on one rank, from its first line to its last, and what all ranks bring back."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.records import Record, Records
from tiledask.distributed.transport.tickets import CancelledError
from tiledask.distributed.transport.transport import PortCounts, Transport
from tiledask.errors import ClusterLostError, CollectiveError, ConfigError, DeadlineError
from tiledask.plan.products.traffic import Traffic

__all__ = ["RankResult", "Ranks", "arguments", "collected", "ran"]


class RankResult(NamedTuple):
    """What one rank brings back."""

    result: Any
    records: list[Record]
    ports: list[PortCounts]
    """What went through each of its ports."""
    last: CollectiveCall | None
    """The last collective."""


@dataclass(frozen=True)
class Ranks:
    """What a rank function brought back."""

    results: list[Any]
    """What the function returned, by rank."""
    records: Records
    """Every collective of every rank."""
    traffic: Traffic
    """Bytes and messages from rank to rank, as they were received."""

    def __repr__(self) -> str:
        return f"Ranks({len(self.results)} results, {self.records!r}{self.traffic.crossed()})"

    def _repr_html_(self) -> str:
        return self.records._repr_html_()


def arguments(
    shape: tuple[int, ...], args: tuple[Any, ...], per_rank: Sequence[Any] | None
) -> list[tuple[Any, ...]]:
    """What the function is called with after its rank, by rank."""
    ranks = prod(shape)
    if per_rank is None:
        return [args] * ranks
    if len(per_rank) != ranks:
        raise ConfigError(
            f"per_rank has one value for each of the mesh's {ranks} ranks, got {len(per_rank)}"
        )
    return [(*args, value) for value in per_rank]


def ran(
    function: Callable[..., Any],
    shape: tuple[int, ...],
    transport: Transport,
    backend: str,
    args: tuple[Any, ...],
    names: tuple[str, ...] = (),
) -> RankResult:
    """The RankResult of ``function`` on this rank. Whatever it raises ends the run for all."""
    rank = Rank(shape, transport, backend, names)
    try:
        result = function(rank, *args)
        transport.check()
        transport.finish()
    except BaseException as error:
        raise _told(transport, error) from None
    ports = [port.counts for port in transport.ports.values()]
    return RankResult(result, rank.records, ports, transport.doing().last)


def _told(transport: Transport, error: BaseException) -> BaseException:
    """``error``, with where this rank was; if it is this rank's own, all others know it now."""
    doing = transport.doing()
    where = f"in {doing.call}" if doing.call else "outside of its collectives"
    if error is transport.over:
        transport.heard = True
        error.add_note(f"rank {transport.rank} heard of it {where}")
        return error
    if isinstance(error, SystemExit | KeyboardInterrupt):
        error = RuntimeError(f"the function raised {type(error).__name__}: {error}")
    own = CollectiveError | DeadlineError | ClusterLostError | CancelledError
    if not isinstance(error, own):  # those say it themselves
        error.add_note(f"raised by rank {transport.rank} {where}")
        lines = traceback.format_exception(error)
        error.add_note("".join(lines[:-1]).rstrip())
    transport.fail(error)
    return error


def collected(parts: Sequence[RankResult], hosts: Sequence[str] = ()) -> Ranks:
    """The Ranks of all parts, each on its host. Raises CollectiveError if a message was sent that
    nobody took."""
    ports = [{(each.members, each.stream): each for each in part.ports} for part in parts]
    moves = Traffic.of(len(parts)).on(hosts or [""] * len(parts))
    for rank, part in enumerate(parts):
        for each in part.ports:
            me = each.members.index(rank)
            for number, to in enumerate(each.members):
                there = ports[to].get((each.members, each.stream))
                messages, taken = each.posted[number], there.taken[me] if there else 0
                if taken != messages:
                    raise CollectiveError(
                        f"of {messages} messages that rank {rank} sent to rank {to} among ranks "
                        f"{', '.join(map(str, each.members))}, rank {to} took {taken} before it "
                        f"returned: it left a collective out. The last of rank {rank} was "
                        f"{part.last}, of rank {to} {parts[to].last or 'none'}; let both make the "
                        f"same calls"
                    )
                moves.bytes[to, rank] += each.came[number]
                moves.messages[to, rank] += each.taken[number]
    records = Records(tuple(record for part in parts for record in part.records))
    return Ranks([part.result for part in parts], records, moves)
