"""Diagnoses: what was put into a run comes out of its trace, and gains are the simulator's."""

import json
from functools import cache

import numpy as np
import pytest
from oracles.traces import recorded_traces

import tiledask as td
from tiledask.errors import ConfigError, ScheduleError
from tiledask.plan.diagnosis.diagnose import diagnose
from tiledask.plan.diagnosis.remedies import every_remedy
from tiledask.plan.diagnosis.timed import Form, TimedSchedule
from tiledask.plan.pipelines.timeline import Timeline

ONE_CHUNK = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-auto")
TWO_CHUNKS = ("interleaved", "looped-bfs", "interleaved-zb", "zb-v", "v-half", "v-min")


def plan(rng, name, most_devices=8, most_microbatches=16):
    """A random plan: uneven stages, and a latency that is often 0."""
    p = int(rng.integers(2, most_devices + 1))
    m = int(rng.integers(1, most_microbatches + 1))
    form = Form(name, p, 2 if name in TWO_CHUNKS else 1, m)
    order = form.made()
    forward = rng.uniform(0.5, 1.5, order.stages)
    backward = 2 * forward * rng.uniform(0.8, 1.2, order.stages)
    latency = float(rng.choice([0.0, 0.05, 0.3, 0.7]))
    return TimedSchedule(
        order, tuple(forward), tuple(backward), latency=(latency,) * (order.stages - 1), form=form
    )


@cache
def drawn():
    rng, names = np.random.default_rng(0), ONE_CHUNK + TWO_CHUNKS
    return [plan(rng, name) for name in names]


def bare(timeline):
    """Only who was busy when."""
    frame = timeline.to_frame()
    return frame[frame.kind != "T"][["device", "start", "end"]]


def assert_found(d, before, tolerance=1e-9):
    order = before.schedule
    assert d.devices == d["devices"].value == order.devices
    assert d["microbatches"].value == order.microbatches
    assert d.plan.schedule == order
    np.testing.assert_allclose(d.plan.forward, before.forward, rtol=0, atol=tolerance)
    np.testing.assert_allclose(d.plan.backward, before.backward, rtol=0, atol=tolerance)
    np.testing.assert_allclose(d.plan.latency, before.latency, rtol=0, atol=tolerance)
    work = before.device_times
    assert d["imbalance"].value == pytest.approx(max(work) / np.mean(work) - 1, abs=tolerance)


def assert_adds_up(d, timeline):
    assert d.idle == pytest.approx(timeline.idle, rel=1e-12)
    assert sum(c.seconds for c in d.causes) == pytest.approx(d.idle, rel=1e-12, abs=1e-12)
    assert all(c.seconds >= 0 for c in d.causes)


def test_what_was_put_in_is_found_with_labels_and_without():
    sure = 0
    for before in drawn():
        labelled, plain = diagnose(before.timeline), diagnose(bare(before.timeline))
        for d in (labelled, plain):
            assert_found(d, before)
            assert_adds_up(d, before.timeline)
        assert {f.sure for f in labelled.findings} == {"exact"}
        sure += plain["microbatches"].sure == "exact"
    assert sure >= 0.95 * len(drawn())
    for r in diagnose(drawn()[0].timeline).remedies:
        assert r.makespan == td.simulate(r.plan.schedule, **r.plan.times).makespan


def test_overhead_between_actions_is_not_taken_for_latency():
    form = Form("1f1b", 4, 1, 6)
    times = (1.0, 1.2, 0.9, 1.1), (2.0, 2.1, 1.9, 2.2)
    before = TimedSchedule(form.made(), *times, latency=(0.3,) * 3, overhead=0.1, form=form)
    t = before.timeline
    frame = t.to_frame().assign(start=t.start + 0.1)  # busy only once it is started
    for trace in (frame, frame[["device", "start", "end"]]):
        d = diagnose(trace)
        assert_found(d, before)
        assert d["overhead"].value == pytest.approx(0.1, abs=1e-9)
        causes = {c.name: c.seconds for c in d.causes}
        assert causes["overhead"] > 0 < causes["communication"]
        assert by_change(d)["no overhead between actions"].makespan < t.makespan


