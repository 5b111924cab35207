"""Times of a schedule: against a plain reference, closed forms and bounds; memory over time."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.closed_pipelines import interleaved_makespan

from tiledask import Action, Schedule, memory_over_time, schedule, schedules, simulate
from tiledask.errors import ScheduleError
from tiledask.lab.sweep import schedule_on
from tiledask.plan import formulas as cf
from tiledask.plan.pipelines.validate import most_kept


def reference(s: Schedule, seconds, together, hop) -> dict:
    """(start, end) of every action, by repeating the definition until nothing changes.

    seconds(action), together(forward, backward), hop(action, user).
    """
    back = {a[1:]: a for a in s if a.kind in "BI"}

    def used(a: Action) -> list:
        if a.kind == "W":
            return [back[a[1:]]]
        if a.kind == "F":
            return [a._replace(stage=a.stage - 1)]
        return [a._replace(kind="F"), back.get((a.stage + 1, a.microbatch))]

    blocks = []  # by device: the actions that are done at once
    for order, pairs in zip(s.orders, np.split(s.paired, s.turns[1:-1]), strict=True):
        rest = iter(zip(order, pairs, strict=True))
        blocks.append([(a, next(rest)[0]) if pair else (a,) for a, pair in rest])
    spans, before = dict.fromkeys(s, (0.0, 0.0)), None
    while spans != before:
        before = dict(spans)
        for device_blocks in blocks:
            free = 0.0
            for block in device_blocks:
                uses = ((b, a) for a in block for b in used(a) if b in spans)
                begin = max(free, *(spans[b][1] + hop(b, a) for b, a in uses), 0.0)
                free = begin + (together(*block) if len(block) == 2 else seconds(block[0]))
                spans |= dict.fromkeys(block, (begin, free))
    return spans


halves = st.integers(0, 6).map(lambda n: n / 2)  # exact in binary, so that equal means equal


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(10))
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_equals_the_reference_for_any_schedule(part, data):
    def lists(values, *shape):
        for n in reversed(shape):
            values = st.lists(values, min_size=n, max_size=n)
        return data.draw(values)

    name, half = data.draw(st.sampled_from([*schedules])), data.draw(st.integers(1, 3))
    devices = 2 * half if name == "dualpipe" else half
    s = schedule_on(name, devices, data.draw(st.integers(1, 6)))
    times = {kind: lists(halves, s.stages, s.microbatches) for kind in "FIW"}
    latency = lists(halves, s.stages - 1)
    longest = sum(np.max(t) for t in times.values())
    both = data.draw(st.none() | st.just(longest))

    def seconds(a: Action) -> float:
        return sum(times[kind][a.stage][a.microbatch] for kind in a.kind.replace("B", "IW"))

    def together(f: Action, b: Action) -> float:
        return seconds(f) + seconds(b) if both is None else both

    def hop(a: Action, b: Action) -> float:
        here = s.holder(*a[1:]) == s.holder(*b[1:])
        return 0.0 if here else latency[min(a.stage, b.stage)]

    F, I, W = times.values()
    t = simulate(s, F, None, latency, I, W, overlapped=both)
    columns = (t.kind, t.stage, t.microbatch, t.start, t.end)
    got = {Action(str(k), int(r), int(i)): (a, b) for k, r, i, a, b in zip(*columns, strict=True)}
    assert got == reference(s, seconds, together, hop)
    assert t.lower_bound <= t.makespan + 1e-9
    assert t.origin == "simulated"


# -- closed forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", range(1, 6))
@pytest.mark.parametrize("v", range(1, 5))
@pytest.mark.parametrize("extra", range(5))
def test_interleaving_divides_the_bubble_by_the_chunks_for_any_m_from_p_on(p, v, extra):
    """The closed form asks for m a multiple of p; even groups reach it for every m >= p."""
    m, c = p + extra, 0.001
    s = schedule("interleaved", p * v, m, devices=p)
    t = simulate(s, 1.0 / v, 2.0 / v)
    assert t.makespan == pytest.approx(interleaved_makespan(p, m, v, stage=3.0))
    assert t.bubble_overhead == pytest.approx(cf.bubble_overhead(p, m, v))
    assert t.bubble_fraction == pytest.approx(cf.bubble_fraction(p, m, v))
    assert t.peak_in_flight == most_kept(s)[0]
    if v > 1 < p:  # every hop back to the first device is paid
        t = simulate(schedule("interleaved", p * v, 3 * p, devices=p), 1.0 / v, 2.0 / v, c)
        counted = interleaved_makespan(p, 3 * p, v, 3.0, c)
        assert t.makespan == pytest.approx(counted + p * c, abs=1e-9)


def test_a_split_backward_need_not_wait_for_the_way_back():
    text = "0F0,0F1,0I0,0W0,0I1,0W1 ; 1F0,1I0,1F1,1I1,1W0,1W1"
    t = simulate(Schedule.from_text(text), 1.0, 2.0)
    assert t.lower_bound == cf.lower_bound([1, 1], [2, 2], 2, split=True) == t.makespan == 7.0


# -- what is given ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backward", "inputs", "weights", "expected"),
    [
        (None, None, None, (2.0, 1.0, 1.0)),
        (3.0, None, None, (3.0, 1.5, 1.5)),
        (None, 1.5, None, (2.0, 1.5, 0.5)),
        (None, None, 0.5, (2.0, 1.5, 0.5)),
        (1.9, 1.2, 0.8, (1.9, 1.2, 0.8)),
    ],
)
def test_how_the_backward_splits(backward, inputs, weights, expected):
    times = 1.0, backward, 0.0, inputs, weights
    (_, full) = simulate(schedule("gpipe", 1, 1), *times).end
    split = simulate(Schedule.from_text("0F0,0I0,0W0"), *times).end
    assert (full - 1, *np.diff(split)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (simulate, {"forward": -1}, "forward must be finite and 0 or more seconds, got -1"),
        (simulate, {"forward": [1, 2]}, r"or a table of 3 x 2 .* got shape \(2,\)"),
        (simulate, {"forward": "fast"}, "forward must be numbers of seconds, got 'fast'"),
        (simulate, {"latency": [1]}, r"2, one per boundary between stages; got shape \(1,\)"),
        (simulate, {"backward_weight": 3.0}, "is more than the whole of 2 seconds"),
        (memory_over_time, {"activation": [1, 2]}, "activation must be one number or 3, one per s"),
        (memory_over_time, {"activation": -1}, "0 or more bytes, got -1"),
        (memory_over_time, {"weight_part": 2}, "weight_part is at most activation"),
        (memory_over_time, {"static": [1, 2, 3, 4]}, "static must be one number or 3, one per dev"),
    ],
)
def test_times_and_sizes_that_cannot_be_are_refused(call, options, message):
    made = schedule("1f1b", 3, 2)
    with pytest.raises(ScheduleError, match=message):
        call(made if call is simulate else simulate(made), **options)


# -- memory over time ------------------------------------------------------------------------------


def held_in_loops(timeline, device: int, time: float, activation, weight_part) -> float:
    """What ``device`` keeps just after ``time``, activation by activation."""
    held = 0
    for row in timeline.to_frame().query("device == @device").itertuples():
        whole, part = activation[row.stage], weight_part[row.stage]
        if time >= (row.start if row.kind == "F" else row.end):
            held += {"F": whole, "B": -whole, "I": part - whole, "W": -part}[row.kind]
    return held


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "v-half"])
def test_every_step_is_what_loops_count(name):
    s = schedule_on(name, 3, 4)
    timeline = simulate(s, [1.0, 2.0, 1.5] * (s.stages // 3), latency=0.25)
    activation, part = [5, 7, 11] * (s.stages // 3), [2, 7, 0] * (s.stages // 3)
    static = [100, 200, 300]
    held = memory_over_time(timeline, activation, part, static)
    for device, (times, sizes) in enumerate(held.steps):
        assert times[0] == 0
        assert (np.diff(times) >= 0).all()
        for (time, size), (later, _) in pairwise(zip(times, sizes, strict=True)):
            if time < later:
                kept = held_in_loops(timeline, device, time, activation, part)
                assert size == static[device] + kept
        assert sizes[-1] == static[device], "all that was kept is let go"


def test_whole_numbers_stay_whole_and_the_peak_is_the_earliest():
    held = memory_over_time(simulate(schedule("gpipe", 2, 3), 1.0, 2.0), 2**60 + 1, static=3)
    assert held.peak == (3 * (2**60 + 1) + 3, 0, 2.0)
