"""The simulation against closed forms and bounds.

Holds `tiledask.plan.pipelines.closed_form`.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.closed_pipelines import gpipe_makespan, interleaved_makespan

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines import closed_form as cf
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.validate import peak_in_flight


@pytest.mark.parametrize("p", range(1, 7))
@pytest.mark.parametrize("m", range(1, 9))
def test_closed_forms_for_equal_stages(p, m):
    naive, gpipe, one = (simulate(schedule(n, p, m)) for n in ("naive", "gpipe", "1f1b"))
    assert naive.utilisation == pytest.approx(1 / p)
    for t in (gpipe, one):
        assert t.makespan == 3 * (m + p - 1)
        assert t.bubble_fraction == pytest.approx(cf.bubble_fraction(p, m))
        assert t.bubble_overhead == pytest.approx(cf.bubble_overhead(p, m))
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
    assert t.makespan == pytest.approx(interleaved_makespan(p, m, v, stage=3.0))
    assert t.bubble_overhead == pytest.approx(cf.bubble_overhead(p, m, v))
    assert t.bubble_fraction == pytest.approx(cf.bubble_fraction(p, m, v))
    assert max(t.peak_in_flight) == max(peak_in_flight(s))
    if v > 1 < p:  # every hop back to the first device is paid
        m, c = 3 * p, 0.001
        s = schedule("interleaved", p * v, m, devices=p)
        counted = interleaved_makespan(p, m, v, 3.0, c)
        t = simulate(s, 1.0 / v, 2.0 / v, latency=c)
        assert t.makespan == pytest.approx(counted + p * c, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_gpipe_closed_form_for_uneven_stages(data):
    p, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
    times = st.lists(st.integers(0, 9), min_size=p, max_size=p)
    forward, backward = data.draw(times), data.draw(times)
    c = data.draw(st.integers(0, 3))
    t = simulate(schedule("gpipe", p, m), forward, backward, latency=c)
    # a first stage of no length still starts at 0: the clock of a Timeline is its first span
    assert t.makespan == gpipe_makespan(forward, backward, m, c)


@pytest.mark.parametrize(
    ("backward", "inputs", "weights", "expected"),
    [
        (None, None, None, (2.0, 1.0, 1.0)),
        (3.0, None, None, (3.0, 1.5, 1.5)),
        (None, 1.2, 0.8, (2.0, 1.2, 0.8)),
        (None, 1.5, None, (2.0, 1.5, 0.5)),
        (None, None, 0.5, (2.0, 1.5, 0.5)),
        (1.9, 1.2, 0.8, (1.9, 1.2, 0.8)),
    ],
)
def test_how_the_backward_splits(backward, inputs, weights, expected):
    times = {"backward": backward, "backward_input": inputs, "backward_weight": weights}
    times = {name: seconds for name, seconds in times.items() if seconds is not None}
    full = simulate(schedule("gpipe", 1, 1), 1.0, **times)
    split = simulate(Schedule.from_text("0F0,0I0,0W0"), 1.0, **times)
    parts = (split.end - split.start)[1:]
    assert (full.end[1] - full.start[1], *parts) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forward": -1}, "forward must be finite and 0 or more seconds, got -1"),
        ({"forward": [1, 2, 3]}, r"2 numbers .* or a table of 2 x 3 .* got shape \(3,\)"),
        ({"forward": "fast"}, "forward must be numbers of seconds, got 'fast'"),
        ({"latency": [1, 1]}, r"1, one per boundary between stages; got shape \(2,\)"),
        ({"latency": -0.5}, "latency must be finite"),
        ({"backward_weight": 3.0}, "a part of the backward is more than the whole of 2 seconds"),
    ],
)
def test_refuses_times(options, message):
    with pytest.raises(ScheduleError, match=message):
        simulate(schedule("gpipe", 2, 3), **options)


def test_a_split_backward_need_not_wait_for_the_way_back():
    text = "0F0,0F1,0I0,0W0,0I1,0W1 ; 1F0,1I0,1F1,1I1,1W0,1W1"
    t = simulate(Schedule.from_text(text), 1.0, 2.0)
    assert t.lower_bound == cf.lower_bound([1, 1], [2, 2], 2, split=True) == t.makespan == 7.0


@pytest.mark.parametrize("p", range(1, 6))
@pytest.mark.parametrize("m", [1, 2, 5, 13])
@pytest.mark.parametrize("latency", [0, 0.25, 1])
def test_eager_1f1b_hides_the_latency_that_1f1b_pays(p, m, latency):
    eager, usual = (
        simulate(schedule(name, p, m), 1.0, 2.0, latency) for name in ("eager-1f1b", "1f1b")
    )
    assert eager.makespan == pytest.approx(eager.lower_bound)
    assert eager.peak_in_flight == tuple(min(m, 2 * (p - s) - 1) for s in range(p))
    assert usual.makespan > eager.makespan or not (latency and p > 2 and m > p)
