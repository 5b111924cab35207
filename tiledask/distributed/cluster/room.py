"""How much more a worker may hold: what its process holds now, and where it is stopped.

    held now, but for the operands of what is planned  |  room: operands, panels, result
    ---------------------------------------------------+---------------------------------
    0                                                                                  at

At ``at`` Dask moves blocks to disk or pauses the worker (``distributed.worker.memory.*``), or the
kernel refuses memory (memory_cap). The room is the least that any of these leaves anywhere.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from tiledask.distributed.cluster import device_memory, host_memory
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.tasks import slot_of, slot_on
from tiledask.distributed.deadlines import seconds_of
from tiledask.errors import DoesNotFitError
from tiledask.plan.units import format_bytes, parse_bytes

__all__ = ["MARGIN", "MORE", "SLACK", "Room", "check_room", "room_of"]

MARGIN = 16 * 2**20
"""Bytes by which one worker that does nothing may weigh more than another."""
SLACK = 1.05
"""What a process takes over the arrays of a rank: what they are sent in, and the allocator."""
MORE = "workers with more memory, or more of them"


class Room(NamedTuple):
    """What a rank may hold, the blocks of its operands included."""

    bytes: int
    why: str
    """Who stops it there, in words."""
    free: int
    """Bytes that the worker leaves, however little the call allows itself."""

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes)} ({self.why})"


def room_of(
    cluster: Cluster,
    arrays: Sequence[Sequence[Any]] = (),
    limit: int | str | None = None,
    timeout: float | None = None,
    slots: Sequence[int] = (),
) -> Room:
    """The Room of ``slots``; default: of those that hold ``arrays`` (futures of each), or of all.

    What their blocks take is part of the room. ``limit``: bytes that the call allows itself.
    DeadlineError if a worker does not answer within ``timeout`` seconds (at most a minute).
    """
    found = _rooms(cluster, arrays, min(60.0, seconds_of(timeout)))
    least = min(
        found[slot] for slot in slots or {slot_of(x) for x in chain(*arrays)} or range(len(found))
    )
    if limit is None or (own := parse_bytes(limit)) > least.bytes:
        return least
    return Room(own, f"memory_limit={format_bytes(own)!r} was asked for", least.free)


def check_room(
    cluster: Cluster, slots: Sequence[int], needs: Sequence[int], what: str, timeout: float
) -> None:
    """Raise DoesNotFitError where the slot of a rank leaves less than the bytes that it ``needs``
    at its fullest for ``what``."""
    found = _rooms(cluster, (), timeout)
    lacking = [need - found[slot].bytes for slot, need in zip(slots, needs, strict=True)]
    if (most := max(lacking)) > 0:
        rank = lacking.index(most)
        raise DoesNotFitError(
            f"{what} takes {format_bytes(needs[rank])} on rank {rank}, and slot {slots[rank]} "
            f"leaves {found[slots[rank]]}. What would fit: {MORE}, or less on each"
        )


def _rooms(cluster: Cluster, arrays: Sequence[Sequence[Any]], seconds: float) -> list[Room]:
    """The Room of each slot, its blocks of ``arrays`` not counted as held."""
    keys = [{slot_of(block): block.key for block in blocks} for blocks in arrays]
    return cluster.run(_room, keys, cluster.backend, cluster.memory_limits, timeout=seconds)


# -- on a worker -----------------------------------------------------------------------------------


def _room(
    keys: list[dict[int, str]], backend: str, limits: Sequence[int], dask_worker: Any
) -> Room:
    """The Room of this worker, its blocks of ``keys`` not counted as held."""
    slot, data, manager = slot_on(dask_worker), dask_worker.data, dask_worker.memory_manager
    # what is not on the disk, nor moved from the GPU to the host
    fast = getattr(data, "device", getattr(data, "fast", data))
    mine = [each[slot] for each in keys if each.get(slot) in fast]
    own, more = sum(getattr(fast[key], "nbytes", 0) for key in mine), ""
    if backend == "cupy":  # a twentieth is for what lies between blocks
        held = device_memory.held() - own
        ends = [min(limits[slot], int(0.95 * device_memory.reachable())) - max(0, held)]
    elif capped := host_memory.capped():
        held = capped[1] - own
        ends = [capped[0] - max(0, held)]
    else:
        managed, total = getattr(fast, "total_weight", 0), manager.memory_limit
        held = host_memory.held() - own
        shares = [(manager.memory_pause_fraction, held), (manager.memory_spill_fraction, held)]
        shares.append((manager.memory_target_fraction, managed - own))
        ends = [int(share * total) - max(0, by) for share, by in shares if share and total]
        more = ", and Dask moves blocks to disk, or pauses it, before it is full"
    free, has = max(0, min([limits[slot], *ends])), format_bytes(limits[slot])
    why = f"slot {slot}: of {has} {format_bytes(max(0, held))} are held already{more}"
    return Room(free, why, free)
