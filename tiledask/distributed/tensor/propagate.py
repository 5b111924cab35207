"""What may be placed how: one rule by einsum letters, before anything is computed.

    column_linear   x *K    w Kn!   b n!      K is whole, n is sharded, of b as of w
    row_linear      x *k!   w k!N   b N       k is sharded, of x as of w: y is a sum over ranks
    norm            x *H    w H               only tokens (*) may be sharded

Nothing may be Partial: gelu(a + b) is not gelu(a) + gelu(b), and a bias added to t partial sums is
there t times.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed
from tiledask.errors import PlacementError
from tiledask.plan.products.placement import ANY, Replicate, Shard
from tiledask.plan.products.shards import Shards

__all__ = ["fits", "need", "propagate", "refuse", "same_placement"]


class _Letter(NamedTuple):
    """A dimension, as the first operand has it."""

    name: str
    extent: int
    shards: Shards | None


def propagate(group: Group, op: str, rule: str, why: str, **operands: Placed | None) -> None:
    """None; raises PlacementError unless the ``operands`` go together.

    ``rule``: the letters of each. A capital one is whole, one with ! is sharded, and one that
    operands share is sharded alike; ``*`` are the dimensions of tokens. ``why``: the reason, and
    the way out.
    """
    letters: dict[str, _Letter] = {}
    for text, (name, x) in zip(rule.split(), operands.items(), strict=True):
        if x is None:
            continue
        dims, sharded = re.findall(r"\w", text), re.findall(r"(\w)!", text)
        kinds: tuple[type, ...] = (Shard,) if sharded else (Replicate, Shard)
        if text.isalpha() and text.isupper():
            kinds = (Replicate,)
        need(op, name, x, kinds, why)
        first = x.ndim - len(dims)
        at = None if x.dim is None else "*" if x.dim < first else dims[x.dim - first]
        if first < 0 or (first and "*" not in text):
            refuse(op, f"{name} has {len(dims)} dimensions, got {x}")
        if (at and at.isupper()) or (sharded and at not in sharded):
            refuse(op, f"{name} is sharded along another dimension than it may be, {x}: {why}")
        fits(group, op, name, x)
        for letter, extent in zip(dims, x.shape[first:], strict=True):
            mine = _Letter(name, extent, x.shards if letter == at else None)
            other = letters.setdefault(letter, mine)
            if (extent, mine.shards) != other[1:]:
                refuse(
                    op,
                    f"{name} has {extent} there, sharded as {mine.shards}, and {other.name} "
                    f"{other.extent}, as {other.shards}; they must be alike: {why}",
                )


def need(op: str, name: str, x: Placed, kinds: Sequence[type], why: str) -> None:
    """None; raises PlacementError unless ``x`` is placed in one of these ways."""
    if not isinstance(x, Placed):
        raise PlacementError(
            f"{op} takes {name} with its placement, got {type(x).__name__}: "
            f"replicate(x), partial(x) or shard(group, x, dim)"
        )
    if not isinstance(x.placement, tuple(kinds)):
        names = " or ".join(kind.__name__ for kind in kinds)
        refuse(op, f"{name} must be {names}, got {x}: {why}")


def fits(group: Group, op: str, name: str, x: Placed) -> None:
    """None; raises PlacementError unless ``x`` is one of this rank's blocks in this group."""
    if x.local is None or ANY in x.tiling.mesh:
        return
    over, here = x.tiling.mesh, tuple(x.local.shape)
    if over != group.mesh:
        refuse(
            op,
            f"{name} is {x} over {' x '.join(map(str, over))} ranks ({x.shards}), and rank "
            f"{group.rank} of this group of {group.size} has {list(here)} of it; place it again "
            f"on this group, from the whole",
        )
    wanted = x.tiling.block_shape(group.place)
    if here != wanted:
        refuse(
            op,
            f"rank {group.rank} of {group.size} holds {list(wanted)} of {name} {list(x.shape)}, "
            f"got {list(here)}; place it from the whole",
        )


def same_placement(op: str, name: str, x: Placed, other_name: str, other: Placed) -> None:
    """None; raises PlacementError unless both have the same placement."""
    if x.tiling is not other.tiling and x.tiling != other.tiling:
        refuse(
            op,
            f"{name} and {other_name} must have the same placement, got {x} "
            f"({x.shards or 'whole'}) and {other} ({other.shards or 'whole'}); "
            f"bring one to the other's placement by g or gathered",
        )


def refuse(op: str, reason: str) -> NoReturn:
    """Raises PlacementError."""
    raise PlacementError(f"{op}: {reason}")
