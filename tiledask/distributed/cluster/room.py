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

__all__ = ["MARGIN", "SLACK", "MemoryRule", "Room", "as_room", "asks_room", "check_room", "room_of"]

MARGIN = 16 * 2**20
"""Bytes by which one worker that does nothing may weigh more than another."""
SLACK = 1.05
"""What a process takes over the arrays of a rank: what they are sent in, and the allocator."""


class MemoryRule(NamedTuple):
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
        return max(0, self.at - max(0, self.held))

    def __str__(self) -> str:
        held = f", and {format_bytes(self.held)} are held already" if self.held > 0 else ""
        return f"{f'slot {self.slot}: ' * (self.slot >= 0)}{self.rule}{held}"


class Room(NamedTuple):
    """What a rank may hold, the blocks of its operands included."""

    rules: tuple[MemoryRule, ...]
    """Every rule of every worker that takes part."""
    started_here: bool = True
    """Whether the workers are those of td.start_cluster."""

    @property
    def binding(self) -> MemoryRule:
        """The rule that leaves least."""
        return min(self.rules, key=lambda rule: rule.room)

    @property
    def bytes(self) -> int:
        """What that leaves."""
        return self.binding.room

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes)} ({self.binding})"

    def elsewhere(self) -> int:
        """Bytes that other workers, started with the same options, will leave too."""
        return self.bytes if not self.binding.option else max(0, self.bytes - MARGIN)

    def raised(self, need: int) -> str:
        """The options under which a rank may hold ``need`` bytes; empty if this machine has not
        as much.

        >>> worker = MemoryRule(70_000_000, 50_000_000, "", "memory_limit", 0.7)
        >>> Room((MemoryRule(8, 0, ""), worker)).raised(30_000_000)
        "memory_limit='30 MB' on workers of td.start_cluster(memory_limit='138.3 MB')"
        """
        call, least = "", dict[str, int]()
        for rule in (rule for rule in self.rules if rule.room < need):
            if not rule.option:
                call = f"memory_limit={format_up(need)!r}"
                continue
            wanted = int((need + max(0, rule.held) + MARGIN) / rule.share) + 1
            least[rule.option] = max(wanted, least.get(rule.option, 0))
        if max(least.values(), default=0) > MEMORY_LIMIT or "GPU" in least:
            return ""
        given = ", ".join(f"{name}={format_up(n)!r}" for name, n in sorted(least.items()))
        workers = f"workers of td.start_cluster({given})" if given else ""
        if workers and not self.started_here:
            workers = f"workers of 'dask worker --memory-limit {max(least.values())}'"
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
    rank = max(range(len(rooms)), key=lambda rank: needs[rank] - rooms[rank].bytes)
    room, need = rooms[rank], needs[rank]
    if need <= room.bytes:
        return
    ways = filter(None, (other(min(each.bytes for each in rooms)), room.raised(need)))
    raise DoesNotFitError(
        f"{what} takes {format_bytes(need)} on rank {rank}, and slot {slots[rank]} leaves {room}. "
        f"What would fit: {'; or '.join(ways) or 'more ranks, or less on each'}"
    )


def asks_room(
    cluster: Cluster, arrays: Sequence[Sequence[Any]] = (), alone: bool = False
) -> tuple[Callable[..., list[MemoryRule]], tuple[Any, ...]]:
    """What `room_of` has every worker do, for who asks them anyway: a function and arguments."""
    keys = [keys_of(blocks) for blocks in arrays]
    return _rules, (keys, cluster.backend, cluster.memory_limits, alone)


def as_room(
    found: Sequence[Sequence[MemoryRule]],
    limit: int | str | None = None,
    started_here: bool = True,
    slots: Sequence[int] | None = None,
) -> Room:
    """The Room that the workers' rules, by slot, leave in ``slots`` (default: in all), and the
    bytes that the call allows itself."""
    rules = [
        rule for slot in (range(len(found)) if slots is None else slots) for rule in found[slot]
    ]
    if limit is not None:
        own = MemoryRule(parse_bytes(limit), 0, f"memory_limit={limit!r} was asked for")
        rules.insert(0, own)
    return Room(tuple(rules), started_here)


