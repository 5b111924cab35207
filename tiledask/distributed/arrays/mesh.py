"""A mesh of ranks: the slots of a cluster, arranged in rows and columns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import PlacementError
from tiledask.plan.whole import is_whole

__all__ = ["Mesh"]


@dataclass(frozen=True)
class Mesh:
    """Ranks 0..n-1 of ``cluster`` in row-major order on a grid of ``shape``; rank r is slot r."""

    cluster: Cluster = field(repr=False)
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, Cluster):
            raise TypeError(
                f"a mesh is made of a cluster's slots, got {type(self.cluster).__name__}; "
                f"td.Mesh(cluster, (2, 2)) with cluster = td.start_cluster()"
            )
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
                f"start_cluster(workers={self.ranks})"
            )

    @property
    def ranks(self) -> int:
        return prod(self.shape)
