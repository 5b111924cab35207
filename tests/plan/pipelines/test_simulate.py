"""The simulation against a plain reference, closed forms, bounds, and every order there is."""

import sys
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.python_calls import python_calls

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines import closed_form as cf
from tiledask.plan.pipelines import longest_path
from tiledask.plan.pipelines.needs import needs, peak_in_flight
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate


def reference(s: Schedule, seconds, hop) -> dict[Action, tuple[float, float]]:
    """(start, end) by repeating the definition until nothing changes: slow, and hard to get wrong.

    seconds(action) and hop(stage a, stage b) give the times.
    """
    waits = needs(s)
    start = dict.fromkeys(s, 0.0)
    while True:
        new = {}
        for order in s.orders:
            for before, a in zip([None, *order], order, strict=False):
                turn = start[before] + seconds(before) if before else 0.0
                data = [start[b] + seconds(b) + hop(b.stage, a.stage) for b in waits[a]]
                new[a] = max([turn, *data])
        if new == start:
            return {a: (t, t + seconds(a)) for a, t in start.items()}
        start = new


@st.composite
def runs(draw):
    name = draw(st.sampled_from(["naive", "gpipe", "1f1b", "interleaved", "looped-bfs"]))
    devices, m = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    looped = name in ("interleaved", "looped-bfs")
    stages = devices * (draw(st.integers(1, 3)) if looped else 1)
    s = schedule(name, stages, m, **({"devices": devices} if looped else {}))
    # halves are exact in binary, so that equal means equal
    half = st.integers(0, 8).map(lambda n: n / 2)
    table = st.lists(st.lists(half, min_size=m, max_size=m), min_size=stages, max_size=stages)
    latency = st.lists(half, min_size=stages - 1, max_size=stages - 1)
    return s, draw(table), draw(table), draw(latency)


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(runs())
def test_equals_the_reference_for_any_times_and_latencies(run):
    s, forward, backward, latency = run

    def seconds(a):
        return (forward if a.kind == "F" else backward)[a.stage][a.microbatch]

    def hop(a, b):
        return latency[min(a, b)] if s.place[a] != s.place[b] else 0.0

    expected = reference(s, seconds, hop)
    t = simulate(s, forward, backward, latency)
    columns = (t.device, t.kind, t.stage, t.microbatch, t.start, t.end)
    got = {
        Action(str(k), int(p), int(i)): (a, b, int(d))
        for d, k, p, i, a, b in zip(*columns, strict=True)
    }
    zero = min(start for start, _ in expected.values())
    assert got == {
        a: (start - zero, end - zero, s.place[a.stage]) for a, (start, end) in expected.items()
    }
    assert t.origin == "simulated"


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(runs())
def test_laws(run):
    s, forward, backward, latency = run
    t = simulate(s, forward, backward, latency)
    assert t.busy + t.idle == pytest.approx(t.devices * t.makespan)
    assert t.busy == pytest.approx(np.sum(forward) + np.sum(backward))
    faster = simulate(s, forward, backward)
    assert faster.makespan <= t.makespan
    for d in range(s.devices):  # one thing at a time, in the order given
        rows = t.device == d
        assert (t.start[rows][1:] >= t.end[rows][:-1]).all()


@pytest.mark.parametrize("p", range(1, 7))
@pytest.mark.parametrize("m", range(1, 9))
def test_closed_forms_for_equal_stages(p, m):
    naive, gpipe, one = (simulate(schedule(n, p, m)) for n in ("naive", "gpipe", "1f1b"))
    assert naive.utilisation == pytest.approx(cf.naive_utilisation(p))
    for t in (gpipe, one):
        assert t.makespan == 3 * (m + p - 1)
        assert t.bubble_fraction == pytest.approx(cf.bubble_fraction(p, m))
        assert t.bubble_overhead == pytest.approx(cf.bubble_overhead(p, m))
        assert naive.makespan / t.makespan == pytest.approx(cf.speedup(p, m))
    assert one.peak_in_flight == peak_in_flight(schedule("1f1b", p, m))
    assert gpipe.peak_in_flight == peak_in_flight(schedule("gpipe", p, m))


