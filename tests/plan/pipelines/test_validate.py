"""What cannot run is refused, and each fault is named."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.validate import validate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0,0F0", "micro-batch 0 rank 0 does 0F0, 0B0, 0F0; it is F and B"),
        ("0F0,0I0,0W0,0B0", "does 0F0, 0I0, 0W0, 0B0"),
        ("0F0,0I0", "rank 0 does 0F0, 0I0; it is"),
        ("0F0,0B0 ; 1F0", "stage 1 and micro-batch 0 rank 1 does 1F0"),
        ("0F1,0B1", "micro-batch 0 rank 0 does nothing"),
        ("@2,1;", "the schedule has no action"),
        ("@0,1; @1,0; 0F0,1F1,1B1,0B0,1F0; 0F1,1B0,0B1", "1F0 is on rank 0, but stage 1 of mi"),
        ("0F0,0F1,(0B0;0B1)OVERLAP_F_B", "at turn 2 of rank 0 it is 0B0 and 0B1"),
        ("0F0,0W0,0I0", "deadlock: rank 0 is at 0W0 and waits for 0I0"),
        # each half could run, but not at once: 1F1 waits for 0F1, and that for 1B0 beside it
        (
            "0F0,(0F1;0B0)OVERLAP_F_B,0B1 ; 1F0,(1F1;1B0)OVERLAP_F_B,1B1",
            "deadlock: rank 0 is at 0F1 and 0B0 and waits for 1B0; rank 1 is at 1F1 and 1B0 "
            "and waits for 0F1",
        ),
        (
            "0F0,0B0,0F1,0B1 ; 1F1,1B1,1F0,1B0",
            "deadlock: rank 0 is at 0B0 and waits for 1B0; rank 1 is at 1F1 and waits for 0F1",
        ),
    ],
)
def test_names_each_fault(text, message):
    for refuse in (validate, simulate):
        with pytest.raises(ScheduleError, match=message):
            refuse(Schedule.from_text(text))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_any_single_fault_planted_in_a_good_schedule_is_seen(seed):
    """Drop, double or move one action, or put it before what it needs: never accepted."""
    draw = random.Random(seed)
    s = schedule("1f1b", draw.randint(2, 4), draw.randint(2, 5))
    orders = [list(order) for order in s.orders]
    device = draw.randrange(s.devices)
    turn = draw.randrange(len(orders[device]))
    action = orders[device][turn]
    fault = draw.choice(("drop", "double", "move", "reverse"))
    if fault in ("drop", "move"):
        del orders[device][turn]
    if fault == "double":
        orders[device].insert(draw.randrange(len(orders[device])), action)
    if fault == "move":
        orders[(device + 1) % s.devices].append(action)
    if fault == "reverse":
        orders[device].reverse()
    with pytest.raises(ScheduleError):
        validate(Schedule.of(orders, s.place), s.stages, s.microbatches)


def test_what_is_of_no_micro_batch_or_of_another_model_is_refused():
    with pytest.raises(ScheduleError, match="0F-1 on rank 0 is unknown"):
        validate(Schedule.of([[Action("F", 0, -1)]], [0]))
    with pytest.raises(ScheduleError, match=r"has 3 stages and 8 .* should be 4"):
        validate(schedule("1f1b", 3, 8), stages=4)


@pytest.mark.parametrize(
    ("forward_only", "limit", "message"),
    [
        (False, 3, "rank 0 keeps 4 activations at turn 3, and may keep 3"),
        (False, [4, 2], "rank 1 keeps 4 activations at turn 3, and may keep 2"),
        (False, [4, 4, 4], "got 3 memory limits for 2 devices"),
        (True, 0, "keeps 1 activations at turn 0, and may keep 0"),
    ],
)
def test_memory_limit_names_the_moment_and_takes_one_per_device(forward_only, limit, message):
    made = schedule("gpipe", 2, 4, forward_only=forward_only)
    with pytest.raises(ScheduleError, match=message):
        validate(made, memory_limit=limit)
    for enough in (1,) if forward_only else (4, [4, 4]):
        assert validate(made, memory_limit=enough) is made