def test_what_edges_alone_tell_and_what_they_leave_open():
    d = diagnose(bare(td.simulate(td.schedule("gpipe", 4, 5), latency=[0.1, 0.5, 0.2])))
    np.testing.assert_allclose(d["latency"].value, [0.1, 0.5, 0.2], atol=1e-9)
    d = diagnose(bare(td.simulate(td.schedule("gpipe", 3, 1), forward=1, backward=2.5)))
    assert (d["schedule"].value, d["schedule"].sure) == ("naive", "exact")
    # F and B of one length, and nothing in between: a block fits in many ways
    d = diagnose(bare(td.simulate(td.schedule("gpipe", 1, 4), forward=1, backward=1)))
    assert d["microbatches"].sure == "likely"
    assert "micro-batches" in d["microbatches"].why
    order = td.schedule("gpipe", 3, 5, forward_only=True)
    d = diagnose(bare(td.simulate(order, forward=[1.0, 1.5, 1.2], latency=0.2)))
    assert (d["schedule"].value, d["microbatches"].value) == ("gpipe, forward only", 5)
    assert "backward" not in d.to_dict()["findings"]


F, B = [1.0, 1.2, 1.0, 1.4], [2.0, 2.4, 2.0, 2.8]
RUN = td.simulate(td.schedule("1f1b", 4, 8), forward=F, backward=B, latency=0.25)


def by_change(d):
    return {r.change: r for _, r in every_remedy(d.plan)}


def test_gains_are_those_of_the_changed_plan_simulated():
    found = by_change(diagnose(RUN))

    def same(change, name, m=8, times=(F, B), latency=0.25, stages=4, **options):
        t = td.simulate(td.schedule(name, stages, m, **options), *times, latency)
        r = found[change]
        assert r.makespan == pytest.approx(t.makespan, rel=1e-12)
        assert r.gain == pytest.approx(1 - t.makespan / RUN.makespan, abs=1e-12)
        assert r.plan.idle_share == pytest.approx(t.bubble_fraction, abs=1e-12)
        assert r.memory == pytest.approx(max(t.peak_in_flight) * 4 / stages * 8 / m)

    halves = [[x / 2 for x in v] for v in (F, B)]
    same("16 micro-batches of 1/2 the size", "1f1b", 16, halves)
    same("16 micro-batches of 1/2 the size, schedule gpipe", "gpipe", 16, halves)
    same("links 10 times as fast", "1f1b", latency=0.025)
    same("schedule zb-h1", "zb-h1")
    twice = [[x / 2 for x in v for _ in "ab"] for v in (F, B)]
    change = "schedule interleaved, 2 chunks per device"
    same(change, "interleaved", times=twice, stages=8, devices=4)
    same("equal stages", "1f1b", times=(sum(F) / 4, sum(B) / 4))


def assert_is_run(d):
    assert (d.devices, d["microbatches"].value, d["schedule"].value) == (4, 8, "1f1b")
    assert d.makespan == pytest.approx(RUN.makespan, rel=1e-3)
    np.testing.assert_allclose(np.add(d["forward"].value, d["backward"].value), np.add(F, B), 1e-2)


def test_a_csv_file_of_spans(tmp_path):
    path = tmp_path / "run.csv"
    RUN.to_frame().sample(frac=1, random_state=0).to_csv(path)  # unsorted, with an index
    assert_is_run(diagnose(path))
    assert "taken as seconds" in diagnose(path).source
    frame = RUN.to_frame()
    frame.assign(kind="", stage="", microbatch="").to_csv(path, index=False)
    d = diagnose(str(path))
    assert_is_run(d)
    assert d["microbatches"].sure == "exact"
    d = diagnose(bare(RUN).assign(device=[f"gpu{7 - d}" for d in bare(RUN).device]))
    assert_is_run(d)  # in the order in which they begin
    assert d["devices"].why == "in this order: gpu7, gpu6, gpu5, gpu4"
    frame.drop(columns=["stage", "microbatch"]).to_csv(path)  # kinds alone
    assert_is_run(diagnose(path))


def events(timeline, name, **more):
    return [
        {"ph": "X", "name": name(r), "pid": 1, "tid": r.device, "ts": 1e6 * r.start + 5e9}
        | {"dur": 1e6 * (r.end - r.start)}
        | more
        for r in timeline.to_frame().itertuples()
    ]


def test_a_chrome_trace(tmp_path):
    path = tmp_path / "trace.json"
    named = events(RUN, lambda r: f"step/{r.stage}{r.kind}{r.microbatch}")
    path.write_text(json.dumps({"traceEvents": [*named, {"ph": "M", "name": "process_name"}]}))
    assert diagnose(path)["schedule"].sure == "exact"
    assert_is_run(diagnose(path))
    plain = events(RUN, lambda r: "work")
    path.write_text(json.dumps(plain))
    assert_is_run(diagnose(path))


