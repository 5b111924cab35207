"""How much more a worker may hold: what its process holds now, and who stops it at how much.

    held now, but for the operands of what is planned  |  room: operands, panels, result
    ---------------------------------------------------+---------------------------------
    0                                                                                  at

At ``at`` Dask moves blocks to disk or pauses the worker (``distributed.worker.memory.*``), or the
kernel refuses memory (memory_cap). The room is the least that any rule leaves anywhere.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tiledask.distributed.cluster import device_memory, host_memory
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import Call
from tiledask.distributed.cluster.tasks import keys_of, slot_of, slot_on
from tiledask.distributed.deadlines import seconds_of
from tiledask.errors import DoesNotFitError
from tiledask.plan.units import format_bytes, format_up, parse_bytes
from tiledask.tile.backend import probe

__all__ = ["MARGIN", "SLACK", "Room", "as_room", "asks_room", "check_room", "room_of"]

MARGIN = 16 * 2**20
"""Bytes by which one worker that does nothing may weigh more than another."""
SLACK = 1.05
"""What a process takes over the arrays of a rank: what they are sent in, and the allocator."""
MORE = "workers with more memory, or more of them"


class Room(NamedTuple):
    """What a rank may hold, the blocks of its operands included."""

    free: int
    """Bytes that the worker leaves."""
    why: str
    """Who stops it there, in words."""
    limit: int | None = None
    """Bytes that the call allows itself."""

    @property
    def bytes(self) -> int:
        """The least of both."""
        return self.free if self.limit is None else min(self.free, self.limit)

    def __str__(self) -> str:
        own = f"memory_limit={format_bytes(self.bytes)!r} was asked for"
        return f"{format_bytes(self.bytes)} ({own if self.bytes == self.limit else self.why})"

    def raised(self, need: int) -> str:
        """What would let a rank hold ``need`` bytes.

        >>> room = Room(20_000_000, "", limit=8)
        >>> room.raised(9_000_000), room.raised(30_000_000)
        ("memory_limit='9 MB'", 'workers with more memory, or more of them')
        """
        fits = need <= self.free
        return f"memory_limit={format_up(need)!r}" if fits else MORE


def room_of(
    cluster: Cluster,
    arrays: Sequence[Sequence[Any]] = (),
    limit: int | str | None = None,
    alone: bool = False,
    timeout: float | None = None,
    slots: Sequence[int] = (),
) -> Room:
    """The Room of ``slots``; default: of those that hold ``arrays`` (futures of each), or of all.

    What their blocks take is part of the room. ``limit``: bytes that the call allows itself.
    ``alone``: for one block that comes to lie there, while Dask may move others to disk.
    DeadlineError if a worker does not answer within ``timeout`` seconds (at most a minute).
    """
    function, args = asks_room(cluster, arrays, alone)
    found = cluster.run(function, *args, timeout=min(60.0, seconds_of(timeout)))
    return as_room(found, limit, slots or sorted({slot_of(x) for blocks in arrays for x in blocks}))


def check_room(
    cluster: Cluster, slots: Sequence[int], needs: Sequence[int], what: str, timeout: float
) -> None:
    """Raise DoesNotFitError where the slot of a rank leaves less than the bytes that it ``needs``
    at its fullest for ``what``."""
    function, args = asks_room(cluster, alone=True)
    found: list[Room] = cluster.run(function, *args, timeout=timeout)
    lacking = [need - found[slot].free for slot, need in zip(slots, needs, strict=True)]
    if (most := max(lacking)) > 0:
        rank = lacking.index(most)
        raise DoesNotFitError(
            f"{what} takes {format_bytes(needs[rank])} on rank {rank}, and slot {slots[rank]} "
            f"leaves {found[slots[rank]]}. What would fit: {MORE}, or less on each"
        )


def asks_room(cluster: Cluster, arrays: Sequence[Sequence[Any]] = (), alone: bool = False) -> Call:
    """What `room_of` has every worker do, for who asks them anyway."""
    keys = [keys_of(blocks) for blocks in arrays]
    return _room, (keys, cluster.backend, cluster.memory_limits, alone)


def as_room(found: Sequence[Room], limit: int | str | None, slots: Sequence[int]) -> Room:
    """The least Room that was found in ``slots`` (of none: in all), with the bytes that the call
    allows itself."""
    least = min((found[s] for s in slots or range(len(found))), key=lambda room: room.free)
    return least._replace(limit=None if limit is None else parse_bytes(limit))


# -- on a worker -----------------------------------------------------------------------------------


def _room(
    keys: list[dict[int, str]], backend: str, limits: Sequence[int], alone: bool, dask_worker: Any
) -> Room:
    """The Room of this worker, its blocks of ``keys`` not counted as held."""
    slot, data = slot_on(dask_worker), dask_worker.data
    # what is not on the disk, nor moved from the GPU to the host
    fast = getattr(data, "device", getattr(data, "fast", data))
    mine = [each[slot] for each in keys if each.get(slot) in fast]
    own, limit = sum(getattr(fast[key], "nbytes", 0) for key in mine), limits[slot]
    # (bytes that must not be passed, bytes held, words)
    rules = list[tuple[int, int, str]]()
    has, process = f"a worker has {format_bytes(limit)}", 0
    if backend == "numpy":
        cap, used = host_memory.capped() or (None, own)
        rules.append((limit, 0, has))
        process = host_memory.held()
    else:
        cap, used = device_memory.cap(), device_memory.held()
        rules.append((limit, used - own, f"{has} of its GPU"))
        if probe().devices[0].integrated:  # what the GPU holds is the host's
            fast, process = data.fast, used + host_memory.held()
        else:  # a twentieth is for what lies between blocks
            at = int(0.95 * device_memory.reachable())
            rules.append((at, used - own, f"{format_bytes(at)} of its GPU are free for it now"))
    if cap is not None:
        rules.insert(0, (cap, used - own, f"memory_cap={format_bytes(cap)}"))
    manager, managed = dask_worker.memory_manager, getattr(fast, "total_weight", None)
    moves = "moves blocks to disk of"
    ends = [(process, manager.memory_pause_fraction, "pauses")]
    if managed is not None and not alone:
        ends += ((process, manager.memory_spill_fraction, moves),)
        ends += ((managed, manager.memory_target_fraction, moves),)
    for held, share, does in ends if process else ():
        if share and (total := manager.memory_limit):
            words = f"Dask {does} the worker from {format_bytes(share * total)} on, "
            words += f"{100 * share:.0f} % of its memory_limit of {format_bytes(total)}"
            # a block that comes to lie there may move all others to disk
            rules.append((int(share * total), held - ((managed or 0) if alone else own), words))
    at, held, words = min(rules, key=lambda rule: rule[0] - max(0, rule[1]))
    words += f", and {format_bytes(held)} are held already" if held > 0 else ""
    return Room(max(0, at - max(0, held)), f"slot {slot}: {words}")
