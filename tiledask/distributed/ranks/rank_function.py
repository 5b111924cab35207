"""A rank function on one rank, from its first line to its last, and what all ranks bring back."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.records import Record, Records, StepRecord
from tiledask.distributed.transport.mailbox import CancelledError
from tiledask.distributed.transport.transport import Transport
from tiledask.errors import ClusterLostError, CollectiveError, ConfigError, DeadlineError
from tiledask.plan.products.traffic import Traffic

__all__ = ["RankResult", "Ranks", "arguments", "collected", "ran"]


class RankResult(NamedTuple):
    """What one rank brings back."""

    result: Any
    records: list[Record]
    came: dict[int, int]
    """Source -> bytes that came from it."""
    messages: dict[int, int]
    """Source -> messages that came from it."""
    posted: dict[tuple[tuple[int, ...], int], int]
    """(group, destination) -> messages and signals."""
    taken: dict[tuple[tuple[int, ...], int], int]
    """(group, source) -> messages and signals."""
    last: CollectiveCall | None
    """The last collective."""
    steps: list[StepRecord]


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
        return f"Ranks({len(self.results)} results, {self.records!r})"

    def _repr_html_(self) -> str:
        return self.records._repr_html_()


def arguments(
    shape: tuple[int, ...], args: tuple[Any, ...], per_rank: Sequence[Any] | None
) -> list[tuple[Any, ...]]:
    """What the program is called with after its rank, by rank."""
    ranks = prod(shape)
    if per_rank is None:
        return [args] * ranks
    if len(per_rank) != ranks:
        raise ConfigError(
            f"per_rank has one value for each of the mesh's {ranks} ranks, got {len(per_rank)}"
        )
    return [(*args, value) for value in per_rank]


def ran(
    program: Callable[..., Any],
    shape: tuple[int, ...],
    transport: Transport,
    backend: str,
    args: tuple[Any, ...],
) -> RankResult:
    """The RankResult of ``program`` on this rank. Whatever it raises ends the run for all."""
    rank = Rank(shape, transport, backend)
    try:
        result = program(rank, *args)
        transport.box.check()
        transport.finish()
    except BaseException as error:
        raise _told(transport, error) from None
    return RankResult(
        result,
        rank.records,
        dict(transport.came),
        dict(transport.messages_from),
        dict(transport.posted),
        dict(transport.taken),
        transport.box.doing.last,
        rank.steps,
    )


def _told(transport: Transport, error: BaseException) -> BaseException:
    """``error``, with where this rank was; if it is this rank's own, all others know it now."""
    doing = transport.box.doing
    where = f"in {doing.call}" if doing.call else "outside of its collectives"
    if error is transport.box.over:
        transport.heard = True
        error.add_note(f"rank {transport.rank} heard of it {where}")
        return error
    if isinstance(error, SystemExit | KeyboardInterrupt):
        error = RuntimeError(f"the program raised {type(error).__name__}: {error}")
    own = CollectiveError | DeadlineError | ClusterLostError | CancelledError
    if not isinstance(error, own):  # those say it themselves
        error.add_note(f"raised by rank {transport.rank} {where}")
        lines = traceback.format_exception(error)
        error.add_note("".join(lines[:-1]).rstrip())
    transport.fail(error)
    return error


def collected(parts: Sequence[RankResult]) -> Ranks:
    """The Ranks of all parts. Raises CollectiveError if a message was sent that nobody took."""
    for rank, part in enumerate(parts):
        for (group, to), messages in part.posted.items():
            taken = parts[to].taken.get((group, rank), 0)
            if taken != messages:
                raise CollectiveError(
                    f"of {messages} messages that rank {rank} sent to rank {to} among ranks "
                    f"{', '.join(map(str, group))}, rank {to} took {taken} before it returned: it "
                    f"left a collective out. The last of rank {rank} was {part.last}, of rank "
                    f"{to} {parts[to].last or 'none'}; let both make the same calls"
                )
    records = Records(
        tuple(record for part in parts for record in part.records),
        tuple(step for part in parts for step in part.steps),
    )
    moves = Traffic.of(len(parts))
    for rank, part in enumerate(parts):
        for source, nbytes in part.came.items():
            moves.bytes[source, rank] += nbytes
        for source, messages in part.messages.items():
            moves.messages[source, rank] += messages
    return Ranks([part.result for part in parts], records, moves)