HEAD = "device,start,end\n"
LABELLED = "device,kind,stage,microbatch,start,end\n"
BAD = {
    "overlap": (HEAD + "0,0,2\n0,1,3\n", "device 0 does two things at once: from 0 to 2 s"),
    "backwards": (HEAD + "0,3,2\n", r"line 2 of trace\.csv .*none before its start"),
    "no number": (HEAD + "0,1,2\n\n0,3,x\n", r"line 4 of trace\.csv"),
    "no column": ("time,a,b\n0,1,0\n1,1,0\n", r"line 2 of trace\.csv"),
    "long field": (HEAD + f"0,0,1\n{'1' * 200_000},1,2\n", "cannot be read as CSV"),
    "empty": ("", "has 0 bytes, and a trace has an action"),
    "no work": (HEAD + "0,1,1\n", r"1 devices work in .*intervals above 0 s"),
    "idle": (LABELLED + "0,F,0,0,0,2\n1,T,1,0,2,3\n", "device 1 does no work"),
    "too early": (LABELLED + "0,F,0,0,0,2\n1,F,1,0,1,3\n", "before the result it needs is there"),
    "no events": ('{"traceEvents": []}', "no complete event"),
    "arguments": ('[{"ph": "X", "ts": 1, "dur": 1, "args": "x"}]', None),
    "huge time": ('[{"ph": "X", "ts": 1%s, "dur": 1}]' % ("0" * 400), "is no Chrome trace"),
    "late": ('[{"ph": "X", "ts": -1, "dur": 1}]', "ts and dur are finite numbers of 0 or more"),
    "bad event": ('[{"ph": "X", "ts": 1, "dur": "long"}]', "traceEvents, .*'long'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_is_refused(tmp_path, name):
    text, message = BAD[name]
    path = tmp_path / "trace.csv"
    path.write_text(text)
    if message is None:  # odd, and readable all the same
        assert diagnose(path).devices > 0
        return
    with pytest.raises(ConfigError, match=message) as raised:
        diagnose(path)
    assert len(str(raised.value)) < 400


LATE = Timeline.of(3, [(0, "F", 0, 0, 0, 1), (1, "F", 1, 0, 1, 2)])


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (7, r"a trace is a Timeline, .*; got int"),
        (LATE, "device 2 does no work in the simulated timeline"),
        (
            td.simulate(td.schedule("dualpipev", 8, 10)),
            "two things at once: .* a run without pairs",
        ),
        (b"\x1f\x8b\x08\x00\xff", r"trace\.csv cannot be read as CSV or JSON: "),
    ],
)
def test_other_things_are_refused(tmp_path, trace, message):
    if isinstance(trace, bytes):
        (tmp_path / "trace.csv").write_bytes(trace)
        trace = tmp_path / "trace.csv"
    with pytest.raises((ConfigError, ScheduleError), match=message):
        diagnose(trace)


@pytest.mark.cluster
def test_a_measured_run(cluster):
    from tiledask.distributed.pipelines.stages import stack

    layers = stack(range(4), width=12, hidden=20, dtype="float64")
    times = {"forward": [0.04, 0.05, 0.06], "backward": [0.08, 0.06, 0.1]}
    rows = np.ones((8, 12))
    run = td.run_schedule(td.schedule("1f1b", 3, 4), layers, rows, cluster, target=rows, **times)
    for trace, sure in ((run.timeline, "exact"), (bare(run.timeline), "likely")):
        d = diagnose(trace)
        assert (d.devices, d["microbatches"].value) == (3, 4)
        assert (d["schedule"].value, d["schedule"].sure) == ("1f1b", sure)
        for name, seconds in times.items():
            np.testing.assert_allclose(d[name].value, seconds, atol=0.01)
        assert d["forward"].sure == "likely"
        assert d.idle == pytest.approx(run.timeline.idle, rel=1e-9)
        assert sum(c.seconds for c in d.causes) == pytest.approx(d.idle)


RECORDED = """
one at a time: layer_wise_4 layer_wise_2_three_steps layer_wise_3_optimizer layer_wise_4_chunks
ramp: gpipe_few gpipe_few_two_steps 1f1b_few 1f1b_few_optimizer interleaved_few
imbalance: gpipe_slow_last 1f1b_slow_third 1f1b_slow_first interleaved_slow
communication: 1f1b_slow_links gpipe_slow_links
overhead: 1f1b_overhead
one at a time: layer_wise.csv
ramp: gpipe_few.csv
imbalance: 1f1b_slow_second.csv
communication: 1f1b_slow_links.csv
"""
RECORDED = {
    name: cause
    for cause, names in (line.split(": ") for line in RECORDED.strip().splitlines())
    for name in names.split()
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", RECORDED)
def test_the_right_cause_comes_first_in_recorded_traces(name):
    d = diagnose(recorded_traces()[name])
    assert d.cause == RECORDED[name]
    assert sum(c.seconds for c in d.causes) == pytest.approx(d.idle)
    if d.cause == "one at a time":
        assert "micro-batches" in d.remedies[0].change
        assert "one at a time" in d.summary[0]
