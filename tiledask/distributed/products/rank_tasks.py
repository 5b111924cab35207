"""One task for each rank of a mesh, which reads parts of the others' blocks past Dask.

What of that follows from shapes alone is pickled once for equal products: a `RankTasks`.
"""

from collections.abc import Mapping, Sequence
from pickle import dumps
from typing import Any, NamedTuple

from distributed import Future

from tiledask.distributed.arrays.recompute import Anchors
from tiledask.distributed.products.worker import RankCall, RankJob, run_rank
from tiledask.distributed.transport.blocks import Lender
from tiledask.distributed.transport.tickets import Ticket

__all__ = ["Lent", "RankTasks", "submit_ranks"]


class RankTasks(NamedTuple):
    """One task for each rank."""

    jobs: tuple[bytes, ...]
    """By rank, its `RankJob`."""
    rows: dict[str, dict[int, tuple[int, ...]]]
    """By array and rank, whose blocks it reads."""

    @classmethod
    def of(cls, jobs: Sequence[RankJob]) -> "RankTasks":
        """The tasks that do these ``jobs``."""
        rows: dict[str, dict[int, tuple[int, ...]]] = {}
        for job in jobs:
            sources: dict[str, set[int]] = {}
            for name, piece in job.reads():
                sources.setdefault(name, set()).add(piece.source)
            for name, ranks in sources.items():
                rows.setdefault(name, {})[job.rank] = tuple(sorted(ranks))
        return cls(tuple(map(dumps, jobs)), rows)


class Lent(NamedTuple):
    """An array that ranks read of."""

    anchors: Anchors
    tickets: Sequence[Ticket]
    """By rank, of its block."""


def submit_ranks(
    lender: Lender,
    slots: Sequence[int],
    stage: RankTasks,
    lent: Mapping[str, Lent],
    own: Sequence[tuple[Future[Any] | None, ...]],
    name: str,
    kernel: str = "blas",
    tile: Any = None,
    on_page: bool = False,
) -> list[Future[Any]]:
    """The block that each rank makes; ``own`` are its blocks of A, B and the partial sums."""
    args = {}
    # what keeps Dask able to make again the blocks that a rank reads
    after: list[list[Future[Any]]] = [[] for _ in slots]
    for array, rows in stage.rows.items():
        for rank, anchors in zip(rows, lent[array].anchors.of(rows), strict=True):
            after[rank] += anchors
    for rank, (slot, job) in enumerate(zip(slots, stage.jobs, strict=True)):
        reads = {
            (array, source): lent[array].tickets[source]
            for array, rows in stage.rows.items()
            for source in rows.get(rank, ())
        }
        call = RankCall(lender.name, lender.transport, reads, kernel, tile, on_page)
        args[slot] = job, dumps(call), *own[rank], *after[rank]
    return lender.cluster.submit_all(run_rank, args, name=name)