@pytest.mark.parametrize("p", range(1, 6))
@pytest.mark.parametrize("v", range(1, 5))
@pytest.mark.parametrize("extra", range(5))
def test_interleaving_divides_the_bubble_by_the_chunks_for_any_m_from_p_on(p, v, extra):
    """The closed form asks for m a multiple of p; even groups reach it for every m >= p."""
    m = p + extra
    s = schedule("interleaved", p * v, m, devices=p)
    t = simulate(s, 1.0 / v, 2.0 / v)
    assert t.makespan == pytest.approx(cf.interleaved_makespan(p, m, v, stage=3.0))
    assert t.bubble_overhead == pytest.approx(cf.bubble_overhead(p, m, v))
    assert t.bubble_fraction == pytest.approx(cf.bubble_fraction(p, m, v))
    assert max(t.peak_in_flight) == max(peak_in_flight(s))


@pytest.mark.parametrize("p", range(2, 6))
@pytest.mark.parametrize("v", range(2, 5))
def test_interleaving_pays_every_hop_back_to_the_first_device(p, v):
    m, c = 3 * p, 0.001
    s = schedule("interleaved", p * v, m, devices=p)
    t = simulate(s, 1.0 / v, 2.0 / v, latency=c)
    counted = cf.interleaved_makespan(p, m, v, 3.0, c)
    assert t.makespan == pytest.approx(counted + p * c, abs=1e-9)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_gpipe_closed_form_for_uneven_stages(data):
    p, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
    times = st.lists(st.integers(0, 9), min_size=p, max_size=p)
    forward, backward = data.draw(times), data.draw(times)
    c = data.draw(st.integers(0, 3))
    t = simulate(schedule("gpipe", p, m), forward, backward, latency=c)
    # a first stage of no length still starts at 0: the clock of a Timeline is its first span
    assert t.makespan == cf.gpipe_makespan(forward, backward, m, c)


@pytest.mark.parametrize(("p", "rounds"), [(1, 3), (2, 1), (2, 4), (4, 2), (5, 3)])
def test_1f1b_pays_the_latency_every_round_and_gpipe_once(p, rounds):
    m, c = p * rounds, 0.01
    one = simulate(schedule("1f1b", p, m), latency=c)
    assert one.makespan == pytest.approx(cf.one_forward_one_backward_makespan(p, m, 1, 2, c))
    gpipe = simulate(schedule("gpipe", p, m), latency=c)
    assert gpipe.makespan == pytest.approx(cf.gpipe_makespan([1] * p, [2] * p, m, c))
    assert gpipe.makespan <= one.makespan + 1e-9


def test_1f1b_formula_refuses_what_it_does_not_cover():
    with pytest.raises(ScheduleError, match="multiple of 4 micro-batches, got 6"):
        cf.one_forward_one_backward_makespan(4, 6, 1, 2, latency=0.1)


def every_order(stage: int, m: int):
    """Every order of one device with rising micro-batches and no backward before its forward."""
    for turns in combinations(range(2 * m), m):
        kinds = ["F" if t in turns else "B" for t in range(2 * m)]
        counts = [kinds[: t + 1].count("F") - kinds[: t + 1].count("B") for t in range(2 * m)]
        if min(counts) >= 0:
            yield [Action(k, stage, kinds[:t].count(k)) for t, k in enumerate(kinds)]


