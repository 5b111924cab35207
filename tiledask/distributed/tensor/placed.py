"""A block of an array that says what it is a part of: all of it, a shard, or a partial sum.

           rank 0        rank 1
Replicate  [a b c d]     [a b c d]      the array
Shard(0)   [a b]         [c d]          one behind the other they are the array
Partial    [p q r s]     [t u v w]      their sum is the array

The words of PyTorch's DTensor, on one group of ranks. The gradient of a Replicate that every rank
uses for itself is Partial; that of a Partial is Replicate.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from tiledask.distributed.ranks.group import Group
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import Shards, even_shards
from tiledask.plan.products.placement import Partial, Placement, Replicate, Shard
from tiledask.plan.whole import whole_number
from tiledask.tile.backend import array_namespace

__all__ = [
    "EVERYWHERE",
    "Placed",
    "Weights",
    "check_window",
    "checked_dim",
    "fits",
    "need",
    "partial",
    "refuse",
    "replicate",
    "same_placement",
    "shard",
    "sharded",
]

EVERYWHERE = Replicate()
"""The placement of what every rank has in full."""


class Placed(NamedTuple):
    """This rank's block of an array; made by `replicate`, `partial`, `shard` and `sharded`."""

    local: Any
    """The block, a NumPy or CuPy array."""
    placement: Placement
    shape: tuple[int, ...]
    """The shape of the whole array."""
    shards: Shards | None = None
    """Who holds what of the dimension that is sharded; None if none is."""

    @property
    def dim(self) -> int | None:
        """The dimension that is sharded; None if none is."""
        return self.placement.dim if isinstance(self.placement, Shard) else None

    @property
    def split(self) -> tuple[int, Shards]:
        """(the dimension that is sharded, who holds what of it). PlacementError if none is."""
        if not isinstance(self.placement, Shard) or self.shards is None:
            raise PlacementError(f"{self} is not sharded; shard(group, x, dim) takes its part")
        return self.placement.dim, self.shards

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def spec(self) -> "Placed":
        """Its placement and shape, without the block."""
        return Placed(None, self.placement, self.shape, self.shards)

    def like(self, local: Any) -> "Placed":
        """Another block of the same placement and shape."""
        if local.shape != self.local.shape:
            raise PlacementError(
                f"a block with the placement of another has its shape, {self.local.shape}; got "
                f"{local.shape}: say what it is a part of, by shard(...)"
            )
        return Placed(local, self.placement, self.shape, self.shards)

    def __str__(self) -> str:
        return f"{self.placement} of {list(self.shape)}"

    def __repr__(self) -> str:
        here = "nothing" if self.local is None else list(self.local.shape)
        return f"Placed({self}, {here} here)"


Weights = dict[str, Any]
"""Weights, or their gradients, by name: a Placed each, or None."""


def replicate(x: Any) -> Placed:
    """``x``, which every rank has in full."""
    return Placed(x, EVERYWHERE, tuple(x.shape))


def partial(x: Any) -> Placed:
    """``x``, this rank's partial sum: the array is the sum over the ranks."""
    return Placed(x, Partial(), tuple(x.shape))


def shard(group: Group, whole: Any, dim: int, shards: Shards | None = None) -> Placed:
    """This rank's part, copied, of an array that it has in full; evenly, unless ``shards`` says.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> run_threads(lambda rank: shard(rank.group(), np.arange(5), 0).local.tolist(), 2).results
    [[0, 1, 2], [3, 4]]
    """
    dim = checked_dim(whole.ndim, dim)
    shards = shards or even_shards(whole.shape[dim], group.size)
    if (shards.ranks, shards.extent) != (group.size, whole.shape[dim]):
        raise PlacementError(
            f"shards of {shards.extent} indices over {shards.ranks} ranks do not fit dimension "
            f"{dim} of an array of {list(whole.shape)} over {group.size}; make them by "
            f"even_shards({whole.shape[dim]}, {group.size})"
        )
    before = (slice(None),) * dim
    pieces = [whole[(*before, slice(*at))] for at in shards.parts[group.rank]]
    xp = array_namespace(whole)
    local = xp.concatenate(pieces, axis=dim) if pieces else whole[(*before, slice(0, 0))].copy()
    return Placed(local, Shard(dim), tuple(whole.shape), shards)


