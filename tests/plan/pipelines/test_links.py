"""How results travel: against a plain reference, by hand, and for every schedule there is.

Holds `tiledask.plan.pipelines.costs` and `tiledask.plan.pipelines.schedules`.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.validate import needs


def any_schedule(name: str, devices: int, m: int) -> Schedule:
    if is_looped(name):
        return schedule(name, 2 * devices, m, devices=devices)
    even = name in (*V_SHAPED, "dualpipe")
    return schedule(name, 2 * devices if even else devices, m)


def reference(s: Schedule, seconds, together, hop) -> dict:
    """(start, end) of every action, by repeating the definition until nothing changes.

    seconds(action), together(forward, backward), hop(action, user).
    """
    waits = needs(s)
    blocks = []  # by device: the actions that are done at once
    for order, pairs in zip(s.orders, np.split(s.paired, s.turns[1:-1]), strict=True):
        rest = iter(zip(order, pairs, strict=True))
        blocks.append([(a, next(rest)[0]) if pair else (a,) for a, pair in rest])
    end, start = dict.fromkeys(s, 0.0), {}
    while True:
        before = dict(start)
        for device_blocks in blocks:
            free = 0.0
            for block in device_blocks:
                needed = [end[b] + hop(b, a) for a in block for b in waits[a]]
                begin = max(free, *needed, 0.0)
                free = begin + (together(*block) if len(block) == 2 else seconds(block[0]))
                for a in block:
                    start[a], end[a] = begin, free
        if start == before:
            return {a: (start[a], end[a]) for a in s}


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

    name = data.draw(st.sampled_from(list(schedules)))
    s = any_schedule(name, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6)))
    times = {kind: lists(halves, s.stages, s.microbatches) for kind in "FIW"}
    latency = lists(halves, s.stages - 1)
    longest = sum(np.max(t) for t in times.values())
    both = data.draw(st.none() | st.just(longest))

    def seconds(a: Action) -> float:
        kinds = "IW" if a.kind == "B" else a.kind
        return sum(times[kind][a.stage][a.microbatch] for kind in kinds)

    def together(f: Action, b: Action) -> float:
        return seconds(f) + seconds(b) if both is None else both

    def hop(a: Action, b: Action) -> float:
        if s.holder(*a[1:]) == s.holder(*b[1:]):
            return 0.0
        return latency[min(a.stage, b.stage)]

    t = simulate(
        s,
        times["F"],
        backward_input=times["I"],
        backward_weight=times["W"],
        latency=latency,
        overlapped=both,
    )
    columns = (t.kind, t.stage, t.microbatch, t.start, t.end)
    got = {Action(str(k), int(r), int(i)): (a, b) for k, r, i, a, b in zip(*columns, strict=True)}
    assert got == reference(s, seconds, together, hop)
    assert t.lower_bound <= t.makespan + 1e-9
    assert t.origin == "simulated"


def test_a_pair_waits_for_both_and_takes_its_own_time():
    s = Schedule.from_text("0F0,(0F1;0B0)OVERLAP_F_B,0B1 ; 1F0,1B0,1F1,1B1")
    t = simulate(s, 1.0, 2.0, overlapped=2.5)
    rows = dict(zip(map(str, s), zip(t.start, t.end, strict=True), strict=True))
    assert rows["0F1"] == rows["0B0"] == (4.0, 6.5)
    assert rows["1F1"] == (6.5, 7.5)
    assert simulate(s, 1.0, 2.0).makespan == t.makespan + 0.5
    assert t.busy_per_device == (1 + 2.5 + 2, 6.0)
    assert t.peak_in_flight == (2, 1)