@pytest.mark.parametrize(
    ("forward", "backward", "latency"),
    [([1, 1], [2, 2], 0), ([1, 1], [2, 2], 0.5), ([2, 1], [1, 2], 0.25), ([1, 3], [1, 3], 1)],
)
def test_no_order_of_2_devices_beats_the_lower_bound(forward, backward, latency):
    m = 3
    bound = cf.lower_bound(forward, backward, m, latency)
    fastest, ran = np.inf, 0
    for orders in product(every_order(0, m), every_order(1, m)):
        try:
            t = simulate(Schedule.of(orders, (0, 1)), forward, backward, latency)
        except ScheduleError:  # a deadlock
            continue
        ran += 1
        assert t.makespan >= bound
        fastest = min(fastest, t.makespan)
    assert ran > 5
    assert fastest == bound  # tight here, so a bound that is too low would be seen


def test_split_backward_fills_the_bubble_and_respects_its_own_bound():
    full = simulate(schedule("1f1b", 2, 2))
    split = Schedule.from_text("0F0,0F1,0I0,0W0,0I1,0W1 ; 1F0,1I0,1F1,1I1,1W0,1W1")
    t = simulate(split, 1.0, backward_input=1.0, backward_weight=1.0)
    bound = cf.split_lower_bound([1, 1], [2, 2], 2)
    assert bound == 7 <= t.makespan < full.makespan == 9
    assert t.makespan == 7
    assert t.peak_in_flight == (2, 2)


@pytest.mark.parametrize(
    ("given_times", "expected"),
    [
        ({}, (2.0, 1.0, 1.0)),
        ({"backward": 3.0}, (3.0, 1.5, 1.5)),
        ({"backward_input": 1.2, "backward_weight": 0.8}, (2.0, 1.2, 0.8)),
        ({"backward_input": 1.5}, (2.0, 1.5, 0.5)),
        ({"backward_weight": 0.5}, (2.0, 1.5, 0.5)),
        ({"backward": 1.9, "backward_input": 1.2, "backward_weight": 0.8}, (1.9, 1.2, 0.8)),
    ],
)
def test_how_the_backward_splits(given_times, expected):
    full = simulate(schedule("gpipe", 1, 1), 1.0, **given_times)
    split = simulate(Schedule.from_text("0F0,0I0,0W0"), 1.0, **given_times)
    whole = full.end[1] - full.start[1]
    parts = (split.end - split.start)[1:]
    assert (whole, *parts) == pytest.approx(expected)


def test_stages_on_one_device_pay_no_latency():
    s = schedule("looped-bfs", 3, 2, devices=1)
    assert simulate(s, latency=5.0).makespan == simulate(s).makespan == 18


def test_inference_naive_shows_who_works_when():
    """8 layers on 4 workers, forward only: while worker 2 computes, workers 0 and 3 idle."""
    t = simulate(schedule("naive", 4, 1, forward_only=True), 2.0)
    assert [t.state(d, 5.0) for d in range(4)] == ["idle", "idle", "F0", "idle"]
    assert t.makespan == 8
    assert t.peak_in_flight == (1, 1, 1, 1)


def test_2_to_4_workers_with_the_same_total_work_halve_utilisation_and_triple_the_idle_time():
    total = 12.0
    two, four = (
        simulate(schedule("naive", p, 1), total / 3 / p, 2 * total / 3 / p) for p in (2, 4)
    )
    assert (two.utilisation, four.utilisation) == (0.5, 0.25)
    assert two.makespan == four.makespan == total
    assert (two.idle, four.idle) == (total, 3 * total)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forward": -1}, "forward must be finite and 0 or more seconds, got -1"),
        ({"backward": float("nan")}, "backward must be finite"),
        (
            {"forward": [1, 2, 3]},
            r"2 numbers \(one per stage\) or a table of 2 x 3 .* shape \(3,\)",
        ),
        ({"forward": "fast"}, "forward must be numbers of seconds, got 'fast'"),
        ({"forward": [[1, 2], [3]]}, "forward must be numbers of seconds"),
        ({"latency": [1, 1]}, r"1 for 2 stages, or a table of 2 x 2 links; got shape \(2,\)"),
        ({"latency": -0.5}, "latency must be finite"),
        ({"backward_input": 3.0}, "backward_weight would be -1 of a backward of 2 seconds"),
        ({"backward_weight": 3.0}, "backward_input would be -1"),
    ],
)
def test_refuses_times(options, message):
    with pytest.raises(ScheduleError, match=message):
        simulate(schedule("gpipe", 2, 3), **options)