# -- on a worker -----------------------------------------------------------------------------------


def _rules(
    keys: list[dict[int, str]],
    backend: str,
    limits: Sequence[int],
    alone: bool,
    dask_worker: Any,
) -> list[MemoryRule]:
    """The rules of this worker, its blocks of ``keys`` not counted as held."""
    slot, data, manager = slot_on(dask_worker), dask_worker.data, dask_worker.memory_manager
    # what is not on the disk, nor moved from the GPU to the host
    fast = getattr(data, "device", getattr(data, "fast", data))
    mine = [each[slot] for each in keys if each.get(slot) in fast]
    own, limit, process = sum(getattr(fast[key], "nbytes", 0) for key in mine), limits[slot], 0
    if backend == "cupy":
        rules = _device_rules(data, limit, own, alone)
        if probe().devices[0].integrated:
            fast, process = data.fast, host_memory.held() + device_memory.held()
    else:
        cap, process = host_memory.capped(), host_memory.held()
        option = "memory_limit" if cap is None else "memory_cap"
        rules = [(limit, 0, f"a worker has {format_bytes(limit)}", option)]
        if cap is not None:
            words = f"memory_cap={format_bytes(cap.limit)}"
            rules.append((cap.limit, cap.taken - own, words, option))
    dask_rules = _dask_rules(manager, fast, process, own, alone) if process else ()
    return [MemoryRule(*rule)._replace(slot=slot) for rule in (*rules, *dask_rules)]


def _device_rules(data: Any, limit: int, own: int, alone: bool) -> list[tuple[Any, ...]]:
    """The rules of a worker's GPU: its share, what is free there, where Dask-CUDA steps in."""
    used, capped = device_memory.held() - own, device_memory.cap() is not None
    words = f"a worker has {format_bytes(limit)} of its GPU"
    if capped:
        words = f"memory_cap={format_bytes(limit)}"
    rules = [(limit, used, words, "memory_cap" if capped else "GPU")]
    if probe().devices[0].integrated:  # what the GPU holds is the host's
        return rules
    at = int(0.95 * device_memory.reachable())  # the rest is for what lies between blocks
    rules.append((at, used, f"{format_bytes(at)} of its GPU are its own or free for it now", "GPU"))
    blocks = getattr(getattr(data, "device_buffer", None), "fast", None)
    if blocks is not None and not alone:
        words = f"Dask-CUDA moves blocks to the host from a sum of {format_bytes(blocks.n)} on"
        rules.append((int(blocks.n), blocks.total_weight - own, words, "GPU"))
    return rules


def _dask_rules(
    manager: Any, fast: Any, process: int, own: int, alone: bool
) -> list[tuple[Any, ...]]:
    """Where Dask steps in: for what the ``process`` holds, and for the blocks among it."""
    total = manager.memory_limit
    if not total:
        return []
    spills, managed = hasattr(fast, "total_weight"), getattr(fast, "total_weight", 0)
    if alone:
        own, spills = managed, False
    kill = dask.config.get("distributed.worker.memory.terminate")
    spill, target = manager.memory_spill_fraction, manager.memory_target_fraction
    table = [
        (kill, process, "terminate", "kills the worker"),
        (manager.memory_pause_fraction, process, "pause", "pauses the worker"),
        (spills and spill, process, "spill", "moves blocks to disk"),
        (spills and target, managed, "target", "moves blocks, by their sum, to disk"),
    ]
    return [
        (
            int(share * total),
            held - own,
            f"Dask {does} from {format_bytes(share * total)} on, {100 * share:.0f} % of the "
            f"worker's memory_limit of {format_bytes(total)} (distributed.worker.memory.{name})",
            "memory_limit",
            share,
        )
        for share, held, name, does in table
        if share
    ]
