"""Diagnoses: what was put into a run comes out of its trace, and gains are the simulator's."""

import json

import numpy as np
import pytest
from oracles.traces import recorded_traces

import tiledask as td
from tiledask.errors import ConfigError, ScheduleError
from tiledask.plan.diagnosis.diagnose import diagnose
from tiledask.plan.diagnosis.remedies import every_remedy
from tiledask.plan.diagnosis.timed import Form, TimedSchedule, made
from tiledask.plan.pipelines.timeline import Timeline

ONE_CHUNK = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-auto")
TWO_CHUNKS = ("interleaved", "looped-bfs", "interleaved-zb", "zb-v", "v-half", "v-min")


def timed(form, forward, backward, latency, overhead=0.0):
    half, hops = np.array(backward) / 2, np.full(len(forward) - 1, latency)
    seconds = np.stack([forward, backward, half, half])
    return TimedSchedule(made(form), seconds, hops, overhead, form)


def drawn():
    """Random plans: uneven stages, and a latency that is often 0."""
    rng = np.random.default_rng(0)
    for name in ONE_CHUNK + TWO_CHUNKS:
        p, m = int(rng.integers(2, 9)), int(rng.integers(1, 17))
        form = Form(name, p, 2 if name in TWO_CHUNKS else 1, m)
        forward = rng.uniform(0.5, 1.5, made(form).stages)
        backward = 2 * forward * rng.uniform(0.8, 1.2, len(forward))
        yield timed(form, forward, backward, float(rng.choice([0.0, 0.05, 0.3, 0.7])))


def bare(timeline):
    """Only who was busy when."""
    frame = timeline.to_frame()
    return frame[frame.kind != "T"][["device", "start", "end"]]


def assert_found(d, before):
    order, work = before.schedule, np.zeros(before.schedule.devices)
    np.add.at(work, order.device, before.seconds[order.kind, order.stage])
    assert d.devices == d["devices"].value == order.devices
    assert d["microbatches"].value == order.microbatches
    assert d.plan.schedule == order
    np.testing.assert_allclose(d.plan.seconds[:2], before.seconds[:2], rtol=0, atol=1e-9)
    np.testing.assert_allclose(d.plan.hops, before.hops, rtol=0, atol=1e-9)
    assert d["imbalance"].value == pytest.approx(max(work) / np.mean(work) - 1, abs=1e-9)
    assert sum(c.seconds for c in d.causes) == pytest.approx(d.idle, rel=1e-12, abs=1e-12)


def test_what_was_put_in_is_found_with_labels_and_without():
    sure = []
    for before in drawn():
        labelled, plain = diagnose(before.timeline), diagnose(bare(before.timeline))
        for d in (labelled, plain):
            assert_found(d, before)
            assert d.idle == pytest.approx(before.timeline.idle, rel=1e-12)
            assert all(c.seconds >= 0 for c in d.causes)
        assert {f.sure for f in labelled.findings} == {"exact"}
        sure.append(plain["microbatches"].sure == "exact")
    assert np.mean(sure) >= 0.95
    for r in labelled.remedies:
        assert r.makespan == td.simulate(r.plan.schedule, **r.plan.times).makespan


def test_overhead_between_actions_is_not_taken_for_latency():
    times = (1.0, 1.2, 0.9, 1.1), (2.0, 2.1, 1.9, 2.2)
    before = timed(Form("1f1b", 4, 1, 6), *times, latency=0.3, overhead=0.1)
    t = before.timeline
    frame = t.to_frame().assign(start=t.start + 0.1)  # busy only once it is started
    for trace in (frame, frame[["device", "start", "end"]]):
        d = diagnose(trace)
        assert_found(d, before)
        assert d["overhead"].value == pytest.approx(0.1, abs=1e-9)
        assert {f.sure for f in d.findings} == {"exact"}
        causes = {c.name: c.seconds for c in d.causes}
        assert causes["overhead"] > 0 < causes["communication"]
        assert by_change(d)["no overhead between actions"].makespan < t.makespan


def test_what_edges_alone_tell_and_what_they_leave_open():
    d = diagnose(bare(td.simulate(td.schedule("gpipe", 4, 5), latency=[0.1, 0.5, 0.2])))
    np.testing.assert_allclose(d["latency"].value, [0.1, 0.5, 0.2], atol=1e-9)
    d = diagnose(bare(td.simulate("naive", 3, 1)).replace({"device": {0: "z", 2: "a"}}))
    assert (d["schedule"].value, d["schedule"].sure) == ("naive", "exact")
    assert d["devices"].why == "in this order: z, 1, a"  # in which they begin
    # F and B of one length, and nothing in between: a block fits in many ways
    d = diagnose(bare(td.simulate(td.schedule("gpipe", 1, 4), forward=1, backward=1)))
    assert d["microbatches"].sure == "likely"
    assert d["imbalance"].value == d["latency"].value == 0  # of one device
    # an order of no schedule: no plan, and when devices begin and end
    spans = [("a", 0, 3), ("a", 4, 5), ("b", 3, 4), ("b", 7, 8), ("b", 9, 10)]
    rows = [(ord(d) - 97, "F", -1, -1, start, end) for d, start, end in spans]
    d = diagnose(Timeline.of(2, rows).to_frame()[["device", "start", "end"]])
    assert (d.plan, d["schedule"].sure, d.remedies) == (None, "cannot be told", ())
    assert "record one training step" in d.summary[-1]
    expected = {"one at a time": 8.0, "imbalance": 1.0, "unexplained": 4.0}
    assert {c.name: c.seconds for c in d.causes} == expected


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
    lone = timed(Form("naive", 4, 1, 1), (1.0,) * 4, (2.0,) * 4, 0.0)
    best = diagnose(lone.timeline).remedies[0]
    assert best.change == "8 micro-batches of 1/8 the size, schedule 1f1b"
    assert best.makespan == 4.125


