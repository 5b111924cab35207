"""What may be placed how: one rule by einsum letters, before anything is computed.

    column_linear   *K Kn! n! -> *n!    K is whole; n is sharded, of b as of w, and so is y
    row_linear      *k! k!N N -> *N     k is sharded, of x as of w: y is a sum over ranks
    mlp             *H -> *H            only tokens (*) may be sharded; y is placed as x is

Nothing may be Partial: gelu(a + b) is not gelu(a) + gelu(b), and a bias added to t partial sums is
there t times.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed
from tiledask.errors import PlacementError
from tiledask.plan.products.placement import ANY, Partial, Replicate, Shard, Shards, Tiling

__all__ = ["check_order", "need", "propagate", "refuse"]


def propagate(group: Group, op: str, rule: str, why: str, **operands: Placed | None) -> Placed:
    """How the result is placed; raises PlacementError unless the ``operands`` go together.

    ``rule``: the letters of each and of the result. A capital one is whole, one with ! is sharded,
    and one that operands share is sharded alike; ``*`` are the dimensions of tokens. ``why``: the
    reason, and the way out.
    """
    (texts, result), given = rule.split(" -> "), list[tuple[str, str, Tiling, Any]]()
    for text, (name, x) in zip(texts.split(), operands.items(), strict=True):
        if x is not None:
            need(op, name, x, (Replicate, Shard, Partial), why)
            given.append((text, name, x.tiling, getattr(x.local, "shape", None)))
    return Placed(None, _propagated(op, tuple(given), result, why, group.size, group.rank))


@lru_cache(4096)
def _propagated(
    op: str,
    given: tuple[tuple[str, str, Tiling, Any], ...],
    result: str,
    why: str,
    size: int,
    rank: int,
) -> Tiling:
    """The tiling of the result, of operands' (letters, name, tiling, shape of what is here) on a
    group of so many ranks, of which this is one."""
    letters: dict[str, tuple[str, int, Shards | None]] = {}
    """Letter -> the first operand that has it, its extent there, and how it is sharded."""
    for text, name, tiling, here in given:
        x = Placed(None, tiling)
        dims, sharded = re.findall(r"\w", text), re.findall(r"(\w)!", text)
        whole = text.isalpha() and text.isupper()
        kinds = (Shard,) if sharded else (Replicate,) if whole else (Replicate, Shard)
        need(op, name, x, kinds, why)
        first = x.ndim - len(dims)
        at = None if x.dim is None else "*" if x.dim < first else dims[x.dim - first]
        if first < 0 or (first and "*" not in text):
            refuse(op, f"{name} has {len(dims)} dimensions, got {x}")
        if (at and at.isupper()) or (sharded and at not in sharded):
            refuse(op, f"{name} is sharded along another dimension than it may be, {x}: {why}")
        fits = tiling.mesh == (size,) and tuple(here or ()) == tiling.block_shape((rank,))
        if here is not None and ANY not in tiling.mesh and not fits:
            refuse(
                op,
                f"{name} is {tiling} over {tiling.ranks} ranks, and rank {rank} of this group of "
                f"{size} has {list(here)} of it; place it again on this group",
            )
        for letter, extent in zip(dims, x.shape[first:], strict=True):
            mine = extent, x.shards if letter == at else None
            other, *theirs = letters.setdefault(letter, (name, *mine))
            if [*mine] != theirs:
                refuse(
                    op,
                    f"{name} has {extent} there, sharded as {mine[1]}, and {other} {theirs[0]}, "
                    f"as {theirs[1]}; they must be alike: {why}",
                )
    text, _, tiling, _ = given[0]
    if text == result:
        return tiling
    tokens = tiling.shape[: len(tiling.shape) - len(re.findall(r"\w", text))]
    made = re.findall(r"\w", result)
    shape = (*tokens, *(letters[letter][1] for letter in made))
    if "!" in result:
        last = Shard(len(shape) - 1)
        return Placed.of(None, last, shape, letters[made[-1]][2]).tiling
    return Placed.of(None, Partial(), shape).tiling


def need(op: str, name: str, x: Placed, kinds: Sequence[type], why: str) -> None:
    """Refuse ``x`` unless it is placed in one of these ways."""
    if not isinstance(x, Placed):
        raise PlacementError(
            f"{op} takes {name} with its placement, got {type(x).__name__}: "
            f"replicate(x), partial(x) or shard(group, x, dim)"
        )
    if not isinstance(x.placement, tuple(kinds)):
        names = " or ".join(kind.__name__ for kind in kinds)
        refuse(op, f"{name} must be {names}, got {x}: {why}")


def check_order(op: str, name: str, x: Placed) -> None:
    """Refuse ``x`` unless its parts, if it has any, are one behind the other."""
    if x.shards and not x.shards.in_a_row:
        refuse(
            op,
            f"the ranks' parts of {name}, {x}, are not one behind the other ({x.shards}): they "
            f"would be mixed up, or counted several times",
        )


def refuse(op: str, reason: str) -> NoReturn:
    raise PlacementError(f"{op}: {reason}")
