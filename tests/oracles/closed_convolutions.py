"""What convolutions call when they are split over ranks, and whether a run called it.

                        forward                    backward
by output channels      -, or all_gather of y      all_reduce of dx
by rows of the image    halo_exchange              halo_reduce, all_reduce of dw and db
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tiledask.distributed.ranks.records import Records
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.collectives.rows import halo_strips, split_rows
from tiledask.plan.products.traffic import Traffic


class Expected(NamedTuple):
    """One collective before anything runs: bytes and messages by rank."""

    label: str
    kind: str
    moved: Traffic


def all_reduced(label: str, elements: int, ranks: int, itemsize: int) -> list[Expected]:
    """One all_reduce of an array; none of a rank alone."""
    chosen, counts = default("all_reduce", ranks), even(elements, ranks)
    moved = cost("all_reduce", chosen, counts, itemsize)
    return [Expected(label, "all_reduce", moved)] if ranks > 1 else []


def halo(
    label: str, rows: Sequence[int], before: int, after: int, row_bytes: int, back: bool = False
) -> list[Expected]:
    """One halo_exchange, or its adjoint halo_reduce (``back``); none if no row is lent.

    >>> halo("halo", [3, 3, 2], 1, 1, row_bytes=10)[0].moved.sent
    (10, 20, 10)
    """
    moves = []
    for strip in halo_strips(rows, before, after):
        ends = (strip.destination, strip.source) if back else (strip.source, strip.destination)
        moves.append((*ends, row_bytes * strip.size))
    kind = "halo_reduce" if back else "halo_exchange"
    return [Expected(label, kind, Traffic.of(len(rows), moves))] if moves else []


def by_output(x: Any, ranks: int) -> list[Expected]:
    """Each rank has some output channels of a convolution of x [n, c, h, w]."""
    return all_reduced("backward/dx", prod(x.shape), ranks, x.itemsize)


def in_rows(x: Any, w: Any, bias: bool, rows: Sequence[int], windows: Any) -> list[Expected]:
    """Each rank has ``rows`` of the images x [n, c, h, w], and all of w.

    Between two neighbours 2 floor(k/2) n c w elements each way for an odd size k and stride 1.
    """
    of_rows = windows.size[0], windows.stride[0], windows.padding[0], windows.dilation[0]
    split = split_rows(rows, *of_rows)
    lent = split.rows, split.before, split.after, x.itemsize * x.size // x.shape[2]
    dw = all_reduced("backward/dw db", w.size + bias * len(w), len(rows), x.itemsize)
    return [*halo("forward/halo", *lent), *halo("backward/halo", *lent, back=True), *dw]


def assert_calls(records: Records, calls: list[Expected], ranks: int) -> None:
    """Every rank's collectives are ``calls``, and what they moved is counted as predicted."""
    for r in range(ranks):
        said = [(c.label, c.kind, *c.moved.of_rank(r)) for c in calls]
        mine = records.where(rank=r)
        assert [(x.label, x.kind, x.sent, x.received, x.messages) for x in mine] == said, r
        assert [x.barrier for x in mine] == list(range(len(calls))), r
    assert not len(records.mismatches)
