"""Clocks: an offset is found to within the error that is said, and noise is no offset."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tiledask as td
from tiledask.distributed.cluster import clocks
from tiledask.distributed.cluster.clocks import clock_of, set_clocks

WAY = st.floats(1e-4, 1.0)


@given(st.floats(-1e4, 1e4), st.lists(st.tuples(WAY, WAY), min_size=1, max_size=9))
@example(1.0, [(0.1, 0.1)])
def test_the_offset_is_right_to_within_its_error(offset, ways):
    trips, at = [], 100.0
    for there, back in ways:
        trips.append((at, at + there + offset, at + there + back))
        at += there + back + 1
    found, error = clock_of(trips)
    rounding = 1e-9
    assert abs(found - offset) <= error + rounding
    # taken for none, it may be twice as much: once for the noise, once for what is there
    half = min(there + back for there, back in ways) / 2
    most = half if found else 2 * half
    assert half - 1e-6 <= error <= most + 1e-6


def shift(seconds, dask_worker):
    """Let the clock of slot 1's worker be ahead by so much, or be right again."""
    if "slot1" in dask_worker.state.total_resources:
        ahead = SimpleNamespace(time=lambda: time.time() + seconds, sleep=time.sleep)
        clocks.time = ahead if seconds else time


@pytest.fixture
def one_clock_is_ahead(cluster):
    cluster.run(shift, 1000.0)
    yield cluster
    cluster.run(shift, 0.0)
    set_clocks(cluster)


@pytest.mark.cluster
@pytest.mark.parametrize("engine", ["tasks", "loop"])
def test_a_clock_that_is_ahead_is_set_back(one_clock_is_ahead, engine):
    cluster = one_clock_is_ahead
    found = set_clocks(cluster)
    assert [offset == 0 for offset, _ in found] == [True, False, True, True]
    assert abs(found[1][0] + 1000) <= found[1][1]
    schedule = td.schedule("1f1b", 2, 3)
    run = td.run_schedule(schedule, cluster=cluster, forward=0.01, backward=0.01, engine=engine)
    assert run.timeline.makespan < 900
    # what device 1 does comes after what it needs of device 0, but for the clock's error
    end = {
        (r.kind, r.stage, r.microbatch): r
        for r in run.timeline.to_frame().itertuples()
        if r.kind != "T"
    }
    for i in range(3):
        assert end["F", 1, i].start > end["F", 0, i].end - run.clock_error
        assert end["B", 0, i].start > end["B", 1, i].end - run.clock_error
    transfers = run.timeline.to_frame().query("kind == 'T'")
    assert len(transfers) == 6
    assert np.all(transfers.end < 900)