@pytest.mark.long
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "naive", "interleaved", "looped-bfs"])
def test_compiled_loops_give_the_times_of_the_plain_ones(name, monkeypatch):
    devices = {"devices": 3} if name in ("interleaved", "looped-bfs") else {}
    s = schedule(name, 6, 7, **devices)
    rng = np.random.default_rng(3)
    times = [rng.integers(0, 9, (6, 7)) for _ in range(2)], rng.integers(0, 3, 5)
    monkeypatch.setattr(longest_path, "LARGE", float("inf"))
    plain = simulate(s, *times[0], latency=times[1])
    monkeypatch.setattr(longest_path, "LARGE", 0)
    compiled = simulate(s, *times[0], latency=times[1])
    assert np.array_equal(plain.start, compiled.start)
    assert np.array_equal(plain.end, compiled.end)


def test_many_small_ones_are_worth_compiling_too(monkeypatch):
    solved = []
    monkeypatch.setattr(longest_path, "_solved", [0])
    monkeypatch.setattr(longest_path, "LARGE", 200)
    monkeypatch.setattr(
        longest_path, "_compiled", lambda: solved.append(True) or longest_path._solve
    )
    for wanted in (False, False, True):  # 72 actions each
        simulate(schedule("1f1b", 4, 9))
        assert bool(solved) == wanted


def test_without_a_numba_for_this_numpy_it_is_slower_and_says_so(monkeypatch):
    s = schedule("1f1b", 4, 8)
    expected = simulate(s, 1.0, 2.0)
    monkeypatch.setattr(longest_path, "_compiled", longest_path._compiled.__wrapped__)
    monkeypatch.setattr(longest_path, "LARGE", 0)
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it is an ImportError
    with pytest.warns(UserWarning, match="not compiled.*newest Numba, for NumPy"):
        found = simulate(s, 1.0, 2.0)
    assert np.array_equal(found.end, expected.end)


@pytest.mark.long
def test_a_large_order_that_cannot_run_is_refused_too():
    m = longest_path.LARGE // 4
    crossed = "\n".join(
        ",".join(f"{s}{kind}{i}" for kind in "FB" for i in numbers)
        for s, numbers in enumerate((range(m), [1, 0, *range(2, m)]))
    )
    assert simulate(Schedule.from_text(crossed)).makespan > 3 * m
    stuck = Schedule.from_text(crossed.replace("1F1,", "", 1).replace("1B1,", "1B1,1F1,", 1))
    with pytest.raises(ScheduleError, match=r"backward before forward: 1B1 at turn"):
        simulate(stuck)


@pytest.mark.long
def test_a_million_actions_take_no_time_and_no_objects():
    s = schedule("1f1b", 128, 4096)
    simulate(s)  # compiles
    found = []
    calls = python_calls(
        lambda: found.append(simulate(s, np.linspace(1, 1.5, 128), 2.0, latency=0.1))
    )
    (t,) = found
    calls += python_calls(lambda: found.extend([t.bubble_fraction, max(t.peak_in_flight)]))
    assert (len(t), found[2]) == (2**20, 128)
    assert 0 < found[1] < 1
    assert calls < 20_000  # 0.08 s on a quiet machine; one object per action: 5 s
    assert "orders" not in vars(s)


def test_a_schedule_is_named_by_position_or_keyword():
    made = schedule("1f1b", 4, 8)
    ends = [
        simulate(made, forward=1.0).makespan,
        simulate(schedule=made, forward=1.0).makespan,
        simulate("1f1b", 4, 8, forward=1.0).makespan,
        simulate(schedule="1f1b", stages=4, microbatches=8, forward=1.0).makespan,
    ]
    assert ends == [33.0] * 4
