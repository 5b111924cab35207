"""How much more a worker may hold: what its process holds now, and who stops it at how much.

    held now, but for the operands of what is planned  |  room: operands, panels, result
    ---------------------------------------------------+---------------------------------
    0                                                                                  at

At ``at`` Dask moves blocks to disk or pauses the worker (``distributed.worker.memory.*``), or the
kernel refuses memory (memory_cap). The room is the least that any rule leaves anywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tiledask.distributed.cluster import device_memory, host_memory
from tiledask.distributed.cluster.cluster import Cluster
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


class Room(NamedTuple):
    """What a rank may hold, the blocks of its operands included."""

    free: int
    """Bytes that the worker leaves."""
    why: str
    """Who stops it there, in words."""
    option: str
    """The option of the workers that moves that; empty for what none moves."""
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
        """What would let a rank hold ``need`` bytes; empty if no option of workers moves that.

        >>> room = Room(20_000_000, "", "memory_cap", limit=8)
        >>> room.raised(9_000_000), room.raised(30_000_000)
        ("memory_limit='9 MB'", 'workers with a higher memory_cap')
        """
        if need <= self.free:
            return f"memory_limit={format_up(need)!r}"
        return self.option and f"workers with a higher {self.option}"


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
    found = cluster.run(function, *args, timeout=timeout)
    rooms = [(found[slot], need) for slot, need in zip(slots, needs, strict=True)]
    rank, (room, need) = max(enumerate(rooms), key=lambda each: each[1][1] - each[1][0].free)
    if need > room.free:
        raise DoesNotFitError(
            f"{what} takes {format_bytes(need)} on rank {rank}, and slot {slots[rank]} leaves "
            f"{room}. What would fit: {room.raised(need) or 'more ranks, or less on each'}"
        )


def asks_room(
    cluster: Cluster, arrays: Sequence[Sequence[Any]] = (), alone: bool = False
) -> tuple[Callable[..., Room], tuple[Any, ...]]:
    """What `room_of` has every worker do, for who asks them anyway: a function and arguments."""
    keys = [keys_of(blocks) for blocks in arrays]
    return _room, (keys, cluster.backend, cluster.memory_limits, alone)


def as_room(found: Sequence[Room], limit: int | str | None, slots: Sequence[int]) -> Room:
    """The least Room that was found in ``slots`` (of none: in all), with the bytes that the call
    allows itself."""
    least = min((found[s] for s in slots or range(len(found))), key=lambda room: room.free)
    return least._replace(limit=None if limit is None else parse_bytes(limit))


# -- on a worker -----------------------------------------------------------------------------------

_Rule = tuple[int, int, str, str]
"""Bytes that must not be passed, bytes held, words, the option of the workers that moves that."""


def _room(
    keys: list[dict[int, str]], backend: str, limits: Sequence[int], alone: bool, dask_worker: Any
) -> Room:
    """The Room of this worker, its blocks of ``keys`` not counted as held."""
    slot, data = slot_on(dask_worker), dask_worker.data
    # what is not on the disk, nor moved from the GPU to the host
    fast = getattr(data, "device", getattr(data, "fast", data))
    mine = [each[slot] for each in keys if each.get(slot) in fast]
    own, limit = sum(getattr(fast[key], "nbytes", 0) for key in mine), limits[slot]
    has = f"a worker has {format_bytes(limit)}"
    if backend == "cupy":
        held, cap = device_memory.held(), device_memory.cap()
        used, rules = held - own, [(limit, held - own, f"{has} of its GPU", "")]
        if probe().devices[0].integrated:  # what the GPU holds is the host's
            held += host_memory.held()
            rules += _of_dask(dask_worker, data.fast, held, own, alone)
        else:
            at = int(0.95 * device_memory.reachable())  # the rest is for what lies between blocks
            rules.append((at, used, f"{format_bytes(at)} of its GPU are free for it now", ""))
    else:
        cap, used = host_memory.capped() or (None, 0)
        used, rules = used - own, [(limit, 0, has, "memory_limit")]
        rules += _of_dask(dask_worker, fast, host_memory.held(), own, alone)
    if cap is not None:  # first: the worker's limit is the same
        rules.insert(0, (cap, used, f"memory_cap={format_bytes(cap)}", "memory_cap"))
    at, held, words, option = min(rules, key=lambda rule: rule[0] - max(0, rule[1]))
    words += f", and {format_bytes(held)} are held already" if held > 0 else ""
    return Room(max(0, at - max(0, held)), f"slot {slot}: {words}", option)


def _of_dask(worker: Any, fast: Any, process: int, own: int, alone: bool) -> Iterator[_Rule]:
    """Where Dask steps in, by what the process holds or by the sum of its blocks."""
    manager, managed = worker.memory_manager, getattr(fast, "total_weight", 0)
    total, moves = manager.memory_limit, hasattr(fast, "total_weight") and not alone
    # a block that comes to lie there may move all others to disk
    others = managed if alone else own
    for share, held, name, does in (
        (manager.memory_pause_fraction, process, "pause", "pauses"),
        (moves and manager.memory_spill_fraction, process, "spill", "moves blocks to disk of"),
        (moves and manager.memory_target_fraction, managed, "target", "moves blocks to disk of"),
    ):
        if share and total:
            words = f"Dask {does} the worker from {format_bytes(share * total)} on, "
            words += f"{100 * share:.0f} % of its memory_limit of {format_bytes(total)} "
            words += f"(distributed.worker.memory.{name})"
            yield int(share * total), held - others, words, "memory_limit"
