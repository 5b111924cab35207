"""Groups of programs: bits, bytes and records of a Group, and what is said when a rank is gone.

Holds `tiledask.distributed.ranks.rounds` and `tiledask.distributed.ranks.group`.
"""

import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.run import TRANSPORTS
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import CollectiveError

MESHES = (1,), (2,), (3,), (2, 2), (9,)
"""Alone, a pair, direct, groups along axes, and more ranks than go directly."""
DTYPES = "float64", "float32", "float16", "bfloat16", "int32", "complex128"


def group_of(rank, checked, axis=None):
    """The ranks along ``axis``; unless ``checked`` those whose calls were checked before."""
    whole = rank.group(axis)
    return whole if checked else Group(rank, whole.axes, whole.members, stream="")


def array(rank, shape, dtype):
    x = np.random.default_rng(rank).standard_normal(shape) * 100
    return x.astype(td.tile.as_dtype(dtype))


def everything(rank, case, checked=False):
    """All kinds of collectives."""
    shape, dtype, dim, op, keep = case
    g, x = group_of(rank, checked, 0), array(rank.index, shape, dtype)
    n, rows = g.size, [r % 3 for r in range(g.size)]
    whole = array(rank.index, (sum(rows), 2), dtype)
    how = {"keep": keep}
    with rank.step(3), rank.label("layer"):
        made = [g.all_reduce(x, op, label="sum", **how)]
        made.append(g.all_gather(x, dim, label="gather", **how))
        how |= {"extents": rows}
        made.append(g.reduce_scatter(whole, 0, op, label="scatter", **how))
        halo = {"dim": 0, "before": 1, "after": 1, "extents": rows, "label": "halo"}
        made.append(g.halo_exchange(whole[: rows[g.rank]], **halo))
        made.append(g.halo_reduce(made[-1], **halo))
        made.append(g.all_to_all(whole, 0, 1, extents=rows, label="swap"))
        with rank.label("root"):
            made.append(g.broadcast(x, n - 1))
            total = g.reduce(x, n // 2, op)
            made += [] if total is None else [total]
        if n > 1:
            g.send(x, (g.rank + 1) % n, label="shift", keep=keep)
            made.append(g.recv((g.rank - 1) % n, label="shift"))
    return made


def bits(results):
    return [[(a.dtype, a.shape, a.tobytes()) for a in mine] for mine in results]


def facts(records):
    """All but how long it took."""
    return [r._replace(begin=0.0, end=0.0) for r in records]


CASES = st.tuples(
    st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.just(0),
    st.sampled_from(["sum", "max", "min"]),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MESHES), CASES)
@example((9,), ((5, 3), "float16", 1, "sum", True))
@example((3,), ((50_000,), "float64", 0, "sum", True))
@example((3,), ((0, 4), "bfloat16", 1, "sum", False))
@example((2, 2), ((300, 300), "float32", 1, "sum", False))
def test_bits_bytes_and_records_of_a_group(mesh, case):
    if case[1] == "complex128":
        case = (*case[:3], "sum", case[4])
    done = run_threads(everything, mesh, case, timeout=240)
    reference = run_threads(everything, mesh, case, True, timeout=240)
    assert bits(done.results) == bits(reference.results)
    assert facts(done.records) == facts(reference.records)
    assert done.traffic == reference.traffic
    assert len(done.records.mismatches) == 0
    assert all(r.begin <= r.end for r in done.records)


def test_what_is_kept_is_not_copied_and_what_is_not_may_be_changed():
    sent = {}

    def program(rank, keep):
        g, x = group_of(rank, False), np.full(4, float(rank.index))
        if rank.index == 0:
            sent[keep] = x
            g.send(x, 1, keep=keep)
            if not keep:
                x += 7
            return None
        came = g.recv(0)
        assert came.tolist() == [0.0] * 4
        return np.shares_memory(came, sent[keep])

    assert run_threads(program, 2, True).results == [None, True]
    assert run_threads(program, 2, False).results == [None, False]

    def summed(rank):
        g, kept = group_of(rank, False), []
        for make in (g.all_reduce, g.all_gather, lambda x: g.reduce_scatter(x, extents=[4, 4])):
            x = np.ones(8)
            kept.append(make(x))
            x += 100 * rank.index
            kept[-1] += rank.index
        return [k.tolist() for k in kept]

    for r, kept in enumerate(run_threads(summed, 2).results):
        assert kept == [[2.0 + r] * 8, [1.0 + r] * 16, [2.0 + r] * 4]


# -- ranks that are gone --------------------------------------------------------------------------


def waiting(rank, raises):
    """Rank 1 does not come to the second sum."""
    g = group_of(rank, False)
    g.all_reduce(np.ones(3), label="first")
    if rank.index == 1:
        time.sleep(0.2)
        if raises:
            raise KeyError("weights of layer 3")
        return
    g.all_reduce(np.ones(3), label="loss")


def test_a_rank_that_raises_or_returns_is_named_with_what_waits_for_it():
    with pytest.raises(KeyError) as caught:
        run_threads(waiting, 3, True, timeout=240)  # or it would be a DeadlineError
    assert "raised by rank 1 outside of its collectives" in "".join(caught.value.__notes__)
    with pytest.raises(CollectiveError) as caught:
        run_threads(waiting, 3, False, timeout=240)
    for words in (
        "waits for rank 1 in all_reduce among ranks 0, 1, 2, labelled 'loss'",
        "rank 1 has returned: its last collective was all_reduce among ranks 0, 1, 2",
    ):
        assert words in str(caught.value)


@pytest.mark.cluster
@pytest.mark.parametrize("way", TRANSPORTS)
@pytest.mark.parametrize("keep", [False, True])
def test_on_workers_as_on_threads(cluster, way, keep):
    """Large enough to be read from their owners' memory, too."""
    for shape in ((7, 5), (300, 400)):
        case = shape, "float32", 1, "sum", keep
        done = td.run_ranks(everything, td.Mesh(cluster, (4,)), case, transport=way, timeout=240)
        reference = run_threads(everything, 4, case, True)
        assert bits(done.results) == bits(reference.results)
        assert facts(done.records) == facts(reference.records)
        assert done.traffic == reference.traffic
