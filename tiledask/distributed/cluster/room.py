"""How much more a worker may hold: what its process holds now, and who stops it at how much.

    held now, but for the operands of what is planned  |  room: operands, panels, result
    ---------------------------------------------------+---------------------------------
    0                                                                                  at

At ``at`` Dask moves blocks to disk, pauses or kills the worker (``distributed.worker.memory.*``),
or the kernel refuses memory (memory_cap). The room is the least that any rule leaves anywhere.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dask
from distributed.system import MEMORY_LIMIT

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
    """The option of start_cluster that moves that; "GPU" for what none moves."""
    held: int = 0
    """The most bytes that count towards a rule of this option already."""
    share: float = 1.0
    """The least share of the option's bytes at which such a rule is."""
    limit: int | None = None
    """Bytes that the call allows itself."""
    started_here: bool = True
    """Whether the workers are those of td.start_cluster."""

    @property
    def bytes(self) -> int:
        """The least of both."""
        return self.free if self.limit is None else min(self.free, self.limit)

    @property
    def own(self) -> bool:
        """Whether that is the call's limit."""
        return self.limit is not None and self.limit <= self.free

    def __str__(self) -> str:
        why = f"memory_limit={format_bytes(self.bytes)!r} was asked for" if self.own else self.why
        return f"{format_bytes(self.bytes)} ({why})"

    def elsewhere(self) -> int:
        """Bytes that other workers, started with the same options, will leave too."""
        return self.bytes if self.own else max(0, self.bytes - MARGIN)

    def raised(self, need: int) -> str:
        """The options under which a rank may hold ``need`` bytes; empty if this machine has not
        as much.

        >>> Room(20_000_000, "", "memory_limit", 50_000_000, 0.7, limit=8).raised(30_000_000)
        "memory_limit='30 MB' on workers of td.start_cluster(memory_limit='138.3 MB')"
        """
        short = self.limit is not None and self.limit < need
        ways = [f"memory_limit={format_up(need)!r}"] * short
        if need > self.free:
            wanted = int((need + max(0, self.held) + MARGIN) / self.share) + 1
            if wanted > MEMORY_LIMIT or self.option == "GPU":
                return ""
            how = f"td.start_cluster({self.option}={format_up(wanted)!r})"
            how = how if self.started_here else f"'dask worker --memory-limit {wanted}'"
            ways.append(f"workers of {how}")
        return " on ".join(ways)


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
    DeadlineError if a worker does not answer within ``timeout`` seconds (at most a minute).
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
) -> None:
    """Raise DoesNotFitError where the slot of a rank leaves less than the bytes that it ``needs``
    at its fullest for ``what``."""
    function, args = asks_room(cluster, alone=True)
    found = cluster.run(function, *args, timeout=timeout)
    rooms = [as_room(found, None, cluster.started_here, [slot]) for slot in slots]
    rank = max(range(len(rooms)), key=lambda rank: needs[rank] - rooms[rank].bytes)
    room, need = rooms[rank], needs[rank]
    if need <= room.bytes:
        return
    raise DoesNotFitError(
        f"{what} takes {format_bytes(need)} on rank {rank}, and slot {slots[rank]} leaves {room}. "
        f"What would fit: {room.raised(need) or 'more ranks, or less on each'}"
    )


def asks_room(
    cluster: Cluster, arrays: Sequence[Sequence[Any]] = (), alone: bool = False
) -> tuple[Callable[..., Room], tuple[Any, ...]]:
    """What `room_of` has every worker do, for who asks them anyway: a function and arguments."""
    keys = [keys_of(blocks) for blocks in arrays]
    return _room, (keys, cluster.backend, cluster.memory_limits, alone)


def as_room(
    found: Sequence[Room],
    limit: int | str | None = None,
    started_here: bool = True,
    slots: Sequence[int] | None = None,
) -> Room:
    """The least Room that was found in ``slots`` (default: in all), with the bytes that the call
    allows itself."""
    least = min((found[s] for s in slots or range(len(found))), key=lambda room: room.free)
    own = None if limit is None else parse_bytes(limit)
    return least._replace(limit=own, started_here=started_here)


# -- on a worker -----------------------------------------------------------------------------------


def _room(
    keys: list[dict[int, str]], backend: str, limits: Sequence[int], alone: bool, dask_worker: Any
) -> Room:
    """The Room of this worker, its blocks of ``keys`` not counted as held."""
    slot, data, manager = slot_on(dask_worker), dask_worker.data, dask_worker.memory_manager
    # what is not on the disk, nor moved from the GPU to the host
    fast = getattr(data, "device", getattr(data, "fast", data))
    mine = [each[slot] for each in keys if each.get(slot) in fast]
    own, limit = sum(getattr(fast[key], "nbytes", 0) for key in mine), limits[slot]
    process, rules = 0, list[tuple[int, int, str, str, float]]()
    # bytes that must not be passed, bytes held, words, option, share of its bytes
    if backend == "cupy":
        used, cap = device_memory.held() - own, device_memory.cap()
        if cap is not None:
            rules.append((cap, used, f"memory_cap={format_bytes(cap)}", "memory_cap", 1.0))
        rules.append((limit, used, f"a worker has {format_bytes(limit)} of its GPU", "GPU", 1.0))
        if probe().devices[0].integrated:  # what the GPU holds is the host's
            fast, process = data.fast, host_memory.held() + device_memory.held()
        else:
            at = int(0.95 * device_memory.reachable())  # the rest is for what lies between blocks
            words = f"{format_bytes(at)} of its GPU are its own or free for it now"
            rules.append((at, used, words, "GPU", 1.0))
    else:
        process, capped = host_memory.held(), host_memory.capped()
        if capped is not None:
            most, taken = capped
            words = f"memory_cap={format_bytes(most)}"
            rules.append((most, taken - own, words, "memory_cap", 1.0))
        rules.append((limit, 0, f"a worker has {format_bytes(limit)}", "memory_limit", 1.0))
    if process and (total := manager.memory_limit):  # where Dask steps in
        managed, blocks = getattr(fast, "total_weight", 0), hasattr(fast, "total_weight")
        spill, target = manager.memory_spill_fraction, manager.memory_target_fraction
        kill = dask.config.get("distributed.worker.memory.terminate")
        own, blocks = (managed, False) if alone else (own, blocks)
        for share, held, name, does in (
            (kill, process, "terminate", "kills the worker"),
            (manager.memory_pause_fraction, process, "pause", "pauses the worker"),
            (blocks and spill, process, "spill", "moves blocks to disk"),
            (blocks and target, managed, "target", "moves blocks, by their sum, to disk"),
        ):
            if share:
                words = f"Dask {does} from "
                words += f"{format_bytes(share * total)} on, {100 * share:.0f} % of the worker's "
                words += f"memory_limit of {format_bytes(total)} (distributed.worker.memory.{name})"
                rules.append((int(share * total), held - own, words, "memory_limit", share))
    at, held, words, option, _ = min(rules, key=lambda rule: rule[0] - max(0, rule[1]))
    words = f"slot {slot}: {words}"
    words += f", and {format_bytes(held)} are held already" if held > 0 else ""
    same = [rule for rule in rules if rule[3] == option]
    most, least = max(rule[1] for rule in same), min(rule[4] for rule in same)
    return Room(max(0, at - max(0, held)), words, option, most, least)
