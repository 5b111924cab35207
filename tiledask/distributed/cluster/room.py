"""How much more a worker may hold: what its process holds now, and who stops it at how much.

    held now, but for the operands of what is planned  |  room: operands, panels, result
    ---------------------------------------------------+---------------------------------
    0                                                                                  at

At ``at`` Dask moves blocks to disk, pauses or kills the worker (``distributed.worker.memory.*``, as
the worker has it), or the kernel refuses memory (memory_cap). A product that passed it would lose
its worker, or hold twice what is read back from the disk. Several rules hold at once: the room is
the least that any leaves on any worker.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
from distributed.system import MEMORY_LIMIT

from tiledask.distributed.cluster import device_memory, host_memory
from tiledask.distributed.cluster.cluster import (
    BlockKeys,
    Cluster,
    slot_of,
    slot_on,
)
from tiledask.distributed.deadlines import seconds_of
from tiledask.errors import DoesNotFitError
from tiledask.plan.units import format_bytes, format_up, parse_bytes
from tiledask.tile.backend import probe

__all__ = ["MARGIN", "SLACK", "MemoryRule", "Room", "as_room", "asks_room", "check_room", "room_of"]

MARGIN = 16 * 2**20
"""Bytes by which one worker that does nothing may weigh more than another."""
SLACK = 1.05
"""What a process takes over the arrays of a rank: what they are sent in, and the allocator."""


@dataclass(frozen=True)
class MemoryRule:
    """One rule that a worker's memory is under."""

    at: int
    """Bytes that must not be passed."""
    held: int
    """Bytes that count towards it now, but for the operands."""
    rule: str
    """What happens there, in words."""
    option: str = ""
    """What moves it: an option of start_cluster; empty for the call's own memory_limit."""
    share: float = 1.0
    """``at`` over that option's bytes."""
    slot: int = -1
    """Whose worker's; -1 for the call's own."""

    @property
    def room(self) -> int:
        """Bytes that may come on top."""
        return max(0, self.at - self.held)

    def __str__(self) -> str:
        beside = f", and {format_bytes(self.held)} are held already" if self.held else ""
        where = f"slot {self.slot}: " if self.slot >= 0 else ""
        return f"{where}{self.rule}{beside}"


@dataclass(frozen=True)
class Room:
    """What a rank may hold, the blocks of its operands included."""

    bounds: tuple[MemoryRule, ...]
    """Every rule of every worker that takes part."""
    started_here: bool = True
    """Whether the workers are those of td.start_cluster."""
    others: tuple[MemoryRule, ...] = ()
    """Every rule of every worker that takes no part."""

    @property
    def binding(self) -> MemoryRule:
        """The rule that leaves least."""
        return min(self.bounds, key=lambda bound: bound.room)

    @property
    def bytes(self) -> int:
        return self.binding.room

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes)} ({self.binding})"

    def at_hand(self) -> int:
        """Bytes that the workers leave, whatever the call allows itself."""
        return min((b.room for b in self.bounds if b.option), default=self.bytes)

    def elsewhere(self) -> int:
        """Bytes that other workers, started with the same options, will leave too."""
        return self.bytes if not self.binding.option else max(0, self.bytes - MARGIN)

    def slots(self, need: int) -> tuple[int, ...]:
        """As many slots as take part, all of which leave ``need`` bytes; none if there are fewer.

        >>> small, large = (MemoryRule(at, 0, "", slot=slot) for at, slot in ((8, 0), (80, 2)))
        >>> room = Room((small,), others=(large,))
        >>> room.slots(50), room.slots(100)
        ((2,), ())
        """
        rules = (*self.bounds, *self.others)
        short = {rule.slot for rule in rules if rule.room < need}
        able = sorted({rule.slot for rule in rules} - short - {-1})
        ranks = len({rule.slot for rule in self.bounds} - {-1})
        return tuple(able[:ranks]) if len(able) >= ranks and -1 not in short else ()

    def raised(self, need: int) -> str:
        """The options under which a rank may hold ``need`` bytes; empty if this machine has not
        as much.

        >>> worker = MemoryRule(70_000_000, 50_000_000, "", "memory_limit", 0.7)
        >>> Room((MemoryRule(8, 0, ""), worker)).raised(30_000_000)
        "memory_limit='30 MB' on workers of td.start_cluster(memory_limit='138.3 MB')"
        """
        call = ""
        cluster: dict[str, int] = {}
        for bound in self.bounds:
            if bound.room >= need:
                continue
            if not bound.option:
                call = f"memory_limit={format_up(need)!r}"
                continue
            least = int((need + bound.held + MARGIN) / bound.share) + 1
            cluster[bound.option] = max(least, cluster.get(bound.option, 0))
        if max(cluster.values(), default=0) > MEMORY_LIMIT or "GPU" in cluster:
            return ""
        given = ", ".join(f"{name}={format_up(n)!r}" for name, n in sorted(cluster.items()))
        workers = f"workers of td.start_cluster({given})" if given else ""
        if workers and not self.started_here:
            workers = f"workers of 'dask worker --memory-limit {max(cluster.values())}'"
        return " on ".join(filter(None, (call, workers)))


