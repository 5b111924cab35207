"""Schedules executed: the gradients of one device, the order of the schedule, honest clocks."""

import os
import signal
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from oracles.one_stack import one_device
from oracles.waiting import raised_late, wait_until

import tiledask as td
from tiledask.distributed.cluster.progress import RUNS
from tiledask.distributed.pipelines.pipeline import _act
from tiledask.distributed.pipelines.stages import flat, stack
from tiledask.errors import ClusterLostError, DeadlineError, DoesNotFitError
from tiledask.lab.sweep import schedule_on

pytestmark = pytest.mark.cluster

ENGINES = pytest.mark.parametrize("engine", ["tasks", "loop"])
SHAPE = {"width": 12, "hidden": 20, "dtype": "float64"}
ROUNDING = 1e-6
RNG = np.random.default_rng(0)
BATCH, TARGET = RNG.standard_normal((11, 12)), RNG.standard_normal((11, 12))
TWO, STAGES = td.schedule("gpipe", 2, 2), stack((0, 1, 2), **SHAPE)


def assert_in_order(run, schedule):
    """Each device did its actions one after the other as the schedule says, pairs at once."""
    pairs = np.split(schedule.paired, schedule.turns[1:-1])
    for device, order in enumerate(schedule.orders):
        turns = {str(action): turn for turn, action in enumerate(order)}
        frame = run.timeline.to_frame().query("device == @device and kind != 'T'").itertuples()
        rows = [(r.start, turns[f"{r.stage}{r.kind}{r.microbatch}"], r.end) for r in frame]
        assert [turn for _, turn, _ in sorted(rows)] == list(range(len(turns)))
        for (start, turn, end), (then, _, until) in pairwise(sorted(rows)):
            at_once = pairs[device][turn]
            assert (then, until) == (start, end) if at_once else then >= end


def small(name, m):
    """The schedule called ``name`` on 4 devices, with as few stages as it takes; those made for
    given times for uneven ones, searched, in little memory."""
    if name.endswith("-auto"):
        return td.schedule(name, 4, m, forward=[1, 3, 2, 1], memory_limit=3, latency=0.5)
    return schedule_on(name, 4, m)


