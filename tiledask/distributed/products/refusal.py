"""What would fit instead of a product that does not; each way out is planned before it is named."""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tiledask.distributed.cluster.room import Room
from tiledask.distributed.products.explain import Explanation, ProductQuestion
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import algorithms, grids
from tiledask.plan.products.product_plan import RUNTIME
from tiledask.plan.units import format_bytes, format_up

__all__ = ["refusal"]

RANKS = 64
"""The most ranks of a mesh that is tried: of more, planning takes longer than one waits for an
error."""


def refusal(
    found: Explanation,
    room: Room,
    question: ProductQuestion,
    limits_of_files: Callable[[], tuple[int, int]] | None,
) -> Exception:
    """Why nothing that was ``found`` of a question is chosen: a DoesNotFitError with what would fit
    instead.

    ``limits_of_files`` gives the least bytes in which the operands are multiplied if they lie in
    files, and the least that is worth it; None if they cannot lie there. A PlacementError where
    memory is not what is wrong.
    """
    a, b, only = question.a, question.b, question.algorithm
    able = [c for c in found.choices if c.plan is not None and (c.same_mesh or only)]
    if not able:
        return PlacementError(found.choices[-1].why_not)
    least = min(able, key=lambda c: c.peak)
    ways = []
    if only or question.options:
        free = replace(question, options=())
        fitting = (n for n in algorithms if free.fits(n, room.bytes))
        ways += [f"algorithm={name!r}" for name in fitting if name != only][:1]
    mesh = _mesh(room.elsewhere(), question)
    if mesh:
        ways.append(f"a mesh of {_by(mesh)} ranks (this is {_by(a.mesh)})")
    if slots := room.slots(least.peak):
        ways.append(f"workers that have it, td.Mesh(cluster, {a.mesh}, slots={slots})")
    if more := room.raised(least.peak):
        ways.append(more)
    least_limit, limit = limits_of_files() if limits_of_files else (0, 0)
    # while the blocks of A and B still lie there
    held = sum(max(prod(t.block_shape(at)) for at in t.coordinates()) for t in (a, b))
    held *= question.itemsizes[0]
    if 0 < limit <= room.at_hand() - held:
        ways.append(
            f"operands in files, td.matmul(td.open_array(...), td.open_array(...), out=..., "
            f"cluster=..., memory_limit={format_up(limit)!r}), which takes "
            f"{format_up(least_limit)} at least"
        )
    none = (
        ""
        if mesh
        else (
            f" No mesh does: on any of them {format_bytes(RUNTIME)} of a rank are the runtime's."
            if room.elsewhere() <= RUNTIME
            else f" No mesh of up to {max(RANKS, 2 * a.ranks)} ranks was found that does."
        )
    )
    return DoesNotFitError(
        f"no plan of A {a.shape} @ B {b.shape} fits: {least.algorithm}"
        f"{', ' + least.options if least.options else ''} needs least, "
        f"{format_bytes(least.peak)} on a rank, allowed are {room}. What would fit: "
        f"{'; or '.join(ways) or 'nothing on this machine'}.{none}"
    )


def _by(mesh: tuple[int, ...]) -> str:
    return "x".join(map(str, mesh))


def _mesh(allowed: int, question: ProductQuestion) -> tuple[int, ...] | None:
    """A mesh of 2, 4, 8, ... times as many ranks on which the product fits; None if none does."""
    a, b, only = question.a, question.b, question.algorithm
    whole = prod(a.shape) + prod(b.shape) + prod((*a.shape[:-1], *b.shape[1:]))
    ranks = a.ranks
    while a.mesh == b.mesh and (ranks := 2 * ranks) <= max(RANKS, 2 * a.ranks):
        if RUNTIME + whole * question.itemsizes[0] // ranks > allowed:
            continue
        for mesh in sorted(grids(ranks, len(a.mesh)), key=max):
            A, B = (Tiling(t.shape, mesh, t.placements) for t in (a, b))
            there = replace(question, a=A, b=B)
            for name in [only] if only else algorithms:
                if there.fits(name, allowed, elsewhere=only is not None):
                    return mesh
    return None
