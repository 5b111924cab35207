"""A mesh of ranks: the slots of a cluster, arranged in rows and columns."""

from dataclasses import dataclass, field
from math import prod

from tiledask.dist.cluster import Cluster
from tiledask.errors import PlacementError

__all__ = ["Mesh"]


@dataclass(frozen=True)
class Mesh:
    """Ranks 0..n-1 of ``cluster`` in row-major order on a grid of ``shape``; rank r is slot r."""

    cluster: Cluster = field(repr=False)
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in shape)
        if not shape or not whole:
            raise PlacementError(
                f"a mesh shape is a tuple of whole numbers of 1 or more, such as (2, 2); "
                f"got {self.shape!r}"
            )
        object.__setattr__(self, "shape", shape)
        if self.ranks > self.cluster.slots:
            raise PlacementError(
                f"a mesh of shape {shape} has {self.ranks} ranks, the cluster has "
                f"{self.cluster.slots} slots; use a smaller mesh or "
                f"start_cluster(workers={self.ranks})"
            )

    @property
    def ranks(self) -> int:
        return prod(self.shape)
