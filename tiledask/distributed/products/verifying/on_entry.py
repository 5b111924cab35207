"""What is looked at before a product runs: the blocks are those that their arrays say."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.cluster.cluster import BlockKeys, slot_on
from tiledask.distributed.cluster.counters import Call
from tiledask.distributed.transport.tickets import Ticket
from tiledask.errors import ConfigError, PlacementError, short
from tiledask.plan.products.regions import extents_of
from tiledask.tile.backend import array_namespace, on_device

__all__ = ["asks_finite", "check_blocks", "check_finite", "check_verify"]

_ROWS = 64
"""Of a block, that are looked at together."""


def check_verify(verify: Any) -> None:
    """None if ``verify`` is one of what there is; else ConfigError."""
    if not (isinstance(verify, bool) or verify == "finite"):
        raise ConfigError(
            f'verify is True, False or "finite" (True, and NaN and infinity in the operands '
            f"refused), got {short(verify)}"
        )


def check_blocks(
    a: ShardedArray, b: ShardedArray, tickets: Sequence[Sequence[Ticket | None]]
) -> None:
    """None if every block that is lent, by rank of A and of B, is of the shape and type that its
    array says; else PlacementError."""
    for name, x, lent in zip("AB", (a, b), zip(*tickets, strict=True), strict=True):
        for rank, (region, ticket) in enumerate(zip(x.tiling.regions, lent, strict=True)):
            if ticket is None:  # it was lost, and is made again as it was
                continue
            shape = extents_of(region)
            if (ticket.shape, ticket.dtype) == (shape, x.dtype.name):
                continue
            raise PlacementError(
                f"the block of {name} on rank {rank}, slot {x.mesh.at[rank]}, is {ticket.shape} "
                f"{ticket.dtype}, and by its placement {shape} {x.dtype.name}; blocks are not "
                f"exchanged: make the array by td.distribute or td.from_function"
            )


def asks_finite(arrays: Sequence[Sequence[Any]]) -> Call:
    """What has every worker look whether its blocks of ``arrays`` are finite."""
    return _finite, ([BlockKeys.of(blocks) for blocks in arrays],)


async def _finite(keys: Sequence[BlockKeys], dask_worker: Any) -> list[int]:
    """How many elements of this worker's block of each array are NaN or infinite."""
    blocks = [dask_worker.data.get(each.at(slot_on(dask_worker))) for each in keys]

    def counts() -> list[int]:
        return [0 if block is None else _not_finite(block) for block in blocks]

    return await asyncio.get_running_loop().run_in_executor(None, counts)


def _not_finite(block: Any) -> int:
    if getattr(getattr(block, "dtype", None), "kind", "O") == "O":
        return 0  # it is refused as what it is
    xp = array_namespace(block)
    with on_device(block):
        rows = block.reshape(len(block), -1) if block.ndim else block.reshape(1, 1)
        ends = [*range(0, len(rows), _ROWS), len(rows)]
        found = (xp.isfinite(rows[start:stop]) for start, stop in pairwise(ends))
        return sum(int(x.size) - int(xp.count_nonzero(x)) for x in found)


def check_finite(a: ShardedArray, b: ShardedArray, counts: Sequence[Sequence[int]]) -> None:
    """None if none of the ``counts``, by rank of A and of B, found any; else PlacementError."""
    for rank, found in enumerate(counts):
        for name, x, count in zip("AB", (a, b), found, strict=True):
            if count:
                raise PlacementError(
                    f"the block of {name} on rank {rank}, slot {x.mesh.at[rank]}, has {count} "
                    f"elements that are NaN or infinite; find out where they come from, or "
                    f"multiply without verify='finite'"
                )
