"""The same work under every schedule: and each schedule's own memory."""

import pytest

from tiledask.lab import sweep
from tiledask.plan.pipelines.schedules import schedules


@pytest.mark.parametrize("name", schedules)
def test_every_schedule_does_the_same_work(name):
    for devices, microbatches in ((1, 1), (3, 2), (2, 3), (4, 8)):
        if name != "dualpipe" or devices % 2 == 0:  # two directions
            timeline = sweep.same_work(name, devices, microbatches)
            assert timeline.busy_per_device == pytest.approx([3.0 * microbatches] * devices)


def test_a_table_of_schedules_has_their_end_idle_time_memory_and_messages():
    names = ["gpipe", "interleaved", "zb-v", "chimera"]
    rows = sweep.compare_schedules(names, 4, 8)
    boundaries = 2 * 8  # messages over each, there and back
    assert [[name, *row.values()] for name, row in rows.items()] == [
        ["gpipe", 33.0, pytest.approx(3 / 11), 8.0, 1.0, 3 * boundaries],
        ["interleaved", 28.5, pytest.approx(4.5 / 28.5), 5.5, 1.0, 7 * boundaries],
        # one of seven boundaries lies within a device
        ["zb-v", 25.5, pytest.approx(1.5 / 25.5), 4.0, 1.0, 6 * boundaries],
        ["chimera", 29.0, pytest.approx(5 / 29), 4.0, 2.0, 3 * boundaries],
    ]
    assert sweep.compare_schedules(["gpipe"], 4, 8, latency=0.25)["gpipe"]["ends"] == 34.5
