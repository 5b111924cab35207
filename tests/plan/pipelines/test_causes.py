"""Idle time by its cause: the pieces and the work make up the makespan, and each has its reason.

Holds `tiledask.plan.pipelines.timeline`.
"""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ScheduleError
from tiledask.lab.sweep import schedule_on
from tiledask.plan.pipelines.schedules import schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import CAUSES, KINDS, Timeline

SPAN = st.tuples(
    st.integers(0, 3),
    st.sampled_from(KINDS),
    *(st.integers(0, most) for most in (3, 5, 40, 12)),
)


def check(t: Timeline) -> None:
    """Work and idle pieces cover every device from 0 to the makespan, and never twice."""
    found = t.idle_time
    for d in range(t.devices):
        mine = (t.device == d) & t.computes
        busy = zip(t.start[mine].tolist(), t.end[mine].tolist(), strict=True)
        rows = found.device == d
        idle = list(zip(found.start[rows].tolist(), found.end[rows].tolist(), strict=True))
        assert idle == sorted(idle)
        reach = 0.0
        for kind, (start, end) in sorted(
            [*((1, span) for span in busy), *((0, piece) for piece in idle)], key=lambda x: x[1]
        ):
            if kind:
                assert start <= reach  # no hole before it
                reach = max(reach, end)
            else:
                assert start == reach < end  # no work in it
                reach = end
        assert reach == t.makespan
    for d, seconds in enumerate(zip(*found.per_device.values(), strict=True)):
        assert sum(seconds) == pytest.approx(t.idle_per_device[d], abs=1e-9 * t.makespan)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", sorted(schedules))
def test_causes_partition_idle_time_and_hardly_differ_for_hardly_other_stages(name):
    rng = np.random.default_rng(len(name))
    for p, m in product((1, 2, 4), (1, 3, 8)):
        try:
            s = schedule_on(name, p, m)
        except ScheduleError:  # not for so many
            continue
        for latency in (0.0, 0.3):
            even = simulate(s, 1.0, 2.0, latency)
            check(even)
            assert even.idle_time.total["overhead"] == 0
            if not latency:
                assert even.idle_time.total["transfer"] == 0
            nearly = 1 + 1e-7 * rng.random(s.stages)
            hardly = simulate(s, nearly, 2 * nearly, latency)
            check(hardly)
            assert hardly.idle_time.total == pytest.approx(even.idle_time.total, abs=1e-4)
            forward, backward = rng.uniform(0.5, 2, (2, s.stages))
            check(simulate(s, forward, backward, latency))


@settings(max_examples=150, deadline=None)
@given(st.lists(SPAN, max_size=25), st.sampled_from(["measured", "simulated"]))
def test_any_spans_at_all(rows, origin):
    spans = [(d, k, s, i, a / 2, (a + n) / 2) for d, k, s, i, a, n in rows]
    check(Timeline.of(4, spans, origin))


def test_a_wait_of_three_causes_and_the_slow_start_after_it():
    rows = [
        (0, "F", 0, 0, 0.0, 1.0),  # makes what device 1 needs at 1
        (0, "F", 0, 1, 1.0, 2.0),
        (1, "T", 0, 0, 1.25, 1.75),
        (1, "F", 1, 0, 2.0, 3.0),
        (1, "F", 1, 1, 3.5, 4.5),  # ready at 3
    ]
    found = Timeline.of(2, rows, "measured").idle_time
    causes = [list(CAUSES)[code] for code in found.code]
    pieces = zip(
        found.device.tolist(), causes, found.start.tolist(), found.end.tolist(), strict=True
    )
    assert list(pieces) == [
        (0, "draining", 2.0, 4.5),
        (1, "warm-up", 0.0, 1.0),
        (1, "overhead", 1.0, 1.25),
        (1, "transfer", 1.25, 1.75),
        (1, "overhead", 1.75, 2.0),
        (1, "overhead", 3.0, 3.5),
    ]