def sharded(group: Group, local: Any, dim: int, shards: Shards | int) -> Placed:
    """``local`` as this rank's part along ``dim``. ``shards``: an extent is shared out evenly.

    Raises PlacementError if it has another extent than the shards say, such as that of the whole.
    """
    dim = checked_dim(local.ndim, dim)
    if not isinstance(shards, Shards):
        shards = even_shards(whole_number("shards", shards, 0), group.size)
    if shards.ranks != group.size or shards.counts[group.rank] != local.shape[dim]:
        raise PlacementError(
            f"rank {group.rank} of {group.size} holds {local.shape[dim]} of dimension {dim}, but "
            f"the shards say {shards.counts[group.rank] if shards.ranks == group.size else shards}"
            f" ({shards}); pass this rank's block, or replicate(...) for what every rank has"
        )
    shape = (*local.shape[:dim], shards.extent, *local.shape[dim + 1 :])
    return Placed(local, Shard(dim), shape, shards)


def checked_dim(ndim: int, dim: int) -> int:
    """``dim`` counted from the first; raises PlacementError if there is no such dimension."""
    if not -ndim <= dim < ndim:
        raise PlacementError(f"an array of {ndim} dimensions has none numbered {dim}")
    return dim % ndim


def need(operation: str, name: str, x: Placed, wanted: Sequence[type], why: str) -> None:
    """None; raises PlacementError unless ``x`` is placed in one of the ``wanted`` ways."""
    if not isinstance(x, Placed):
        raise PlacementError(
            f"{operation} takes {name} with its placement, got {type(x).__name__}: "
            f"replicate(x), partial(x), shard(group, x, dim), or sharded(group, block, dim, extent)"
        )
    if not isinstance(x.placement, tuple(wanted)):
        names = " or ".join(kind.__name__ for kind in wanted)
        refuse(operation, f"{name} must be {names}, got {x}: {why}")


def fits(group: Group, operation: str, name: str, x: Placed) -> None:
    """None; raises PlacementError unless ``x`` is one of this rank's blocks in this group."""
    if x.dim is None:
        return
    dim, shards = x.split
    here = shards.counts[group.rank] if shards.ranks == group.size else None
    if here != x.local.shape[dim]:
        refuse(
            operation,
            f"{name} is {x} over {shards.ranks} ranks ({shards}), and rank {group.rank} of "
            f"this group of {group.size} has {x.local.shape[dim]} of it; place it again on this "
            f"group, from the whole",
        )


def refuse(operation: str, reason: str) -> NoReturn:
    """Raises PlacementError."""
    raise PlacementError(f"{operation}: {reason}")


def same_placement(operation: str, name: str, x: Placed, other_name: str, other: Placed) -> None:
    """None; raises PlacementError unless both have the same placement."""
    if (x.placement, x.shape, x.shards) != (other.placement, other.shape, other.shards):
        refuse(
            operation,
            f"{name} and {other_name} must have the same placement, got {x} "
            f"({x.shards or 'whole'}) and {other} ({other.shards or 'whole'}); "
            f"bring one to the other's placement by g, gathered or scattered",
        )


def check_window(operation: str, x: Placed, dim: int, size: int) -> None:
    """None; raises PlacementError if windows of ``size`` along ``dim`` would need other ranks' rows.

    A 3x3 convolution with padding on a shard of the rows pads where the neighbour's rows belong:
    its result is wrong, and has rows too many, without any error.
    """  # noqa: E501
    need(operation, "x", x, (Replicate, Shard), "sum it first, by g(group, x)")
    if x.dim == checked_dim(x.ndim, dim) and size > 1:
        refuse(
            operation,
            f"windows of {size} along dimension {dim} cross the shards of x, {x} ({x.shards}), and "
            f"zeros would be put where other ranks' rows are; exchange halos of {size // 2} first "
            f"(group.halo_exchange), or gather x",
        )