def room_of(
    cluster: Cluster,
    arrays: Sequence[Sequence[Any]] = (),
    limit: int | str | None = None,
    alone: bool = False,
    timeout: float | None = None,
    slots: Sequence[int] | None = None,
) -> Room:
    """The Room of ``slots``; default: of those that hold ``arrays`` (futures of each), or of all.

    What their blocks take is part of the room. ``limit``: bytes that the call allows itself.
    ``alone``: for one block that comes to lie there, while Dask may move others to disk.
    Measured in the workers' own processes, outside of the task graph; DeadlineError if one does
    not answer within ``timeout`` seconds (at most and by default a minute).
    """
    function, args = asks_room(cluster, arrays, alone)
    found = cluster.run(function, *args, timeout=min(60.0, seconds_of(timeout)))
    if slots is None:
        slots = sorted({slot_of(block) for blocks in arrays for block in blocks})
    return as_room(found, limit, cluster.started_here, slots or range(cluster.slots))


def check_room(
    cluster: Cluster,
    slots: Sequence[int],
    needs: Sequence[int],
    what: str,
    timeout: float,
    other: Callable[[int], str] = lambda least: "",
) -> None:
    """None if the slot of every rank leaves the bytes that it ``needs`` at its fullest; else
    DoesNotFitError: what ``what`` says, and what would fit.

    ``other``: what would, in words, if no rank may need more than this; empty if nothing.
    """
    function, args = asks_room(cluster, alone=True)
    found = cluster.run(function, *args, timeout=timeout)
    rooms = [as_room(found, None, cluster.started_here, [slot]) for slot in slots]
    short = [need - room.bytes for need, room in zip(needs, rooms, strict=True)]
    if max(short) <= 0:
        return
    rank = short.index(max(short))
    least = min(room.bytes for room in rooms)
    ways = filter(None, (other(least), rooms[rank].raised(needs[rank])))
    raise DoesNotFitError(
        f"{what} takes {format_bytes(needs[rank])} on rank {rank}, and slot {slots[rank]} leaves "
        f"{rooms[rank]}. What would fit: {'; or '.join(ways) or 'more ranks, or less on each'}"
    )


def asks_room(
    cluster: Cluster, arrays: Sequence[Sequence[Any]] = (), alone: bool = False
) -> tuple[Callable[..., list[MemoryRule]], tuple[Any, ...]]:
    """What `room_of` has every worker do, for who asks them anyway: a function and arguments."""
    keys, limits = [BlockKeys.of(blocks) for blocks in arrays], set(cluster.memory_limits)
    # to every worker those of all only where they differ
    own = limits.pop() if len(limits) == 1 else cluster.memory_limits
    return _here, (keys, cluster.backend, own, alone)


def as_room(
    found: Sequence[Sequence[MemoryRule]],
    limit: int | str | None = None,
    started_here: bool = True,
    slots: Sequence[int] | None = None,
) -> Room:
    """The Room that the workers' rules, by slot, leave in ``slots`` (default: in all), and the
    bytes that the call allows itself."""
    slots = range(len(found)) if slots is None else slots
    bounds = [bound for slot in slots for bound in found[slot]]
    others = [bound for slot in set(range(len(found))) - {*slots} for bound in found[slot]]
    if limit is not None:
        given = parse_bytes(limit)
        bounds.insert(0, MemoryRule(given, 0, f"memory_limit={limit!r} was asked for"))
    return Room(tuple(bounds), started_here, tuple(others))


