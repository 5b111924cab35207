"""The collectives of a linear layer on a grid of p x q ranks, or d of them, before anything runs.

For every panel of x's columns, which are w's rows:

forward    its part of x to the q ranks of the row, its part of w to the p ranks of the column
backward   w's again, and the sum of dx to its owner; x's again, and the sum of dw to its owner
"""

from collections.abc import Iterable, Iterator
from math import prod
from typing import NamedTuple

from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.collectives.layers import LayerCalls
from tiledask.plan.collectives.panels import panels
from tiledask.plan.products.placement import Shard, Tiling
from tiledask.plan.products.shards import even_shards

__all__ = ["GridCall", "bytes_by_place", "summa_linear"]


class GridCall(NamedTuple):
    """One collective along one axis of the mesh."""

    label: str
    kind: str
    elements: int
    members: tuple[int, ...]
    """Ranks of the mesh, row-major."""
    root: int = 0
    """Number of a member."""


def summa_linear(
    tokens: int, inputs: int, outputs: int, mesh: tuple[int, ...], bias: bool = False
) -> LayerCalls[GridCall]:
    """Of y [tokens, outputs] = x w, all in blocks, on a mesh (p, q) or (d, p, q).

    >>> [call.elements for call in summa_linear(4, 4, 4, (2, 2)).forward]
    [4, 4, 4, 4, 4, 4, 4, 4]
    """
    d, p, q = (1, *mesh)[-3:]
    of_tokens = Tiling((tokens,), (d, p), (Shard(0), Shard(0)))
    of_outputs = even_shards(outputs, q).counts
    of_inputs = even_shards(inputs, p).counts

    def rank(k: int, i: int, j: int) -> int:
        return (k * p + i) * q + j

    def along_panels(kinds: Iterable[str]) -> Iterator[GridCall]:
        for panel in panels(inputs, p, q):
            for kind in kinds:
                for k, i in of_tokens.coordinates():
                    size = of_tokens.block_shape((k, i))[0] * panel.extent
                    row = tuple(rank(k, i, j) for j in range(q))
                    yield GridCall(way, kind, size, row, panel.column)
                for k in range(d):
                    for j, count in enumerate(of_outputs):
                        column = tuple(rank(k, i, j) for i in range(p))
                        yield GridCall(way, kind, count * panel.extent, column, panel.row)

    def sums() -> Iterator[GridCall]:
        for j, count in enumerate(of_outputs):
            for k in range(d if bias else 0):
                yield GridCall(way, "all_reduce", count, tuple(rank(k, i, j) for i in range(p)))
            for i, rows in enumerate(of_inputs):
                copies = tuple(rank(k, i, j) for k in range(d))
                yield GridCall(way, "all_reduce", rows * count, copies)
                if bias:
                    yield GridCall(way, "all_reduce", count, copies)

    way = "summa_linear/forward"
    forward = _real(along_panels(["broadcast"]))
    way = "summa_linear/backward"
    return LayerCalls(forward, _real(along_panels(["broadcast", "reduce"])) + _real(sums()))


def bytes_by_place(
    calls: Iterable[GridCall], mesh: tuple[int, ...], itemsize: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(sent, received) in bytes by each rank of the mesh."""
    sent, received = ([0] * prod(mesh) for _ in range(2))
    for call in calls:
        n = len(call.members)
        chunks = even(call.elements, n)
        each = cost(call.kind, default(call.kind, n), chunks, itemsize, call.root)
        for i, rank in enumerate(call.members):
            sent[rank] += each.sent[i]
            received[rank] += each.received[i]
    return tuple(sent), tuple(received)


def _real(calls: Iterable[GridCall]) -> tuple[GridCall, ...]:
    """Those of more than one rank."""
    return tuple(call for call in calls if len(call.members) > 1)
