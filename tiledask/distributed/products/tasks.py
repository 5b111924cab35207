"""One task for each rank of a mesh, which reads parts of the others' blocks past Dask."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pickle import dumps
from typing import Any, NamedTuple

from distributed import Future

from tiledask.distributed.products.worker import RankCall, RankWork, run_rank
from tiledask.distributed.transport.blocks import Lender
from tiledask.distributed.transport.tickets import Ticket

__all__ = ["Lent", "RankTask", "ranks_of", "submit_ranks"]


class RankTask(NamedTuple):
    """What one rank does; equal products need it once."""

    work: bytes
    """Its `RankWork`."""
    sources: dict[str, list[int]]
    """By array, the ranks whose blocks it reads."""


class Lent(NamedTuple):
    """An array that ranks read of."""

    tickets: Sequence[Ticket]
    """By rank, of its block."""
    anchors: Callable[[], Sequence[Future[Any]]]
    """By rank, what keeps Dask able to make its block again (arrays/recompute.py)."""


def ranks_of(works: Iterable[RankWork]) -> tuple[RankTask, ...]:
    """The task of each rank."""
    tasks = []
    for work in works:
        sources: dict[str, set[int]] = {}
        for array, piece in work.reads():
            sources.setdefault(array, set()).add(piece.source)
        tasks.append(RankTask(dumps(work), {name: sorted(of) for name, of in sources.items()}))
    return tuple(tasks)


def submit_ranks(
    lender: Lender,
    slots: Sequence[int],
    tasks: Sequence[RankTask],
    lent: Mapping[str, Lent],
    own: Sequence[tuple[Future[Any] | None, ...]],
    name: str,
    kernel: str = "blas",
    tile: Any = None,
    on_page: bool = False,
) -> list[Future[Any]]:
    """The block that each rank makes; ``own`` are its blocks of A, B and the partial sums."""
    reading = {array for task in tasks for array in task.sources}
    anchors, args = {array: lent[array].anchors() for array in reading}, {}
    for slot, task, mine in zip(slots, tasks, own, strict=True):
        reads = [(array, source) for array, of in task.sources.items() for source in of]
        tickets = {(array, source): lent[array].tickets[source] for array, source in reads}
        after = [anchors[array][source] for array, source in reads]
        call = RankCall(lender.name, lender.transport, tickets, kernel, tile, on_page)
        args[slot] = task.work, dumps(call), *mine, *after
    return lender.cluster.submit_all(run_rank, args, name=name)
