"""Memory over time: counted in loops, against the order's own peaks, and the paper's numbers."""

from itertools import pairwise

import numpy as np
import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import memory_over_time

SPLIT, WHOLE, V = ("zb-h1", "zb-h2"), ("naive", "gpipe", "1f1b"), ("zb-v", "v-half")


def held_in_loops(timeline, device: int, time: float, activation, weight_part, static) -> float:
    """What ``device`` holds just after ``time``, activation by activation."""
    held = static
    for row in timeline.to_frame().query("device == @device and kind != 'T'").itertuples():
        if row.kind == "F" and row.start <= time:
            held += activation[row.stage]
        if row.kind == "B" and row.end <= time:
            held -= activation[row.stage]
        if row.kind == "I" and row.end <= time:
            held -= activation[row.stage] - weight_part[row.stage]
        if row.kind == "W" and row.end <= time:
            held -= weight_part[row.stage]
    return held


@pytest.mark.parametrize("name", [*WHOLE, *SPLIT, *V])
def test_every_step_is_what_loops_count(name):
    stages = 6 if name in V else 3
    timeline = simulate(schedule(name, stages, 4), [1.0, 2.0, 1.5] * (stages // 3), latency=0.25)
    activation, part = [5, 7, 11] * (stages // 3), [2, 7, 0] * (stages // 3)
    held = memory_over_time(timeline, activation, part, static=[100, 200, 300])
    for device, (times, sizes) in enumerate(held.steps):
        assert (np.diff(times) >= 0).all()
        assert times[0] == 0
        for (time, size), (later, _) in pairwise(zip(times, sizes, strict=True)):
            if time < later:
                static = 100 * (device + 1)
                expected = held_in_loops(timeline, device, time, activation, part, static)
                assert size == expected
        assert sizes[-1] == 100 * (device + 1), "all that was kept is let go"


def test_whole_numbers_stay_whole_and_the_peak_is_the_earliest():
    timeline = simulate(schedule("gpipe", 2, 3), 1.0, 2.0)
    held = memory_over_time(timeline, 2**60 + 1, static=3)
    assert held.peak == (3 * (2**60 + 1) + 3, 0, 2.0)
    assert repr(held).startswith("Footprint(simulated: 2 devices, peak 3,458,764,513,820,540,934")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": [1, 2]}, "activation must be one number or 3, one per stage"),
        ({"activation": -1}, "0 or more bytes, got -1"),
        ({"activation": float("nan")}, "must be finite"),
        ({"static": [1, 2, 3, 4]}, "static must be one number or 3, one per device"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options, message):
    with pytest.raises(ScheduleError, match=message):
        memory_over_time(simulate(schedule("1f1b", 3, 2)), **options)
