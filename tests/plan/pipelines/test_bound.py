"""No order beats the bound, good ones reach it, and the critical path decides the makespan.

Holds `tiledask.plan.pipelines.closed_form` and `tiledask.plan.pipelines.idle`.
"""

from itertools import pairwise

import numpy as np
import pytest

from tiledask.plan.pipelines import closed_form as cf
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline


def test_a_split_backward_need_not_wait_for_the_way_back():
    text = "0F0,0F1,0I0,0W0,0I1,0W1 ; 1F0,1I0,1F1,1I1,1W0,1W1"
    t = simulate(Schedule.from_text(text), 1.0, 2.0)
    assert t.lower_bound == cf.lower_bound([1, 1], [2, 2], 2, split=True) == t.makespan == 7.0
    assert "device 1: 1 s until work reaches it, 6 s of work, 0 s" in t.bound.why


def test_what_binds_is_named():
    slow = simulate(schedule("1f1b", 3, 8), [1, 5, 1], [2, 9, 2])
    assert slow.critical_path.binds == "device 1"
    assert "device 1" in slow.bound.why
    far = simulate(schedule("1f1b", 3, 2), 1, 2, latency=50)
    assert far.critical_path.binds == "latency"
    alone = simulate(schedule("gpipe", 3, 1), [1, 5, 1], [2, 9, 2])
    assert alone.lower_bound == alone.makespan == 20


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "eager-1f1b"])
def test_each_action_on_the_path_waits_for_the_last_and_holds_up_the_end(name):
    s = schedule(name, 3, 4)
    F, B = np.full((3, 4), 2.0), np.full((3, 4), 3.0)
    base = simulate(s, F, B, latency=0.25)
    ran = {
        (k, s, i): (start, end)
        for k, s, i, start, end in base.to_frame().drop(columns="device").itertuples(index=False)
    }
    path = base.critical_path.actions
    for before, after in pairwise(path):
        hop = 0.25 if before.stage != after.stage else 0.0
        assert ran[after][0] == ran[before][1] + hop
    for action in path:
        longer = {"F": F.copy(), "B": B.copy()}
        longer[action.kind][action.stage, action.microbatch] += 1
        assert simulate(s, longer["F"], longer["B"], 0.25).makespan == base.makespan + 1


def test_a_measured_run_has_neither():
    t = Timeline.of(1, [(0, "F", 0, 0, 0.0, 1.0)], "measured")
    assert t.lower_bound is t.critical_path is t.bound is None


@pytest.mark.parametrize("p", range(1, 6))
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("latency", [0, 0.25, 0.5, 1])
def test_eager_1f1b_hides_the_latency_that_1f1b_pays(p, m, latency):
    forward, backward = 1.0, 2.0
    eager, usual = (
        simulate(schedule(name, p, m), forward, backward, latency)
        for name in ("eager-1f1b", "1f1b")
    )
    assert eager.makespan == pytest.approx(eager.lower_bound)
    assert eager.peak_in_flight == tuple(min(m, 2 * (p - s) - 1) for s in range(p))
    if latency and p > 2 and m > p:
        assert usual.makespan > eager.makespan