def files(form):
    """A file of RUN, as text."""
    frame = RUN.to_frame().sample(frac=1, random_state=0)  # unsorted, with an index
    if form == "csv":
        return frame.to_csv()
    if form == "csv without labels":
        return frame.assign(kind="", stage="", microbatch="").to_csv(index=False)
    if form == "csv of kinds":
        return frame.drop(columns=["stage", "microbatch"]).to_csv()
    named = [
        {"ph": "X", "name": f"step/{r.stage}{r.kind}{r.microbatch}", "pid": 1, "tid": r.device}
        | {"ts": 1e6 * r.start + 5e9, "dur": 1e6 * (r.end - r.start)}
        for r in frame.itertuples()
    ]
    return json.dumps({"traceEvents": [*named, {"ph": "M", "name": "process_name"}]})


@pytest.mark.parametrize("form", ["csv", "csv without labels", "csv of kinds", "chrome"])
def test_files_of_a_run(tmp_path, form):
    (tmp_path / "run").write_text(files(form))
    d = diagnose(str(tmp_path / "run"))
    assert (d.devices, d["microbatches"].value, d["schedule"].value) == (4, 8, "1f1b")
    assert d["schedule"].sure == "exact"
    assert d.makespan == pytest.approx(RUN.makespan, rel=1e-9)
    assert d["latency"].value == pytest.approx(0.25)
    np.testing.assert_allclose(d["forward"].value, F)
    np.testing.assert_allclose(d["backward"].value, B)


HEAD = "device,start,end\n"
LABELLED = "device,kind,stage,microbatch,start,end\n"
LATE = Timeline.of(3, [(0, "F", 0, 0, 0, 1), (1, "F", 1, 0, 1, 2)])
BAD = {
    "overlap": (HEAD + "0,0,2\n0,1,3\n", "device 0 does two things at once"),
    "backwards": (HEAD + "0,3,2\n", r"line 2 of trace\.csv"),
    "no column": ("time,a,b\n0,1,0\n1,1,0\n", r"line 2 of trace\.csv"),
    "packed": ("\x1f\x8b\x08\x00\xff", "cannot be read as CSV or JSON"),
    "empty": ("", "has 0 bytes"),
    "no work": (HEAD + "0,1,1\n", "1 devices work"),
    "idle": (LABELLED + "0,F,0,0,0,2\n1,T,1,0,2,3\n", "device 1 does no work"),
    "too early": (LABELLED + "0,F,0,0,0,2\n1,F,1,0,1,3\n", "before the result it needs"),
    "no labels": ('[{"ph": "X", "name": "gemm", "ts": 1, "dur": 1}]', "no label of an action"),
    "a number": (7, "a trace is a Timeline"),
    "a lazy device": (LATE, "device 2 does no work"),
    "pairs": (td.simulate("dualpipev", 8, 10), "two things at once"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_is_refused_in_a_sentence(tmp_path, name):
    trace, message = BAD[name]
    if isinstance(trace, str):
        (tmp_path / "trace.csv").write_text(trace, "latin-1")
        trace = tmp_path / "trace.csv"
    with pytest.raises((ConfigError, ScheduleError), match=message) as raised:
        diagnose(trace)
    assert len(str(raised.value)) < 400


ALONE, LINKS = "one at a time", "communication"
RECORDED = dict.fromkeys(("layer_wise_4", "layer_wise_2_three_steps"), ALONE)
RECORDED |= dict.fromkeys(("layer_wise_3_optimizer", "layer_wise_4_chunks"), ALONE)
RECORDED |= dict.fromkeys(("gpipe_few", "gpipe_few_two_steps", "interleaved_few"), "ramp")
RECORDED |= dict.fromkeys(("gpipe_slow_last", "interleaved_slow"), "imbalance")
RECORDED |= {"gpipe_slow_links": LINKS, "1f1b_slow_links.csv": LINKS, "layer_wise.csv": ALONE}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", RECORDED)
def test_the_right_cause_comes_first_in_recorded_traces(name):
    d = diagnose(recorded_traces()[name])
    assert d.cause == RECORDED[name]
    assert sum(c.seconds for c in d.causes) == pytest.approx(d.idle)
    if d.cause == "one at a time":
        assert "micro-batches" in d.remedies[0].change