def _here(
    keys: list[BlockKeys],
    backend: str,
    limits: int | Sequence[int],
    alone: bool,
    dask_worker: Any,
) -> list[MemoryRule]:
    """The rules of this worker, by its slot's limit."""
    slot = slot_on(dask_worker)
    limit = limits[slot] if isinstance(limits, Sequence) else limits
    found = _bounds(keys, backend, limit, alone, dask_worker)
    return [replace(rule, slot=slot) for rule in found]


def _bounds(
    keys: list[BlockKeys], backend: str, limit: int, alone: bool, dask_worker: Any
) -> list[MemoryRule]:
    """The rules of this worker, its blocks of ``keys`` not counted as held."""
    slot = slot_on(dask_worker)
    mine = [each.at(slot) for each in keys]
    data = dask_worker.data
    # what is not on the disk, nor moved from the GPU to the host
    fast = getattr(data, "device", getattr(data, "fast", data))
    own = sum(getattr(fast[key], "nbytes", 0) for key in mine if key in fast)
    if backend == "cupy":
        return _device_bounds(dask_worker.memory_manager, data, limit, own, alone)
    cap = host_memory.capped()
    option = "memory_limit" if cap is None else "memory_cap"
    bounds = [MemoryRule(limit, 0, f"a worker has {format_bytes(limit)}", option)]
    if cap is not None:
        words = f"memory_cap={format_bytes(cap.limit)}"
        bounds.append(MemoryRule(cap.limit, max(0, cap.taken - own), words, "memory_cap"))
    return bounds + _dask_bounds(dask_worker.memory_manager, fast, own, alone)


def _device_bounds(manager: Any, data: Any, limit: int, own: int, alone: bool) -> list[MemoryRule]:
    """The rules of a worker's GPU: its share, what is free there, where Dask-CUDA steps in."""
    cap, used = device_memory.cap(), device_memory.held()
    words = (
        f"a worker has {format_bytes(limit)} of its GPU"
        if cap is None
        else f"memory_cap={format_bytes(cap)}"
    )
    bounds = [MemoryRule(limit, max(0, used - own), words, "GPU" if cap is None else "memory_cap")]
    if probe().devices[0].integrated:  # what the GPU holds is the host's
        return bounds + _dask_bounds(manager, data.fast, own, alone, used)
    at = int(0.95 * device_memory.reachable())  # the rest is for what lies between blocks
    words = f"{format_bytes(at)} of its GPU are a worker's or free for it now"
    bounds.append(MemoryRule(at, max(0, used - own), words, "GPU"))
    blocks = getattr(getattr(data, "device_buffer", None), "fast", None)
    if blocks is not None and not alone:
        words = (
            f"Dask-CUDA moves blocks, by their sum, to the host from {format_bytes(blocks.n)} on"
        )
        bounds.append(MemoryRule(int(blocks.n), max(0, blocks.total_weight - own), words, "GPU"))
    return bounds


def _dask_bounds(
    manager: Any, fast: Any, own: int, alone: bool, beside: int = 0
) -> list[MemoryRule]:
    """Where Dask steps in: for what the process holds, and for the blocks among it.

    ``beside``: bytes that the process holds and that are not seen to be its own.
    """
    total, process = manager.memory_limit, host_memory.held() + beside
    if not total:
        return []
    spills, managed = hasattr(fast, "total_weight"), getattr(fast, "total_weight", 0)
    if alone:
        own, spills = managed, False
    rules = [
        ("terminate", dask.config.get("distributed.worker.memory.terminate"), "kills the worker"),
        ("pause", manager.memory_pause_fraction, "pauses the worker"),
        ("spill", spills and manager.memory_spill_fraction, "moves blocks to disk"),
    ]
    found = [(share, process, name, does) for name, share, does in rules if share]
    if spills and manager.memory_target_fraction:
        does = "moves blocks, by their sum, to disk"
        found.append((manager.memory_target_fraction, managed, "target", does))
    return [
        MemoryRule(
            int(share * total),
            max(0, held - own),
            f"Dask {does} from {format_bytes(share * total)} on, {100 * share:.0f} % of the "
            f"worker's memory_limit of {format_bytes(total)} (distributed.worker.memory.{name})",
            "memory_limit",
            share,
        )
        for share, held, name, does in found
    ]
