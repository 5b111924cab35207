"""What tests of tensor-parallel layers share: run on threads, compare with one device, count."""

import numpy as np
from oracles.closed_layers import bytes_by_rank

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.plan.program.count import calls

RANKS = range(1, 9)
LIES = [(False, False), (True, False), (True, True)]
"""(sequence, regather) of a layer's input."""
B, S = 2, 7
"""Sequences of a batch, and their tokens."""
TOLERANCE = 1e-12
"""Of the largest element, in float64."""


def spread(group, x, sequence):
    """x [b, s, h] on every rank, or sharded along its tokens."""
    return T.shard(group, x, 1) if sequence else T.replicate(x)


def assert_close(got, expected, what=""):
    """To 1e-12 of the largest element, whatever the elements."""
    assert got.shape == expected.shape, f"{what}: {got.shape}, not {expected.shape}"
    assert got.dtype == expected.dtype, what
    largest = np.abs(expected).max(initial=0.01)  # of a key's bias the gradient is 0
    off = np.abs(got - expected).max(initial=0.0)
    assert off <= TOLERANCE * largest, f"{what}: off by {off:.3g} of {largest:.3g}"


def check(t, program, expected, planned):
    """``program(group)``, of one layer, on t ranks: what it returns is what one device finds, and
    what it calls is ``planned`` (not looked at if None) and what the layer's program says, to the
    byte and in that order, on every rank."""

    def bound(rank):
        found = program(rank.group())
        (layer,) = rank.group().bound.values()
        planned = calls(layer.program.check(), rank.index)
        said = [(c.label.partition("/")[2], *c[1:]) for c in planned]
        assert said == [(r.label, r.kind, r.sent, r.received, r.messages) for r in rank.records]
        return found

    done = run_threads(bound, t, timeout=240)
    assert not len(done.records.mismatches)
    assert set(done.results[0]) == set(expected)
    for name, value in expected.items():
        blocks = [result[name] for result in done.results]
        if isinstance(value, np.ndarray) and isinstance(blocks[0], T.Placed):
            assert_close(T.whole_of(blocks), value, name)
        else:
            assert len({float(block) for block in blocks}) == 1, f"{name} differs by rank"
            assert abs(float(blocks[0]) - value) <= TOLERANCE * abs(value), name
    if planned is not None:
        assert_calls(done, planned, t)
    return done


def assert_calls(done, planned, t, itemsize=8):
    """What every rank called is what was planned: label, kind, ranks, bytes, messages, barriers."""
    for rank in range(t):
        mine = [call for call in planned.calls if rank in call.members]
        moved = [each.cost(itemsize).of_rank(each.members.index(rank)) for each in mine]
        wanted = [
            (each.label, each.kind, each.members, *of_rank, number)
            for number, (each, of_rank) in enumerate(zip(mine, moved, strict=True))
        ]
        counted = [
            (r.label, r.kind, r.group, r.sent, r.received, r.messages, r.barrier)
            for r in done.records.where(rank=rank)
        ]
        assert counted == wanted, f"rank {rank}: counted {counted}, planned {wanted}"
    totals = done.records.totals("rank")
    found = [(totals[r].sent, totals[r].received) if r in totals else (0, 0) for r in range(t)]
    assert found == [*zip(*bytes_by_rank(planned.calls, t, itemsize), strict=True)]
