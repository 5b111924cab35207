"""A mesh of ranks: the slots of a cluster, arranged in rows and columns, whose axes may have names.

td.Mesh(cluster, (2, 4), names=("dp", "tp"))

                tp
           0  1  2  3
    dp  0 [0][1][2][3]
        1 [4][5][6][7]

On several hosts the ranks of one row share one, wherever it has as many slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tiledask.distributed.arrays.hosts import arranged, heaviest_first
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.connecting.connect import cluster_of
from tiledask.errors import PlacementError
from tiledask.plan.whole import is_whole

__all__ = ["Mesh"]


@dataclass(frozen=True)
class Mesh:
    """Ranks 0..n-1 of ``cluster`` in row-major order on a grid of ``shape``, each in a slot.

    Rank r is slot r on one host. On several, neighbours along the axis that moves most share a host
    as far as there is room: along "tp", then axes of other names, the last first, then "pp", then
    "dp". ``slots``: the slot of each rank, if you say it yourself; ``mesh.at`` has it either way.

    A Dask client, or a scheduler's address, is connected to (`tiledask.connect`).

    ``names``: of the axes, if they have any. Then ``mesh.size("tp")`` is the extent of one, and in
    a rank function ``rank.group("tp")`` the ranks along it. Raises PlacementError for a shape or
    names that no mesh has.
    """

    cluster: Cluster = field(repr=False)
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    slots: Sequence[int] = field(default=(), repr=False)
    at: tuple[int, ...] = field(init=False, repr=False)
    """The slot of each rank."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cluster", cluster_of(self.cluster, "a mesh"))
        shape = self.shape if isinstance(self.shape, Sequence) else (self.shape,)
        if not shape or not all(is_whole(n, 1) for n in shape):
            raise PlacementError(
                f"a mesh shape is a tuple of whole numbers of 1 or more, such as (2, 2); "
                f"got {self.shape!r}"
            )
        object.__setattr__(self, "shape", tuple(map(int, shape)))
        if self.ranks > self.cluster.slots:
            raise PlacementError(
                f"a mesh of shape {self.shape} has {self.ranks} ranks, the cluster has "
                f"{self.cluster.slots} slots; use a smaller mesh or "
                f"{self.cluster.with_slots(self.ranks)}"
            )
        object.__setattr__(self, "names", _checked_names(self.names, self.shape))
        object.__setattr__(self, "slots", tuple(self.slots))
        object.__setattr__(self, "at", self._slots_of_ranks())

    def _slots_of_ranks(self) -> tuple[int, ...]:
        if not self.slots:
            within = heaviest_first(self.ndim, self.names)
            return arranged(self.cluster.hosts, self.shape, within)
        have = self.cluster.slots
        right = all(is_whole(slot, 0, have - 1) for slot in self.slots)
        if not right or not len({*self.slots}) == len(self.slots) == self.ranks:
            raise PlacementError(
                f"slots says a slot of its own for each of the mesh's {self.ranks} ranks, from 0 "
                f"to {have - 1}; got {self.slots}. Leave it out, and hosts decide"
            )
        return tuple(map(int, self.slots))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        hosts = self.cluster.hosts
        return tuple(hosts[slot] for slot in self.at)

    @property
    def ranks(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def size(self, axis: int | str | None = None) -> int:
        """The extent of an axis, by its number or name; of all of them, the number of ranks."""
        return self.ranks if axis is None else self.shape[axis_of(axis, self.shape, self.names)]

    def said(self, at: Sequence[int]) -> str:
        """Something of each axis, by name: ``(dp=0, tp=3)``, or ``(0, 3)`` without names."""
        if not self.names:
            return str(tuple(at))
        return f"({', '.join(f'{name}={i}' for name, i in zip(self.names, at, strict=True))})"

    def __str__(self) -> str:
        return self.said(self.shape)

    def __repr__(self) -> str:
        return f"Mesh({self.said(self.shape)})"


def axis_of(axis: Any, shape: tuple[int, ...], names: tuple[str, ...]) -> int:
    """The number of an axis of a mesh, of that or its name. Raises PlacementError for others."""
    if isinstance(axis, str) and axis in names:
        return names.index(axis)
    if not isinstance(axis, str) and is_whole(axis, 0) and axis < len(shape):
        return int(axis)
    if names:
        have = f"axes {', '.join(map(repr, names))}"
    else:
        have = f"axes 0..{len(shape) - 1} without names; td.Mesh(cluster, {shape}, names=(...))"
    raise PlacementError(f"the mesh has no axis {axis!r}, it has {have}")


def _checked_names(names: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names or ())
    if given and (
        len({*given}) != len(shape)
        or len(given) != len(shape)
        or not all(isinstance(name, str) and name for name in given)
    ):
        raise PlacementError(
            f"a mesh of shape {shape} takes {len(shape)} different names of its axes, or none; got "
            f"{names!r}"
        )
    return given
