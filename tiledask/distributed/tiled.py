"""What an array on many devices, and one rank's view of it, have in common."""

from tiledask.plan.products.placement import Placement, Tiling

__all__ = ["Tiled"]


class Tiled:
    """What has a Tiling: its shape and placements are those of the whole array."""

    __slots__ = ()
    tiling: Tiling

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tiling.shape

    @property
    def ndim(self) -> int:
        return len(self.tiling.shape)

    @property
    def placements(self) -> tuple[Placement, ...]:
        return self.tiling.placements
