"""Schedules typed in the shape of their figures, their text, laws for any p and m, and faults;
files as PyTorch writes them."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask import Action, Layout, Schedule, schedule, schedules, simulate, validate
from tiledask.errors import ScheduleError
from tiledask.lab.sweep import schedule_on
from tiledask.plan.pipelines import schedules as known


def shown(built: Schedule) -> list[str]:
    """Kind and micro-batch of each action, as in the papers' figures."""
    return [" ".join(f"{a.kind}{a.microbatch}" for a in order) for order in built.orders]


def test_every_schedule_says_what_it_is():
    assert known.WHAT.keys() == schedules.keys()


def test_1f1b_warms_up_by_the_stages_behind():
    assert shown(schedule("1f1b", 4, 6)) == [
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]


def test_zb_h1_and_zb_h2():
    assert shown(schedule("zb-h1", 3, 4)) == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]
    assert shown(schedule("zb-h2", 2, 4)) == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(5))
@settings(max_examples=80, deadline=None)
@given(*map(st.integers, (1, 1, 1), (6, 13, 4)), st.sampled_from([*schedules]))
def test_every_action_is_there_once_in_its_place_and_runs(part, half, m, chunks, name):
    devices = 2 * half if name == "dualpipe" else half
    s = schedule_on(name, devices, m, chunks=chunks)
    assert validate(s) is s
    numbers = [(r, i) for r in range(s.stages) for i in range(m)]
    for kinds in ("F", "BW"):
        assert sorted((a.stage, a.microbatch) for a in s if a.kind in kinds) == numbers
    assert len(set(s)) == len(s)
    assert all(s.holder(*a[1:]) == d for d in range(s.devices) for a in s.orders[d])
    assert (s.microbatches, s.devices) == (m, devices)
    each = 2 if name in known.V_SHAPED else chunks if name in known.LOOPED else 1
    assert s.stages == each * devices
    assert s.replicas == (2 if name in known.BOTH_WAYS and devices > 1 else 1)
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


def test_pipelines_are_placed_by_lines_of_their_own():
    s = Schedule.from_text("@0,1; @1,0; 0F0,1F1,1B1,0B0; 0F1,1F0,1B0,0B1")
    assert (s.replicas, s.stages, s.devices, s.places) == (2, 2, 2, ((0, 1), (1, 0)))
    assert [s.holder(0, i) for i in range(4)] == [0, 1, 0, 1]
    assert s == schedule("chimera", 2, 2)
    with pytest.raises(ScheduleError, match="a stage is on 2 devices; use holder"):
        _ = s.place


def test_devices_may_have_nothing_to_do():
    s = Schedule.of([[], [Action("F", 0, 0), Action("B", 0, 0)], []], [1])
    t = simulate(s)
    assert (t.makespan, t.busy_per_device, t.idle_per_device) == (3.0, (0, 3, 0), (3, 0, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedule("2f2b", 2, 2), "no schedule '2f2b'; there are naive, gpipe"),
        (lambda: schedule("PipelineScheduleMulti", 4, 4), "Interleaved1F1B"),
        (lambda: schedule("1f1b", 2, 0), "microbatches must be"),
        (lambda: schedule("1f1b", True, 2), "stages must be"),
        (lambda: schedule("interleaved", 4, 2), "argument: .devices."),
        (lambda: schedule("looped-bfs", 3, 2, devices=4), "use 4 stages"),
        (lambda: Schedule.from_text("0F0,0SEND_X0"), "cannot read '0SEND_X0'"),
        (lambda: Schedule.from_text("0F0\n2F0"), "stage 1 has no action"),
        (lambda: Schedule.from_text("@0,1; @0,x; 0F0; 1F0"), "cannot read 'x'"),
        (lambda: Schedule.from_text("@0,1; @0; 0F0; 1F0"), r"for every stage, got \[1, 2\]"),
        (lambda: Schedule.of([[Action("X", 0, 0)]], [0]), "kinds are F, B, I and W, got X"),
        (lambda: validate(Schedule.of([[Action("F", 0, -1)]], [0])), "0F-1 on rank 0 is unknown"),
        (lambda: validate(schedule("1f1b", 3, 8), stages=4), r"has 3 stages and 8 .* should be 4"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ScheduleError, match=message):
        call()


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0,0F0", "micro-batch 0 rank 0 does 0F0, 0B0, 0F0; it is F and B"),
        ("0F0,0I0,0W0,0B0", "does 0F0, 0I0, 0W0, 0B0"),
        ("0F0,0I0", "rank 0 does 0F0, 0I0; it is"),
        ("0F0,0B0 ; 1F0", "stage 1 and micro-batch 0 rank 1 does 1F0"),
        ("0F1,0B1", "micro-batch 0 rank 0 does nothing"),
        ("0F0,0B99999999", "stage 0 and micro-batch 0 rank 0 does 0F0;"),
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


# -- files of PyTorch 2.15.0, by _dump_csv(file, format="compute_only") ----------------------------

FILES = sorted((Path(__file__).parent / "torch_csv").glob("*/*.csv"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_pytorch_wrote_is_read_and_is_our_order(file):
    name, *numbers = re.match(r"(\w+)-(\d+)s(\d+)r(\d+)m", file.stem).groups()
    stages, ranks, microbatches = map(int, numbers)
    text = file.read_text()
    read = validate(Schedule.from_text(text, name), stages, microbatches)
    assert read.devices == ranks
    rows = [",".join(filter(None, row.split(","))) for row in text.splitlines()]
    assert read.to_text().splitlines() == rows
    ours = known.OF_PYTORCH[name.lower()]
    if name != "LoopedBFS":  # whose backwards PyTorch does from the last to the first
        assert read == known.layout_schedule(ours, stages, microbatches, ranks)
    assert Layout(pp=2, microbatches=4, schedule=name).schedule == ours
    for theirs in (name.upper(), "Schedule" + name):
        options = {"devices": ranks} if "Inter" in name or "Loop" in name else {}
        assert schedule(theirs, stages, microbatches, **options).name == ours
