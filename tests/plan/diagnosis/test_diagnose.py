"""Diagnoses: what was put into a run comes out of its trace, and gains are the simulator's."""

import gzip
import json
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

import tiledask as td
from tiledask import Timeline, diagnose
from tiledask.errors import ConfigError, ScheduleError
from tiledask.plan.diagnosis.remedies import every_remedy
from tiledask.plan.diagnosis.timed import TimedSchedule, made

TWO_CHUNKS = ("interleaved", "looped-bfs", "interleaved-zb", "zb-v", "v-half", "v-min")
NAMES = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-auto", *TWO_CHUNKS)


def timed(order, forward, backward, latency, overhead=0.0):
    half, hops = np.array(backward) / 2, np.full(len(forward) - 1, latency)
    return TimedSchedule(order, np.stack([forward, backward, half, half]), hops, overhead)


def drawn():
    """Random plans: uneven stages, a latency that is often 0, and sometimes an overhead."""
    rng = np.random.default_rng(0)
    for name in NAMES:
        p, m = int(rng.integers(2, 9)), int(rng.integers(1, 17))
        order = made(name, p, 2 if name in TWO_CHUNKS else 1, m)
        forward = rng.uniform(0.5, 1.5, order.stages)
        backward = 2 * forward * rng.uniform(0.8, 1.2, len(forward))
        latency = float(rng.choice([0.0, 0.05, 0.3, 0.7]))
        yield timed(order, forward, backward, latency, 0.1 * (name in ("gpipe", "1f1b", "zb-v")))
    yield timed(made("gpipe", 2, 1, 3), [1.0, 1.2], [2.0, 2.1], 0.3, 3.0)


def spans(timeline, overhead=0.0):
    """Without transfers, and the time in which an action does not work yet."""
    return timeline.to_frame().query("kind != 'T'").eval("start = start + @overhead")


def idle(plan):
    order = plan.schedule
    makespan = td.simulate(order, **plan.times).makespan - plan.overhead  # nobody works before
    return order.devices * makespan - plan.seconds[order.kind, order.stage].sum()


def bare(frame):
    """Only who was busy when."""
    return frame[["device", "start", "end"]]


def assert_found(d, before):
    order, work = before.schedule, np.zeros(before.schedule.devices)
    np.add.at(work, order.device, before.seconds[order.kind, order.stage])
    assert d.devices == d["devices"].value == order.devices
    assert d["microbatches"].value == order.microbatches
    assert d.plan.schedule == order
    np.testing.assert_allclose(d.plan.seconds[:2], before.seconds[:2], rtol=0, atol=1e-9)
    np.testing.assert_allclose(d.plan.hops, before.hops, rtol=0, atol=1e-9)
    assert d["imbalance"].value == pytest.approx(max(work) / np.mean(work) - 1, abs=1e-9)
    assert sum(d.causes.values()) == pytest.approx(d.idle, rel=1e-12, abs=1e-12)


def assert_causes(d, before):
    """Each is what the idle time shrinks by as it, and all before it, is taken out."""
    order, (forward, backward, *_) = before.schedule, before.seconds
    quick = replace(before, overhead=0.0)
    free = idle(replace(quick, hops=0 * before.hops))
    even = td.simulate(order, forward.mean(), backward.mean(), 0.0).idle
    found = dict(d.causes)
    waits = found.pop("one at a time" if order.name == "naive" else "ramp", None)
    assert (waits or found.pop("one at a time")) == pytest.approx(min(free, even))
    assert found.pop("imbalance") == pytest.approx(max(0.0, free - even), abs=1e-9)
    assert found.pop("communication") == pytest.approx(idle(quick) - free, abs=1e-9)
    assert found.pop("overhead") == pytest.approx(before.idle - idle(quick), abs=1e-9)


