"""Groups of programs: bits, bytes and records of a Group, on threads and on workers."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.run import TRANSPORTS
from tiledask.distributed.ranks.threads import run_threads
from tiledask.tile import to_numpy

MESHES = (1,), (2,), (3,), (2, 2), (9,)
"""Alone, a pair, direct, groups along axes, and more ranks than go directly."""
DTYPES = "float64", "float32", "float16", "bfloat16", "int32", "complex128"


def group_of(rank, checked):
    """The ranks along axis 0; unless ``checked`` those whose calls were checked before."""
    whole = rank.group(0)
    return whole if checked else Group(rank, whole.axes, whole.members, checked=False)


def array(rank, shape, dtype):
    x = np.random.default_rng(rank).standard_normal(shape) * 100
    return x.astype(td.tile.as_dtype(dtype))


def everything(rank, case, checked=False):
    """All kinds of collectives, on the rank's device."""
    shape, dtype, algorithm, op, keep = case
    g, x = group_of(rank, checked), rank.on_device(array(rank.index, shape, dtype))
    n, rows = g.size, [r % 3 for r in range(g.size)]
    whole = rank.on_device(array(rank.index, (sum(rows), 2), dtype))
    how = {"keep": keep, "algorithm": algorithm}
    with rank.step(3), rank.label("layer"):
        made = [g.all_reduce(x, op, label="sum", **how)]
        made.append(g.all_gather(x, -1, label="gather", **how))
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
    return [to_numpy(each) for each in made]


def bits(results):
    return [[(a.dtype, a.shape, a.tobytes()) for a in mine] for mine in results]


def assert_as(done, reference):
    """The same bits, bytes and records, whose bytes are those predicted; but for the time."""
    assert bits(done.results) == bits(reference.results)
    records = [[r._replace(begin=0.0, end=0.0) for r in each.records] for each in (done, reference)]
    assert records[0] == records[1]
    assert done.traffic == reference.traffic
    assert len(done.records.mismatches) == 0


CASES = st.tuples(
    st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.sampled_from([None, "ring", "tree", "direct"]),
    st.sampled_from(["sum", "max", "min"]),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MESHES), CASES)
@example((9,), ((5, 3), "float16", None, "sum", True))
@example((3,), ((50_000,), "float64", "tree", "sum", True))
@example((3,), ((0, 4), "bfloat16", None, "sum", False))
@example((2, 2), ((300, 300), "float32", "ring", "sum", False))
def test_bits_bytes_and_records_of_a_group(mesh, case):
    if case[1] == "complex128":
        case = (*case[:3], "sum", case[4])
    done = run_threads(everything, mesh, case, timeout=240)
    assert_as(done, run_threads(everything, mesh, case, True, timeout=240))


def test_what_is_kept_is_not_copied_and_what_is_not_may_be_changed():
    def program(rank, keep, sent):
        g = group_of(rank, False)
        if rank.index == 1:
            came = g.recv(0)
            return came.tolist(), np.shares_memory(came, sent)
        g.send(sent, 1, keep=keep)
        return None

    for keep in (True, False):
        done = run_threads(program, 2, keep, np.zeros(4))
        assert done.results[1] == ([0.0] * 4, keep)


@pytest.mark.cluster
@pytest.mark.parametrize("way", TRANSPORTS)
@pytest.mark.parametrize("checked", [False, True])
def test_on_workers_as_on_threads(cluster, way, checked):
    """Large enough to be read from their owners' memory, too."""
    for shape, dtype in (((7, 5), "bfloat16"), ((300, 400), "float32")):
        case, mesh = (shape, dtype, None, "sum", not checked), td.Mesh(cluster, (4,))
        done = td.run_ranks(everything, mesh, case, checked, transport=way, timeout=240)
        assert_as(done, run_threads(everything, 4, case, checked))
        begun = [r.begin for r in done.records]
        assert max(begun) - min(begun) < 60.0
        assert abs(max(begun) - now()) < 60.0  # one clock, that of the day
