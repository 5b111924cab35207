"""Which bytes must move between ranks: pieces of blocks, from the placements alone.

The same list of pieces predicts the traffic and is executed, so the two can only differ
if the cluster moves something else.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tiledask.errors import PlacementError
from tiledask.plan.products.placement import Partial, Replicate, Shard, Tiling
from tiledask.plan.products.regions import Region, overlap, region_size
from tiledask.plan.products.traffic import Traffic

__all__ = ["Piece", "collective", "fetch", "redistribution", "traffic_of"]


@dataclass(frozen=True)
class Piece:
    """A part of the source's block that the destination needs."""

    source: int
    """Rank that holds it."""
    destination: int
    """Rank that needs it; the same rank for a part that is already there."""
    region: Region
    """Where it lies in the whole array."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return region_size(self.region)


def fetch(
    tiling: Tiling, at: tuple[int, ...], wanted: Region, keep: tuple[int, ...] = ()
) -> list[Piece]:
    """The pieces of ``wanted`` for the rank at mesh coordinates ``at``, in rank order.

    From replicated axes the rank's own row or column is asked, so what is at hand is used first.
    From partial axes every partial sum is asked, except on those in ``keep``, where the rank goes
    on with its own. Empty pieces are left out.

    >>> t = Tiling((8, 8), (2, 4), (Shard(0), Shard(1)))
    >>> [(p.source, p.region) for p in fetch(t, (1, 2), ((4, 8), (3, 5)))]
    [(5, ((4, 8), (3, 4))), (6, ((4, 8), (4, 5)))]
    """
    found = [(0, tuple((0, n) for n in tiling.shape))]
    for axis, (size, i) in enumerate(zip(tiling.mesh, at, strict=True)):
        placement, before, found = tiling.placements[axis], found, []
        own = isinstance(placement, Replicate) or (isinstance(placement, Partial) and axis in keep)
        for rank, region in before:
            for part in [i] if own else range(size):
                held = region
                if isinstance(placement, Shard):
                    d = placement.dim
                    ends = placement.interval(region[d], size, part)
                    if ends[0] >= wanted[d][1] or ends[1] <= wanted[d][0]:
                        continue
                    held = (*region[:d], ends, *region[d + 1 :])
                found.append((rank * size + part, held))
    here = tiling.rank(at)
    pieces = ((rank, overlap(region, wanted)) for rank, region in found)
    return [Piece(rank, here, region) for rank, region in pieces if region is not None]


def redistribution(source: Tiling, target: Tiling) -> list[Piece]:
    """Every piece that every rank needs to go from ``source`` to ``target`` in one exchange.

    Raises PlacementError where it would invent partial sums: to Partial() from anything else.
    """
    for axis, (old, new) in enumerate(zip(source.placements, target.placements, strict=True)):
        if isinstance(new, Partial) and old != new:
            raise PlacementError(
                f"mesh axis {axis} goes from {old} to {new}: partial sums are not unique; "
                f"Partial() is only what a product leaves behind. Keep {old}"
            )
    keep = tuple(i for i, new in enumerate(target.placements) if isinstance(new, Partial))
    return [
        piece for at in target.coordinates() for piece in fetch(source, at, target.region(at), keep)
    ]


def collective(source: Tiling, target: Tiling) -> str:
    """The collective's name for going from ``source`` to ``target``, or "none" if nothing moves."""
    names = []
    for old, new in zip(source.placements, target.placements, strict=True):
        match old, new:
            case Shard(), Replicate() | Partial():
                names.append("all_gather")
            case Partial(), Shard():
                names.append("reduce_scatter")
            case Partial(), Replicate():
                names.append("all_reduce")
            case Shard(dim=a), Shard(dim=b) if a != b:
                names.append("all_to_all")
    return "+".join(dict.fromkeys(names)) or "none"


def traffic_of(ranks: int, pieces: Iterable[Piece], itemsize: int) -> Traffic:
    """The Traffic of ``pieces`` of ``itemsize`` bytes an element; local pieces are free."""
    return Traffic.of(ranks, ((p.source, p.destination, p.size * itemsize) for p in pieces))