def test_what_was_put_in_is_found_with_labels_and_without(tmp_path):
    for before in drawn():
        frame = spans(before.timeline, before.overhead)
        text = frame.sample(frac=1, random_state=0).to_csv()  # in another order
        (tmp_path / "run").write_bytes(gzip.compress(text.encode()))
        labelled, plain = diagnose(frame), diagnose(bare(frame))
        kinds = diagnose(frame.assign(stage="", microbatch=None))
        for d in (labelled, plain, kinds, diagnose(str(tmp_path / "run"))):
            assert_found(d, before)
            assert_causes(d, before)
            assert d.idle == pytest.approx(idle(before), rel=1e-12)
            assert (d["overhead"].value or 0.0) == pytest.approx(before.overhead, abs=1e-9)
        assert {f.sure for f in labelled.findings} == {"exact"}
        assert plain["microbatches"].sure == "exact"


def test_times_are_medians_of_what_varies():
    for seed, before in enumerate(drawn()):
        frame, order = spans(before.timeline, before.overhead), before.schedule
        shorter = np.random.default_rng(seed).uniform(0.97, 1, len(frame))
        frame = frame.assign(end=frame.start + shorter * (frame.end - frame.start))
        median = (frame.end - frame.start).groupby([frame.kind, frame.stage]).median()
        for trace in (frame, bare(frame)):
            d = diagnose(trace)
            assert d.plan.schedule == order
            for (kind, stage), seconds in median.items():
                assert d.plan.seconds["FBIW".index(kind), stage] == pytest.approx(seconds)
    inference = diagnose(spans(RUN).query("kind == 'F'"))
    assert inference["backward"].value == (0.0,) * 4
    # the way back takes another time than the way there: labels are believed, bare rows only if
    # the mean edge is nearly where a plan has it
    for back, found in ((4, True), (6, False)):
        starts = enumerate((0, 1, 2, 3, 4 + back, 5 + 2 * back))
        rows = [(min(n, 5 - n), "FB"[n > 2], min(n, 5 - n), 0, at, at + 1) for n, at in starts]
        frame = spans(Timeline.of(3, rows))
        assert diagnose(frame)["latency"].value == back / 2
        assert (diagnose(bare(frame)).plan is not None) == found


def test_what_edges_alone_tell_and_what_they_leave_open():
    d = diagnose(bare(spans(td.simulate("gpipe", 4, 5, latency=[0.1, 0.5, 0.2]))))
    np.testing.assert_allclose(d["latency"].value, [0.1, 0.5, 0.2], atol=1e-9)
    d = diagnose(bare(td.simulate("naive", 3, 1).to_frame()).replace({"device": {0: "z", 2: "a"}}))
    assert (d["schedule"].value, d["schedule"].sure) == ("naive", "exact")
    assert d["devices"].why == "in this order: z, 1, a"  # in which they begin
    # two micro-batches without anything in between could be one in two chunks
    d = diagnose(bare(td.simulate("gpipe", 1, 2).to_frame()))
    assert d["microbatches"].sure == d["schedule"].sure == "likely"
    assert "so are those of " in d["schedule"].why
    assert d["imbalance"].value == d["latency"].value == 0  # of one device
    # an order of no schedule: no plan, and when devices begin and end
    rows = [("a", 0, 3), ("a", 4, 5), ("b", 3, 4), ("b", 7, 8), ("b", 8, 8), ("b", 9, 10)]
    rows = [(ord(d) - 97, "F", -1, -1, start, end) for d, start, end in rows]
    d = diagnose(bare(Timeline.of(2, rows).to_frame()))
    assert (d.plan, d["schedule"].sure, d.remedies) == (None, "cannot be told", ())
    assert d.causes == {"one at a time": 8.0, "imbalance": 1.0, "unexplained": 4.0}
    # 5 % of noise between devices that take turns; two at once where one has nearly all the work
    for end, waits in ((2.0, "one at a time"), (1.05, "ramp")):
        two = Timeline.of(2, [(0, "F", 0, 0, 0, 1), (1, "F", 1, 0, 0.95, end)])
        assert next(iter(diagnose(bare(two.to_frame())).causes)) == waits
    # labels say an order that is in no table, here of stages that are on two devices
    d = diagnose(spans(td.simulate("chimera", 4, 4)).eval("microbatch = 3 - microbatch"))
    assert (d["schedule"].value, len(d.plan.schedule.places)) == ("own order", 2)
    # what takes long to make is not made to compare
    assert made("zb-auto", 4, 1, 333) is not None is made("zb-auto", 4, 1, 334)