@pytest.mark.few(len(td.schedules) // 2)
@pytest.mark.parametrize(("m", "engine"), [(6, "loop"), (5, "tasks"), (1, "tasks")])
@pytest.mark.parametrize("name", sorted(td.schedules))
def test_every_schedule_gives_the_gradients_of_one_device(cluster, name, m, engine):
    schedule = small(name, m)
    stages = stack(td.partition([1.0] * (schedule.stages + 3), schedule.stages).bounds, **SHAPE)
    run = td.run_schedule(schedule, stages, BATCH, cluster, target=TARGET, engine=engine)
    outputs, loss, gradients = one_device(stages, BATCH, TARGET)
    np.testing.assert_allclose(run.outputs, outputs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(flat(run.gradients), gradients, rtol=0, atol=1e-12)
    assert run.loss == pytest.approx(loss, abs=1e-12)
    assert run.traffic.predicted == run.traffic.measured
    assert_in_order(run, schedule)


def bits(run):
    """What comes out, to the bit."""
    return run.outputs.tobytes(), run.loss, flat(run.gradients).tobytes()


@ENGINES
def test_a_forward_and_a_backward_at_once_start_and_end_together(cluster, engine):
    s = td.schedule("dualpipev", 4, 6)
    times = {"forward": 0.01, "backward": 0.02, "overlapped": 0.024}
    run = td.run_schedule(s, cluster=cluster, engine=engine, **times)
    spans = {tuple(row[1:4]): row[4:] for row in run.timeline.to_frame().itertuples(index=False)}
    pairs = np.flatnonzero(s.paired).tolist()
    assert len(pairs) > 6
    for at in pairs:
        first, second = (spans[action] for action in list(s)[at : at + 2])
        assert first == second
        assert first[1] - first[0] >= 0.024 - ROUNDING
    assert run.simulated.makespan == td.simulate(s, 0.01, 0.02, overlapped=0.024).makespan
    t, idle = run.timeline, run.timeline.idle_time.total
    assert t.busy + sum(idle.values()) == pytest.approx(2 * t.makespan)
    assert idle["overhead"] > 0
    # nothing else made it longer than its actions and their order
    assert run.simulated.makespan - 1e-4 <= run.replayed.makespan <= t.makespan
    assert run.replayed.busy == pytest.approx(t.busy)


@ENGINES
def test_forward_only_with_transfers_where_they_arrive(cluster, engine):
    stages, schedule = stack((0, 2, 5), **SHAPE), td.schedule("gpipe", 2, 3, forward_only=True)
    run = td.run_schedule(schedule, stages, BATCH, cluster, engine=engine)
    outputs, *_ = one_device(stages, BATCH, TARGET)
    np.testing.assert_allclose(run.outputs, outputs, rtol=0, atol=1e-12)
    assert (run.loss, run.gradients) == (None, ())
    transfers = run.timeline.to_frame().query("kind == 'T'").sort_values("microbatch")
    # on the device that waits for them, of the stage whose block it is
    assert transfers[["device", "stage", "microbatch"]].values.tolist() == [
        *([1, 0, i] for i in range(3))
    ]


@ENGINES
def test_a_run_that_takes_too_long_ends(cluster, engine):
    given, options = (TWO, STAGES, BATCH, cluster), {"target": TARGET, "engine": engine}
    words = "not done after|until the run.s deadline"
    late = lambda s: td.run_schedule(*given, forward=2 * s, timeout=s, **options)  # noqa: E731
    raised_late(DeadlineError, words, late)
    # and nothing of it is left in the way of the next
    after = td.run_schedule(TWO, cluster=cluster, engine=engine)
    assert len(after.timeline.acts) == len(TWO)


FIVE = {"schedule": td.schedule("gpipe", 5, 2), "stages": stack(range(6), **SHAPE)}
REFUSED = [
    ({"stages": STAGES[:1]}, "got 1 stages"),
    (FIVE, "5 ranks, the cluster has 4 slots"),
    ({"batch": BATCH[:, :5]}, r"of width 12, a batch of \(11, 5\)"),
    ({"batch": BATCH[:1], "target": TARGET[:1]}, "at least 2 tokens"),
    ({"target": None}, "a target of None"),
    ({"target": TARGET[:3]}, r"a target of \(3, 12\)"),
    ({"engine": "threads"}, "no engine 'threads'; there are tasks, loop"),
    ({"cluster": None}, "td.start_cluster"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=lambda value: f"{value}"[:20])
def test_what_cannot_run_is_refused_before_it_does(cluster, changes, words):
    usual = {"schedule": TWO, "stages": STAGES, "batch": BATCH, "target": TARGET}
    with pytest.raises((ValueError, TypeError), match=words):
        td.run_schedule(**usual | {"cluster": cluster} | changes)


@ENGINES
def test_dummies_go_the_whole_way_and_take_their_time(cluster, engine):
    """And are announced, with what is predicted and every action."""
    schedule, last, latency = td.schedule("zb-h1", 3, 4), [0, 0, 0.1], [0.01, 0.03]
    times = np.arange(1, 13).reshape(3, 4) / 1000
    given = {"forward": times, "latency": latency, "backward_input": 0.002}
    given |= {"backward_weight": last}
    run = td.run_schedule(schedule, cluster=cluster, engine=engine, **given)
    assert (run.outputs.tolist(), run.loss, run.gradients) == ([[0.0]] * 4, None, ([], [], []))
    assert run.traffic.measured == run.traffic.predicted
    assert run.traffic.measured.total == 2 * 2 * 4 * 8  # a number per boundary and micro-batch
    assert_in_order(run, schedule)
    rows = [*run.timeline.to_frame().query("kind != 'T'").itertuples()]
    when = {(r.kind, r.stage, r.microbatch): r for r in rows}
    for (kind, s, i), row in when.items():
        seconds = {"F": times[s, i], "I": 0.002, "W": last[s]}[kind]
        if kind == "F" and s:
            assert row.start >= when["F", s - 1, i].end + latency[s - 1] - ROUNDING
        if kind == "I" and s < 2:
            assert row.start >= when["I", s + 1, i].end + latency[s] - ROUNDING
        assert row.end - row.start >= seconds - ROUNDING
    simulated = td.simulate(schedule, **given | {"backward": None})
    assert run.simulated.makespan == simulated.makespan
    assert run.timeline.makespan >= simulated.makespan - ROUNDING
    # device 1 has nothing to do until its first block is there
    assert run.timeline.idle_time.total["transfer"] > 0.01

    about, end = (event for _, event in cluster.client.get_events(RUNS)[-2:])
    assert (end["state"], about["kind"]) == ("done", "pipeline")
    assert about["lanes"] == ("device 0", "device 1", "device 2")
    idle = [share * simulated.makespan for share in about["predicted"]["idle"]]
    assert idle == pytest.approx(simulated.idle_per_device)
    told = lambda: cluster.client.get_events(about["run"])  # noqa: E731
    wait_until(lambda: len(told()) >= len(schedule))  # they come a little later
    events = [event["spans"][0] for _, event in told()]
    assert sorted(tuple(span[1:4]) for span in events) == sorted(map(tuple, schedule))
    starts = sorted(start - min(e[4] for e in events) for *_, start, _ in events)
    assert starts == pytest.approx(sorted(row.start for row in rows), abs=ROUNDING)


def announced(cluster):
    """The last runs, by topic."""
    return {said["run"] for _, said in cluster.client.get_events(RUNS)}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipev", "chimera"])
@ENGINES
def test_a_schedule_runs_again_with_the_same_bits_when_a_worker_died(cluster, name, engine):
    schedule = small(name, 6)
    stages = stack(range(schedule.stages + 1), **SHAPE)
    options = {"target": TARGET, "engine": engine, "timeout": 240}
    right = td.run_schedule(schedule, stages, BATCH, cluster, **options)
    times = ("forward", "backward", "backward_input", "backward_weight")
    options |= dict.fromkeys(times, 0.05)
    pid, before = cluster.run(os.getpid)[1], announced(cluster)

    def kill():
        wait_until(lambda: announced(cluster) - before)
        time.sleep(0.3)  # of the 0.6 s that it takes at least
        os.kill(pid, signal.SIGKILL)

    killing = threading.Thread(target=kill, daemon=True)
    killing.start()
    run = td.run_schedule(schedule, stages, BATCH, cluster, **options)
    killing.join()
    assert run.simulated.makespan > 0.6
    assert len(announced(cluster) - before) == 2
    assert bits(run) == bits(right)


def test_a_task_that_dask_runs_again_is_a_lost_worker():
    with pytest.raises(ClusterLostError, match="rank 0"):
        _act(SimpleNamespace(next=3, index=0), 2)


def test_a_run_says_what_its_slots_held(cluster):
    stages = stack((0, 3, 6), width=512, hidden=2048)
    batch = np.ones((4, 512), "f4")
    run = td.run_schedule(td.schedule("gpipe", 2, 1, forward_only=True), stages, batch, cluster)
    assert all(run.memory.per_place[slot] > 0.9 * stages[slot].weight_bytes for slot in (0, 1))


def test_stages_that_do_not_fit_are_refused_before_anything_runs(cluster):
    stages = [td.stages.FeedForward((i,), 40_000, 40_000) for i in range(2)]
    batch = np.zeros((2, 40_000), "f4")
    words = r"1f1b with weights of 12.8 GB on a device takes .* GB on rank \d, and slot \d leaves"
    with pytest.raises(DoesNotFitError, match=words):
        td.run_schedule(td.schedule("1f1b", 2, 2), stages, batch, cluster, target=batch)
