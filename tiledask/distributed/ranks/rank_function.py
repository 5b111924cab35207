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
from tiledask.distributed.transport.transport import Transport
from tiledask.errors import ClusterLostError, CollectiveError, ConfigError, DeadlineError
from tiledask.plan.products.traffic import Traffic

__all__ = ["RankResult", "Ranks", "arguments", "collected", "ran"]


class RankResult(NamedTuple):
    """What one rank brings back."""

    result: Any
    records: list[Record]
    ports: dict[Any, tuple[list[int], list[int], list[int]]]
    """By members and stream, what went through the port: see `Port`."""
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
    ports = {at: (port.posted, port.taken, port.came) for at, port in transport.ports.items()}
    return RankResult(result, rank.records, ports, transport.last)


def _told(transport: Transport, error: BaseException) -> BaseException:
    """``error``, with where this rank was; if it is this rank's own, all others know it now."""
    where = f"in {transport.call}" if transport.call else "outside of its collectives"
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
    moves = Traffic.of(len(parts)).on(hosts or [""] * len(parts))
    for rank, part in enumerate(parts):
        for (members, stream), (posted, taken, came) in part.ports.items():
            for number, other in enumerate(members):
                moves.bytes[other, rank] += came[number]
                moves.messages[other, rank] += taken[number]
                there = parts[other].ports.get((members, stream))
                theirs = there[1][members.index(rank)] if there else 0
                if theirs != posted[number]:
                    raise CollectiveError(
                        f"of {posted[number]} messages that rank {rank} sent to rank {other} among "
                        f"ranks {', '.join(map(str, members))}, rank {other} took {theirs} before "
                        f"it returned: it left a collective out. The last of rank {rank} was "
                        f"{part.last}, of rank {other} {parts[other].last or 'none'}; let both "
                        f"make the same calls"
                    )
    records = Records(record for part in parts for record in part.records)
    return Ranks([part.result for part in parts], records, moves)
