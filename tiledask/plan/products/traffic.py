"""Bytes and messages between ranks, predicted or counted; and which pieces of blocks must move,
from the placements alone.

The same list of pieces predicts the traffic and is executed, so the two can only differ
if the cluster moves something else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tiledask.errors import PlacementError
from tiledask.plan.products.placement import Partial, Replicate, Shard, Tiling
from tiledask.plan.products.regions import Region, overlap, region_size

__all__ = ["Piece", "Traffic", "collective", "fetch", "redistribution", "traffic_of"]


@dataclass(frozen=True, eq=False, repr=False)
class Traffic:
    """What moved from rank to rank.

    >>> t = Traffic.of(2, [(0, 1, 100), (0, 1, 50), (1, 0, 8)])
    >>> t.total, t.count, t.sent, t.received
    (158, 3, (150, 8), (8, 150))
    """

    bytes: np.ndarray
    """int64 [source rank, destination rank], bytes."""
    messages: np.ndarray
    """int64 [source rank, destination rank], blocks sent."""
    hosts: tuple[str, ...] = ()
    """The host of each rank; none if all are on one."""

    @classmethod
    def of(cls, ranks: int, moves: Iterable[tuple[int, int, int]] = ()) -> "Traffic":
        """The traffic of ``moves`` (source, destination, bytes) from rank to another rank."""
        every = np.array([*moves], np.int64).reshape(-1, 3)
        source, destination, size = every[every[:, 0] != every[:, 1]].T
        moved = np.zeros((2, ranks, ranks), np.int64)
        np.add.at(moved[0], (source, destination), size)
        np.add.at(moved[1], (source, destination), 1)
        return cls(moved[0], moved[1])

    def on(self, hosts: Sequence[str], slots: Sequence[int] | None = None) -> "Traffic":
        """The same between slots, each on its host; rank r is slot ``slots[r]``, or r."""
        moved = np.zeros((2, len(hosts), len(hosts)), np.int64)
        at = np.arange(self.ranks) if slots is None else np.array(slots)
        moved[:, at[:, None], at] = self.bytes, self.messages
        return Traffic(moved[0], moved[1], tuple(hosts))

    @property
    def ranks(self) -> int:
        return len(self.bytes)

    @property
    def between_hosts(self) -> int:
        """Bytes moved between ranks on different hosts, which are part of ``total``."""
        hosts = np.array(self.hosts or [""] * self.ranks)
        return int(self.bytes[hosts[:, None] != hosts].sum())

    @property
    def total(self) -> int:
        """Bytes moved, all together."""
        return int(self.bytes.sum())

    @property
    def count(self) -> int:
        """Messages (blocks), all together."""
        return int(self.messages.sum())

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that left each rank."""
        return tuple(self.bytes.sum(axis=1).tolist())

    @property
    def received(self) -> tuple[int, ...]:
        """Bytes that reached each rank."""
        return tuple(self.bytes.sum(axis=0).tolist())

    def of_rank(self, rank: int) -> tuple[int, int, int]:
        """Bytes that a rank sent and received, and messages that it sent."""
        sent, received, messages = self.bytes[rank], self.bytes[:, rank], self.messages[rank]
        return int(sent.sum()), int(received.sum()), int(messages.sum())

    def __add__(self, other: "Traffic") -> "Traffic":
        hosts = self.hosts or other.hosts
        return Traffic(self.bytes + other.bytes, self.messages + other.messages, hosts)

    def __eq__(self, other: object) -> bool:
        """Equal to the byte and to the message, for every pair of ranks."""
        if not isinstance(other, Traffic):
            return NotImplemented
        same = np.array_equal(self.bytes, other.bytes)
        return same and np.array_equal(self.messages, other.messages)

    def __repr__(self) -> str:
        words = f"{self.total:,} bytes in {self.count} messages among {self.ranks} ranks"
        return f"Traffic({words}{self.crossed()})"

    def crossed(self) -> str:
        """What of it goes between hosts, in words; nothing if there is one."""
        hosts = len(set(self.hosts))
        return f", {self.between_hosts:,} bytes between {hosts} hosts" if hosts > 1 else ""


@dataclass(frozen=True)
class Piece:
    """A part of the source rank's block that the destination rank needs; they may be one."""

    source: int
    destination: int
    region: Region
    """Where it lies in the whole array."""

    @property
    def size(self) -> int:
        return region_size(self.region)


def fetch(tiling: Tiling, rank: int, wanted: Region, keep: tuple[int, ...] = ()) -> list[Piece]:
    """The pieces of ``wanted`` for a rank, in the order of the ranks that hold them.

    From replicated axes the rank's own row or column is asked, so what is at hand is used first.
    From partial axes every partial sum is asked, except on those in ``keep``, where the rank goes
    on with its own. Empty pieces are left out.

    >>> t = Tiling((8, 8), (2, 4), (Shard(0), Shard(1)))
    >>> [(p.source, p.region) for p in fetch(t, 6, ((4, 8), (3, 5)))]
    [(5, ((4, 8), (3, 4))), (6, ((4, 8), (4, 5)))]
    """
    found = [(0, tuple((0, n) for n in tiling.shape))]
    for axis, (size, i) in enumerate(zip(tiling.mesh, tiling.coordinates[rank], strict=True)):
        placement, before, found = tiling.placements[axis], found, []
        own = isinstance(placement, Replicate) or (isinstance(placement, Partial) and axis in keep)
        for other, region in before:
            for part in [i] if own else range(size):
                held = region
                if isinstance(placement, Shard):
                    d = placement.dim
                    ends = placement.interval(region[d], size, part)
                    if ends[0] >= wanted[d][1] or ends[1] <= wanted[d][0]:
                        continue
                    held = (*region[:d], ends, *region[d + 1 :])
                found.append((other * size + part, held))
    pieces = ((other, overlap(region, wanted)) for other, region in found)
    return [Piece(other, rank, region) for other, region in pieces if region is not None]


def redistribution(source: Tiling, target: Tiling) -> list[Piece]:
    """Every piece that every rank needs to go from ``source`` to ``target`` in one exchange."""
    for axis, (old, new) in enumerate(zip(source.placements, target.placements, strict=True)):
        if isinstance(new, Partial) and old != new:
            raise PlacementError(
                f"mesh axis {axis} goes from {old} to {new}: partial sums are not unique; "
                f"Partial() is only what a product leaves behind. Keep {old}"
            )
    keep = tuple(i for i, new in enumerate(target.placements) if isinstance(new, Partial))
    wanted = enumerate(target.regions)
    return [piece for rank, region in wanted for piece in fetch(source, rank, region, keep)]


_NAMES = {
    (Shard, Replicate): "all_gather",
    (Partial, Shard): "reduce_scatter",
    (Partial, Replicate): "all_reduce",
    (Shard, Shard): "all_to_all",
}


def collective(source: Tiling, target: Tiling) -> str:
    """The collective's name for going from ``source`` to ``target``, or "none"."""
    pairs = zip(source.placements, target.placements, strict=True)
    names = (_NAMES.get((type(old), type(new)), "") for old, new in pairs if old != new)
    return "+".join(dict.fromkeys(filter(None, names))) or "none"


def traffic_of(ranks: int, pieces: Iterable[Piece], itemsize: int) -> Traffic:
    return Traffic.of(ranks, ((p.source, p.destination, p.size * itemsize) for p in pieces))
