"""A mesh of ranks: the slots of a cluster, arranged in rows and columns, whose axes may have names.

td.Mesh(cluster, (2, 4), names=("dp", "tp"))

                tp
           0  1  2  3
    dp  0 [0][1][2][3]
        1 [4][5][6][7]

On several hosts the ranks of one row share one, if each has as many slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.connecting.connect import connect
from tiledask.errors import PlacementError
from tiledask.plan.whole import is_whole

__all__ = ["Mesh"]

HEAVY = {"tp": 0, "": 1, "pp": 2, "dp": 3}
"""Axes of a training, the one that moves most first, and between them those of other names."""


@dataclass(frozen=True)
class Mesh:
    """Ranks 0..n-1 of ``cluster`` in row-major order on a grid of ``shape``, each in a slot.

    Rank r is slot r on one host. On several, neighbours along the axis that moves most come after
    each other, and so share a host if each has as many slots: along "tp", then axes of other names,
    the last first, then "pp", then "dp". A Dask client, or a scheduler's address, is connected to
    (`tiledask.connect`).

    ``names``: of the axes, if they have any: in a rank function ``rank.group("tp")`` has the ranks
    along one. ``slots``: the slot of each rank, if you choose it yourself. Raises PlacementError
    for a shape, names or slots that no mesh has.
    """

    cluster: Cluster = field(repr=False)
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    slots: Sequence[int] = field(default=(), repr=False)
    at: tuple[int, ...] = field(init=False, repr=False)
    """The slot of each rank."""

    def __post_init__(self) -> None:
        cluster = connect(self.cluster)
        shape = tuple(self.shape) if isinstance(self.shape, Sequence) else (self.shape,)
        if not shape or not all(is_whole(n, 1) for n in shape):
            words = "a mesh shape is a tuple of whole numbers of 1 or more, such as (2, 2)"
            raise PlacementError(f"{words}; got {self.shape!r}")
        shape, ranks = tuple(map(int, shape)), prod(shape)
        if ranks > cluster.slots:
            raise PlacementError(
                f"a mesh of shape {shape} has {ranks} ranks, the cluster has {cluster.slots} "
                f"slots; use a smaller mesh, td.connect(client, workers={ranks}), or "
                f"start_cluster(workers={ranks})"
            )
        names = (self.names,) if isinstance(self.names, str) else tuple(self.names or ())
        named = {name for name in names if isinstance(name, str) and name}
        if names and not len(named) == len(names) == len(shape):
            raise PlacementError(
                f"a mesh of shape {shape} takes {len(shape)} different names of its axes, or none; "
                f"got {self.names!r}"
            )
        at = tuple(self.slots) or range(ranks)
        if not self.slots and len({*cluster.hosts}) > 1:
            at = _within_hosts(shape, names)
        if not len({s for s in at if is_whole(s, 0, cluster.slots - 1)}) == len(at) == ranks:
            raise PlacementError(
                f"slots says a slot of its own for each of the mesh's {ranks} ranks, from 0 to "
                f"{cluster.slots - 1}; got {at}. Leave it out, and hosts decide"
            )
        vars(self).update(cluster=cluster, shape=shape, names=names)
        vars(self).update(slots=tuple(self.slots), at=tuple(map(int, at)))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        return tuple(self.cluster.hosts[slot] for slot in self.at)

    @property
    def ranks(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def said(self, at: Sequence[int]) -> str:
        """Something of each axis, by name: ``(dp=0, tp=3)``, or ``(0, 3)`` without names."""
        if not self.names:
            return str(tuple(at))
        return f"({', '.join(f'{name}={i}' for name, i in zip(self.names, at, strict=True))})"

    def __str__(self) -> str:
        return self.said(self.shape)

    def __repr__(self) -> str:
        return f"Mesh({self})"


def _within_hosts(shape: Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
    """The slot of each rank, those of neighbours along the heaviest axis one after the other.

    >>> _within_hosts((1, 2, 2), ("dp", "tp", "pp")), _within_hosts((2, 2), ())
    ((0, 2, 1, 3), (0, 1, 2, 3))
    """
    named = [*names, *[""] * (len(shape) - len(names))]
    heavy = [HEAVY.get(name, HEAVY[""]) for name in named]
    outward = sorted(range(len(shape)), key=lambda axis: (-heavy[axis], axis))
    slots = np.arange(prod(shape)).reshape([shape[axis] for axis in outward])
    return tuple(slots.transpose(np.argsort(outward)).ravel().tolist())
