"""Schedules typed in the shape of their figures, their text form, and laws for any p and m."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.schedules import BOTH_WAYS, V_SHAPED, is_looped, schedule, schedules
from tiledask.plan.pipelines.validate import validate


def typed(*rows: str) -> list[list[str]]:
    return [row.split() for row in rows]


def shown(built: Schedule) -> list[list[str]]:
    """Kind and micro-batch of each action, as in the papers' figures."""
    return [[f"{a.kind}{a.microbatch}" for a in built.orders[d]] for d in range(built.devices)]


def test_1f1b_warms_up_by_the_stages_behind():
    assert shown(schedule("1f1b", 4, 6)) == typed(
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    )


def test_zb_h1_and_zb_h2():
    assert shown(schedule("zb-h1", 3, 4)) == typed(
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    )
    assert shown(schedule("zb-h2", 2, 4)) == typed(
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3", "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"
    )


def of_any_name(name: str, devices: int, microbatches: int, chunks: int) -> Schedule:
    """With ``chunks`` stages per device where the schedule lets one choose."""
    if is_looped(name):
        stages = devices * chunks
        return schedule(name, stages, microbatches, devices=devices)
    even = name in V_SHAPED or name == "dualpipe"
    return schedule(name, 2 * devices if even else devices, microbatches)


@pytest.mark.parametrize("name", schedules)
def test_what_the_table_says_of_a_schedule_is_what_it_makes(name):
    """Stages on a device, copies of the model: a new line of the table is held by it."""
    s = of_any_name(name, devices=4, microbatches=8, chunks=2)
    assert s.replicas == (2 if name in BOTH_WAYS else 1)
    each = {row.count(device) for row in s.places for device in range(s.devices)}
    wanted = 2 if is_looped(name) or name in V_SHAPED else 1
    assert each == {wanted} or name == "dualpipe"


@st.composite
def built(draw, names=tuple(schedules), most=6):
    name = draw(st.sampled_from(names))
    return of_any_name(
        name, draw(st.integers(1, most)), draw(st.integers(1, 13)), draw(st.integers(1, 4))
    )


def assert_complete(s):
    rows, numbers = range(s.stages), range(s.microbatches)
    assert {a for a in s if a.kind == "F"} == {Action("F", r, i) for r in rows for i in numbers}
    ends = [(a.stage, a.microbatch) for a in s if a.kind in "BW"]
    assert sorted(ends) == [(r, i) for r in rows for i in numbers]
    assert len(set(s)) == len(s)
    assert all(s.holder(*a[1:]) == d for d in range(s.devices) for a in s.orders[d])
    assert validate(s) is s


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(5))
@settings(max_examples=60, deadline=None)
@given(built())
def test_every_action_is_there_once_in_its_place_and_runs(part, s):
    assert_complete(s)


@settings(max_examples=100, deadline=None)
@given(built())
def test_text_round_trip(s):
    again = Schedule.from_text(s.to_text())
    assert again == s
    assert again.to_text() == s.to_text()
    assert hash(again) == hash(s)


def test_a_forward_and_a_backward_at_once_are_written_as_pytorch_does():
    text = "0F0,(0F1;0B0)OVERLAP_F_B,0B1 ; 1F0,1B0,1F1,1B1"
    s = Schedule.from_text(text)
    assert s.paired.tolist() == [False, True] + 6 * [False]
    assert s.to_text() == text.replace(" ; ", "\n")
    assert s != Schedule.from_text(text.replace("(0F1;0B0)OVERLAP_F_B", "0F1,0B0"))
    assert Schedule.from_text(s.to_text()) == s


def test_pipelines_are_placed_by_lines_of_their_own():
    s = Schedule.from_text("@0,1; @1,0; 0F0,1F1,1B1,0B0; 0F1,1F0,1B0,0B1")
    assert (s.replicas, s.stages, s.devices, s.places) == (2, 2, 2, ((0, 1), (1, 0)))
    assert [s.holder(0, i) for i in range(4)] == [0, 1, 0, 1]
    assert Schedule.from_text(s.to_text()) == s
    assert s == schedule("chimera", 2, 2)
    with pytest.raises(ScheduleError, match="a stage is on 2 devices; use holder"):
        _ = s.place
    for line, message in (("@0,x", "cannot read 'x'"), ("@0", r"for every stage, got \[1, 2\]")):
        with pytest.raises(ScheduleError, match=message):
            Schedule.from_text(f"@0,1; {line}; 0F0; 1F0")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedule("2f2b", 2, 2), "no schedule '2f2b'; there are naive, gpipe"),
        (lambda: schedule("1f1b", 2, 0), "microbatches must be"),
        (lambda: schedule("1f1b", True, 2), "stages must be"),
        (lambda: schedule("interleaved", 4, 2), "argument: .devices."),
        (lambda: schedule("looped-bfs", 3, 2, devices=4), "use 4 stages"),
        (lambda: Schedule.from_text("0X0"), "cannot read '0X0'"),
        (lambda: Schedule.from_text("0F0,0SEND_X0"), "cannot read '0SEND_X0'"),
        (lambda: Schedule.from_text("0F0\n2F0"), "stage 1 has no action"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ScheduleError, match=message):
        call()