F, B = [1.0, 1.2, 1.0, 1.4], [2.0, 2.4, 2.0, 2.8]
RUN = td.simulate(td.schedule("1f1b", 4, 8), forward=F, backward=B, latency=0.25)


def test_gains_are_those_of_the_changed_plan_simulated():
    links = td.simulate("gpipe", 4, 5, latency=[0.1, 0.0, 0.2])
    few = [plan for plan in drawn() if plan.schedule.microbatches < 6][:2]
    for before in (diagnose(links).plan, *few):
        base, m = before.timeline, before.schedule.microbatches
        every = [r for _, r in every_remedy(before)]
        assert any("links" in r.change for r in every) == before.hops.any()
        finer = {int(r.change.split()[0]) // m for r in every if " of 1/" in r.change}
        most = max(8, 2 * before.schedule.devices / m)
        assert finer - {1} == {2**k for k in range(1, 9) if 2 ** (k - 1) < most}
        work = before.seconds[before.schedule.kind, before.schedule.stage].sum()
        for change, plan, makespan, gain, memory in every:
            t, order = td.simulate(plan.schedule, **plan.times), plan.schedule
            assert (makespan, gain) == (t.makespan, 1 - makespan / base.makespan)
            share = order.stages / order.devices * order.microbatches / m
            assert memory == pytest.approx(max(t.peak_in_flight) / share)
            if order.name == "zb-auto":  # made for these times
                given = {n: tuple(v) for n, v in plan.times.items() if n != "backward"}
                given["latency"] = plan.hops.mean()
                assert order == td.schedule("zb-auto", order.stages, order.microbatches, **given)
            if order.replicas == 1:  # the same work
                assert plan.idle == pytest.approx(order.devices * makespan - work), change
    even = diagnose(td.simulate("1f1b", 8, 8))
    assert not any("twice" in remedy.change for remedy in even.remedies)
    assert "1 s, 1 s, 1 s, 1 s, 1 s, 1 s, ...  " in even.to_text(200)
    assert [r.change for r in diagnose(RUN).remedies[1:4]] == [
        "schedule looped-bfs, 3 chunks per device",
        "16 micro-batches of 1/2 the size",
        "equal stages",
    ]


STEPS = {0: 3.0, 1: 1.0, 2: 0.5}
"""Step -> how much longer than a run it takes; the median one is the run."""
WORDS = {"F": "Forward", "B": "Backward"}


def event(name, cat, start, end, pid):
    times = {"ts": 1e6 * (start + 10), "dur": 1e6 * (end - start)}  # 0 is the earliest
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": 7, **times}


def traced(run, rank, gpu=False, pid=0):
    """What a profiler of ``rank`` records of each step: marks, labels, work, and other things.

    CPU  |step [0F0]             launches all at once, and is ahead of the GPU
    GPU        |step  [0F0 nccl [gemm][gemm] ]     the label waits for the work inside
    """
    kind, work = ("gpu_user_annotation", "kernel") if gpu else ("user_annotation", "cpu_op")
    found, begin = [event(f"{rank}F0", kind, -1, -0.5, pid)], 0.0  # before the first mark
    for step, scale in STEPS.items():
        mark = f"ProfilerStep#{step}"
        found.append(event(mark, kind, begin, begin + 1, pid))
        found += [event(mark, "user_annotation", begin - 7, begin, pid)] * gpu
        for span in run.to_frame().query("device == @rank and kind != 'T'").itertuples():
            start, end = begin + scale * span.start, begin + scale * span.end
            name, half = f"PP:{span.stage}{span.kind}{span.microbatch}", (start + end) / 2
            if run.schedule.name == "gpipe":
                name = f"{WORDS[span.kind]} {span.microbatch}"
            found += [event(name, "user_annotation", begin - 6, begin - 5, pid)] * gpu
            found.append(event(name, kind, start - 0.01, half + 0.01, pid))
            found.append(event("nccl" if gpu else "gloo:send", work, start - 0.01, start, pid))
            found += [event("gemm", work, *each, pid) for each in ((start, half), (half, end))]
            found.append(event("another's", work, start - 0.005, end + 9, "other"))
            found.append(event("nothing", work, half, half, pid))
        begin += scale * run.makespan + 5
    return found


def written(folder, *files):
    """Their folder; of the last first and backwards, their clocks with other zeros."""
    for rank, events in enumerate(files):
        later = [{**e, "ts": e["ts"] - 1e6 * rank} for e in reversed(events)]
        about = {"distributedInfo": {"rank": rank}} if len(files) > 1 else {}
        about |= {"traceEvents": later, "baseTimeNanoseconds": 7 * 10**9 + 10**9 * rank}
        (folder / f"{'dcba'[rank]}.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize("gpu", [False, True], ids=["CPU", "GPU"])
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    "apart", ["rank 0, rank 1, rank 2, rank 3", "0, 1, 2, 3"], ids=["files", "one file"]
)
def test_the_run_comes_back(tmp_path, gpu, name, apart):
    run = td.simulate(td.schedule(name, 4, 5), F, B, latency=0.25)
    files = [traced(run, rank, gpu, rank) for rank in range(4)]
    d = td.diagnose(written(tmp_path, *(files if "rank" in apart else [[*chain(*files)]])))
    assert (d["schedule"].value, d["devices"].why) == (name, f"in this order: {apart}")
    assert d.source.endswith(": of 3 steps the one of median length")
    found = d.makespan, d["latency"].value, *d["forward"].value, *d["backward"].value
    assert found == pytest.approx((run.makespan, 0.25, *F, *B), rel=1e-6)


HEAD, LABELLED = "device,start,end\n", "device,kind,stage,microbatch,start,end\n"
GEMM = '{"ph": "X", "name": "gemm", "ts": 1, "dur": 1, "cat": "kernel"}'
LABEL = GEMM.replace("gemm", "0F0")
BAD = {
    "backwards": (HEAD + "0,3,2\n", r"line 2 of trace\.csv"),
    "no work": (HEAD + "0,1,1\n", "1 devices work"),
    "beyond": (LABELLED + "0,F,0,1000,0,2\n", "stage or microbatch 1000"),
    "no stage 1": (LABELLED + "0,F,0,0,0,1\n0,F,2,0,1,2\n", "no row of stage 1"),
    "too early": (LABELLED + "0,F,0,0,0,2\n1,F,1,0,1,3\n", "before the result it needs"),
    "no labels": (f"[{GEMM}]", "no label of an action on the GPU"),
    "a pair": (f"[{LABEL}]".replace("0F0", "0F0 OVERLAP").replace("ker", "ann"), "at once"),
    "a number": (7, "a trace is a Timeline"),
    "no paths": (["a", 7], "a trace is a Timeline"),
    "large": (gzip.compress(1000 * b"0,0,1").decode("latin-1"), "has [0-9]* bytes, and a trace"),
    "pairs": (td.simulate("dualpipev", 8, 10), "two things at once"),
    "tables": ((HEAD + "0,1,2\n",) * 2, "is no Chrome trace"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_is_refused_in_a_sentence(monkeypatch, tmp_path, name):
    monkeypatch.setattr("tiledask.plan.diagnosis.trace.MAX_BYTES", 400)
    trace, message = BAD[name]
    texts = (trace,) if isinstance(trace, str) else trace if isinstance(trace, tuple) else ()
    paths = [tmp_path / name for name in ("trace.csv", "other.csv")[: len(texts)]]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, "latin-1")
    trace = (paths[0] if len(paths) == 1 else paths) if paths else trace
    with pytest.raises((ConfigError, ScheduleError), match=message) as raised:
        diagnose(trace)
    assert len(str(raised.value)) < 400
