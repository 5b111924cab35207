"""What convolutions call when they are split over ranks, and whether a run called it.

                        forward                    backward
by output channels      -, or all_gather of y      all_reduce of dx
by rows of the image    halo_exchange              halo_reduce, all_reduce of dw and db

A call is (label, kind, its Traffic: bytes and messages by rank).
"""

from math import prod

from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.collectives.rows import halo_strips, split_rows
from tiledask.plan.products.traffic import Traffic


def all_reduced(label, elements, ranks, itemsize):
    """One all_reduce of an array; none of a rank alone."""
    chosen, counts = default("all_reduce", ranks), even(elements, ranks)
    moved = cost("all_reduce", chosen, counts, itemsize)
    return [(label, "all_reduce", moved)] if ranks > 1 else []


def by_output(x, ranks):
    """Each rank has some output channels of a convolution of x [n, c, h, w]."""
    return all_reduced("backward/dx", prod(x.shape), ranks, x.itemsize)


def in_rows(x, w, bias, rows, windows):
    """Each rank has ``rows`` of the images x [n, c, h, w], and all of w.

    Between two neighbours 2 floor(k/2) n c w elements each way for an odd size k and stride 1.
    """
    of_rows = windows.size[0], windows.stride[0], windows.padding[0], windows.dilation[0]
    split, row_bytes = split_rows(rows, *of_rows), x.itemsize * x.size // x.shape[2]
    strips = halo_strips(split.rows, split.before, split.after)
    there = [(s.source, s.destination, row_bytes * s.size) for s in strips]
    back = [(destination, source, size) for source, destination, size in there]
    lent, returned = (Traffic.of(len(rows), moves) for moves in (there, back))
    calls = [("forward/halo", "halo_exchange", lent), ("backward/halo", "halo_reduce", returned)]
    dw = all_reduced("backward/dw db", w.size + bias * len(w), len(rows), x.itemsize)
    return [*(calls if there else []), *dw]


def assert_calls(records, calls, ranks):
    """Every rank's collectives are ``calls``, and what they moved is counted as predicted."""
    for r in range(ranks):
        said = [(label, kind, *moved.of_rank(r)) for label, kind, moved in calls]
        mine = records.where(rank=r)
        assert [(x.label, x.kind, x.sent, x.received, x.messages) for x in mine] == said, r
        assert [x.barrier for x in mine] == list(range(len(calls))), r
    assert not len(records.mismatches)
