"""What actions wait for, and a validator that names each fault."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.schedules import schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.validate import needs, validate


def words(actions):
    return [str(a) for a in actions]


def test_full_and_split_backwards_may_be_mixed():
    mixed = Schedule.from_text("0F0,0F1,0B0,0B1 ; 1F0,1I0,1W0,1F1,1B1")
    waits = needs(validate(mixed))
    assert words(waits[Action("B", 0, 0)]) == ["0F0", "1I0"]
    assert words(waits[Action("B", 0, 1)]) == ["0F1", "1B1"]


@pytest.mark.parametrize("name", schedules)
def test_a_feasible_order_respects_turns_and_data(name):
    looped = ("interleaved", "looped-bfs", "interleaved-zb")
    options = {"devices": 2} if name in looped else {}
    s = schedule(name, 4, 5, **options)
    waits, actions = needs(s), list(s)
    order = [actions[n + k] for n in s.steps for k in range(1 + int(s.paired[n]))]
    when = {a: t for t, a in enumerate(order)}
    assert sorted(when) == sorted(s)
    assert all(when[b] < when[a] for a in order for b in waits[a])
    for device in range(s.devices):
        turns = [when[a] for a in s.orders[device]]
        assert turns == sorted(turns)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0,0F0", "micro-batch 0 rank 0 does 0F0, 0B0, 0F0; it is F and B"),
        ("0B0,0F0", "deadlock: rank 0 is at 0B0 and waits for 0F0"),
        ("0F0,0W0,0I0", "deadlock: rank 0 is at 0W0 and waits for 0I0"),
        ("0F0,0I0", "rank 0 does 0F0, 0I0; it is"),
        ("@2,1;", "the schedule has no action"),
        ("0F0,0B0 ; 1F0", "stage 1 and micro-batch 0 rank 1 does 1F0"),
        ("0F1,0B1", "micro-batch 0 rank 0 does nothing"),
        ("0F0,0F1,(0B0;0B1)OVERLAP_F_B", "at turn 2 of rank 0 it is 0B0 and 0B1"),
        # each half could run, but not at once: 1F1 waits for 0F1, and that for 1B0 beside it
        (
            "0F0,(0F1;0B0)OVERLAP_F_B,0B1 ; 1F0,(1F1;1B0)OVERLAP_F_B,1B1",
            r"deadlock: rank 0 is at 0F1 and 0B0 and waits for 1B0; rank 1 is at 1F1 and 1B0 "
            r"and waits for 0F1",
        ),
        ("0F0,0I0,0W0,0B0", "does 0F0, 0I0, 0W0, 0B0"),
        (
            "0F0,0B0,0F1,0B1 ; 1F1,1B1,1F0,1B0",
            "deadlock: rank 0 is at 0B0 and waits for 1B0; rank 1 is at 1F1 and waits for 0F1",
        ),
    ],
)
def test_names_each_fault(text, message):
    with pytest.raises(ScheduleError, match=message):
        validate(Schedule.from_text(text))
    with pytest.raises(ScheduleError, match=message):
        simulate(Schedule.from_text(text))


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


@pytest.mark.parametrize(
    ("options", "limit", "message"),
    [
        ({}, 3, "rank 0 keeps 4 activations at turn 3, and may keep 3"),
        ({}, [4, 2], "rank 1 keeps 4 activations at turn 3, and may keep 2"),
        ({}, [4, 4, 4], "got 3 memory limits for 2 devices"),
        ({"forward_only": True}, 0, "keeps 1 activations at turn 0, and may keep 0"),
        ({}, 4, ""),
        ({}, [4, 4], ""),
        ({"forward_only": True}, 1, ""),
    ],
)
def test_memory_limit_names_the_moment_and_takes_one_per_device(options, limit, message):
    made = schedule("gpipe", 2, 4, **options)
    if not message:
        assert validate(made, memory_limit=limit) is made
        return
    with pytest.raises(ScheduleError, match=message):
        validate(made, memory_limit=limit)


def test_refuses_what_is_not_of_this_model():
    for call, message in (
        (lambda: Schedule.of([[Action("X", 0, 0)]], [0]), "kinds are F, B, I and W, got X"),
        (lambda: validate(Schedule.of([[Action("F", 0, -1)]], [0])), "0F-1 on rank 0 is unknown"),
        (lambda: validate(schedule("1f1b", 3, 8), stages=4), "has 3 stages and 8 .* should be 4"),
    ):
        with pytest.raises(ScheduleError, match=message):
            call()


def test_an_action_in_the_wrong_replica_is_named():
    text = schedule("chimera", 2, 2).to_text().replace("0F1", "0F8").replace("0F0", "0F1")
    with pytest.raises(
        ScheduleError, match="0F1 is on rank 0, but stage 0 of micro-batch 1 is placed"
    ):
        validate(Schedule.from_text(text.replace("0F8", "0F0")))
