"""1F1B with stages on several devices each (PipeDream: 3-1, 2-2-1): orders typed as they are drawn,
every small one against a clock that counts seconds one by one.

Holds `tiledask.plan.pipelines.generators.classic`, where stages have replicas.
"""

from itertools import product
from math import lcm

import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.footprint import memory_over_time
from tiledask.plan.pipelines.needs import checked, needs, peak_in_flight, validate
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate

SMALL = [counts for p in (1, 2, 3) for counts in product((1, 2, 3), repeat=p)]


def rows(built):
    """Kind and micro-batch of each action."""
    return [" ".join(f"{a.kind}{a.microbatch}" for a in row) for row in built.orders]


def test_2_1_as_in_pipedreams_figure_8():
    """Even micro-batches on one worker of the first stage, odd ones on the other; of each two are
    under way, NOAM = ceil(3 workers / 2 replicas). Here the last backwards end the step."""
    built = schedule("1f1b", 2, 8, replicas=(2, 1))
    assert rows(built) == [
        "F0 F2 B0 F4 B2 F6 B4 B6",
        "F1 F3 B1 F5 B3 F7 B5 B7",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
    ]
    assert built.places == ((0, 2), (1, 2))


def test_2_3_needs_a_row_of_places_for_six_microbatches():
    built = schedule("1f1b", 2, 7, replicas=(2, 3))
    assert built.places == ((0, 2), (1, 3), (0, 4), (1, 2), (0, 3), (1, 4))
    assert [built.holder(1, i) for i in range(7)] == [2, 3, 4, 2, 3, 4, 2]
    assert (built.holders(0), built.holders(1)) == ((0, 1), (2, 3, 4))
    assert (built.replicas, built.pipelines, built.devices) == (3, 6, 5)
    assert rows(built)[0] == "F0 F2 F4 B0 F6 B2 B4 B6"  # ceil(5 / 2) of them are under way
    assert built.name == "1f1b, 2-3"
    with pytest.raises(ScheduleError, match=r"stage 0 of .* is on 2 devices; places has"):
        _ = built.place
    few = schedule("1f1b", 2, 5, replicas=(3, 5))
    assert few.pipelines == 5  # as many as there are micro-batches


def test_one_replica_of_each_is_1f1b():
    assert schedule("1f1b", 3, 5, replicas=(1, 1, 1)) == schedule("1f1b", 3, 5)
    alone = schedule("1f1b", 1, 5, replicas=(2,))
    assert rows(alone) == ["F0 B0 F2 B2 F4 B4", "F1 B1 F3 B3"]  # data parallel


def ticked(built, forward, backward):
    """The makespan by a clock that goes on by one second, and looks at every device."""
    waits, queue = needs(built), [list(order) for order in built.orders]
    ends, busy, now = {}, [0] * built.devices, 0
    while any(queue) or max(busy) > now:
        for device, line in enumerate(queue):
            free = line and busy[device] <= now
            if free and all(ends.get(b, now + 1) <= now for b in waits[line[0]]):
                action = line.pop(0)
                seconds = (forward if action.kind == "F" else backward)[action.stage]
                ends[action] = busy[device] = now + seconds
        now += 1
    return max(ends.values())


@pytest.mark.long
@pytest.mark.few(8)
@pytest.mark.parametrize("counts", SMALL, ids=str)
def test_every_small_one_runs_as_the_clock_says(counts):
    p = len(counts)
    for m in range(max(counts), 9):
        built = schedule("1f1b", p, m, replicas=counts)
        checked(validate(built))
        assert built.pipelines == min(lcm(*counts), m)
        assert Schedule.from_text(built.to_text()) == built
        assert len(set(built)) == len(built) == 2 * p * m
        here = [(s, k) for s, r in enumerate(counts) for k in range(r)]
        for order, at in zip(built.orders, here, strict=True):
            assert {(a.stage, a.microbatch % counts[a.stage]) for a in order} == {at}
        mine = [-(-(m - k) // counts[s]) for s, k in here]
        most = [-(-sum(counts[s:]) // counts[s]) for s, _ in here]
        assert peak_in_flight(built) == tuple(map(min, mine, most))
        forward, backward = [1 + (s + m) % 3 for s in range(p)], [2 + s % 2 for s in range(p)]
        timeline = simulate(built, forward, backward)
        assert timeline.makespan == ticked(built, forward, backward)
        assert memory_over_time(timeline).peaks == peak_in_flight(built) == timeline.peak_in_flight
        path = timeline.critical_path
        assert path.compute + path.latency == timeline.makespan
        assert timeline.lower_bound <= timeline.makespan
        assert sum(timeline.idle_time.total.values()) == pytest.approx(timeline.idle)


@pytest.mark.parametrize(
    ("counts", "seconds"), [((3, 1), (3, 1)), ((2, 2, 1), (4, 2, 1)), ((2, 3), (1, 9))]
)
def test_another_microbatch_takes_as_long_as_the_slowest_stage_over_its_replicas(counts, seconds):
    """What a partition with replicas makes least: max of stage time / replicas."""

    def makespan(m):
        backward = [2 * each for each in seconds]
        return simulate(schedule("1f1b", len(counts), m, replicas=counts), seconds, backward)

    slowest = max(3 * t / r for t, r in zip(seconds, counts, strict=True))
    assert makespan(120).makespan - makespan(60).makespan == 60 * slowest


@pytest.mark.parametrize(
    ("stages", "options", "words"),
    [
        (2, {"replicas": (3,)}, r"of each stage on how many devices .* got \(3,\) for 2 stages"),
        (2, {"replicas": "31"}, "got '31' for 2 stages"),
        (2, {"replicas": 2}, "got 2 for 2 stages"),
        (2, {"replicas": (3, 0)}, "replicas of stage 1 must be a whole number of 1 or more, got 0"),
        (2, {"replicas": (1, 5)}, "stage 1 has 5 replicas for 4 micro-batches; use 5 or more"),
    ],
)
def test_refuses(stages, options, words):
    with pytest.raises(ScheduleError, match=words):
        schedule("1f1b", stages, 4, **options)
    with pytest.raises(ScheduleError, match="'gpipe' has no option 'replicas'"):
        schedule("gpipe", stages, 4, **options)


def test_an_action_on_another_replica_is_named():
    text = schedule("1f1b", 2, 4, replicas=(2, 1)).to_text()
    wrong = text.replace("0F2", "0F9").replace("0F1", "0F2").replace("0F9", "0F1")
    with pytest.raises(ScheduleError, match="0F1 is on rank 0, but pipeline 1's stage 0 is pl"):
        validate(Schedule.from_text(wrong))
