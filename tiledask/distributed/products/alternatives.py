"""What would fit instead of a product that does not; each way out is planned before it is named."""

from dataclasses import replace
from math import prod

from tiledask.distributed.cluster.room import Room
from tiledask.distributed.products.explain import Explanation, ProductQuestion
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import algorithms, grids
from tiledask.plan.products.product_plan import RUNTIME
from tiledask.plan.units import format_bytes

__all__ = ["refusal"]

RANKS = 64
"""The most ranks of a mesh that is tried: of more, planning takes longer than one waits for an
error."""


def refusal(found: Explanation, room: Room, question: ProductQuestion) -> Exception:
    """Why nothing that was ``found`` of a question is chosen: a DoesNotFitError with what would fit
    instead; a PlacementError where memory is not what is wrong."""
    a, b, only = question.a, question.b, question.algorithm
    able = [c for c in found.choices if c.plan is not None and (c.same_mesh or only)]
    if not able:
        return PlacementError(found.choices[-1].why_not)
    least = min(able, key=lambda c: c.peak)
    ways = []
    if only or question.panel:
        others = (replace(question, algorithm=n, panel=None) for n in algorithms if n != only)
        fitting = (other.algorithm for other in others if other.weigh(room.bytes).chosen)
        ways += [f"algorithm={name!r}" for name in fitting][:1]
    if mesh := _mesh(room.elsewhere(), question):
        by, this = ("x".join(map(str, shape)) for shape in (mesh, a.mesh))
        ways.append(f"a mesh of {by} ranks (this is {this})")
    if more := room.raised(least.peak):
        ways.append(more)
    return DoesNotFitError(
        f"no plan of A {a.shape} @ B {b.shape} fits: {least.algorithm}"
        f"{', ' + least.options if least.options else ''} needs least, "
        f"{format_bytes(least.peak)} on a rank, allowed are {room}. What would fit: "
        f"{'; or '.join(ways) or 'operands in files, td.open_array'}"
    )


def _mesh(allowed: int, question: ProductQuestion) -> tuple[int, ...] | None:
    """A mesh of 2, 4, 8, ... times as many ranks on which the product fits; None if none does."""
    a, b, ranks = question.a, question.b, question.a.ranks
    whole = prod(a.shape) + prod(b.shape) + prod((*a.shape[:-1], *b.shape[1:]))
    while a.mesh == b.mesh and (ranks := 2 * ranks) <= max(RANKS, 2 * a.ranks):
        if RUNTIME + whole * question.itemsizes[0] // ranks > allowed:
            continue
        for mesh in sorted(grids(ranks, len(a.mesh)), key=max):
            A, B = (Tiling(t.shape, mesh, t.placements) for t in (a, b))
            if replace(question, a=A, b=B, rates=None).weigh(allowed).chosen:
                return mesh
    return None
