"""Programs of schedules: they hold and move what the schedule does, and faults are found.

Holds `tiledask.plan.program.program`, `tiledask.plan.program.ops`,
`tiledask.plan.program.making.pipeline`,
`tiledask.plan.program.count`.
"""

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ProgramError, ScheduleError
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped
from tiledask.plan.pipelines.validate import needs, peak_in_flight
from tiledask.plan.program.ops import ProgramRole, Step, message
from tiledask.plan.program.program import Program

NAMES = [*td.schedules]


def made(name, devices, microbatches, **options):
    if name in V_SHAPED:
        return td.schedule(name, 2 * devices, microbatches, **options)
    if is_looped(name):
        return td.schedule(name, 2 * devices, microbatches, devices=devices, **options)
    return td.schedule(name, devices, microbatches, **options)


@pytest.mark.parametrize("name", NAMES)
def test_it_holds_and_moves_what_the_schedule_does(name):
    rng = np.random.default_rng((4, *str(name).encode()))
    devices = int(rng.integers(1, 5)) * 2
    schedule = made(name, devices, 2 * devices * int(rng.integers(1, 3)))
    program = td.program(schedule).check()
    assert program.memory.per_place == dict(enumerate(peak_in_flight(schedule)))
    program = td.program(schedule, block_bytes=6, activation=10)
    moves = [
        (schedule.holder(b.stage, b.microbatch), schedule.holder(a.stage, a.microbatch), 6)
        for a, before in needs(schedule).items()
        for b in before
        if b.stage != a.stage
    ]
    assert program.traffic == td.Traffic.of(schedule.devices, moves)
    alone = td.program(schedule, activation=10).memory.per_place
    assert alone == {d: 10 * peak for d, peak in enumerate(peak_in_flight(schedule))}


def test_memory_names_what_is_held_and_when():
    ledger = td.program(td.schedule("1f1b", 2, 3), block_bytes=100, activation=10).memory
    assert ledger.binding == (0, "0F.1", "x1")
    assert ledger.by_tensor(0) == {"x1": 100, "kept0": 20}
    # what a kernel reads is there beside what it writes
    assert td.program(td.schedule("gpipe", 2, 1), block_bytes=8).memory.per_place == {0: 9, 1: 9}


def test_forward_only_and_one_device():
    program = td.program(td.schedule("gpipe", 3, 2, forward_only=True), block_bytes=4).check()
    assert program.traffic.sent == (8, 8, 0)
    alone = td.program(td.schedule("1f1b", 1, 3)).check()
    assert alone.traffic.total == 0
    nothing = td.program(td.schedule("gpipe", 1, 1, forward_only=True)).memory
    assert [(row.tensor, row.bytes) for row in nothing.rows] == [("nothing", 0)]


# -- faults ----------------------------------------------------------------------------------------


def test_a_circle_is_said_with_all_who_wait():
    """Each rank takes before it sends."""
    roles = [
        ProgramRole(
            {f"{rank}F": (message("recv", b, 1 - rank), message("send", a, 1 - rank))},
            {"a": 1, "b": 1},
        )
        for rank, (a, b) in enumerate(("ab", "ba"))
    ]
    program = Program(tuple(roles), ((Step("0F", 0),), (Step("1F", 0),)), (0, 1))
    with pytest.raises(ProgramError, match=r"deadlock: .*'b = recv from 1 .*rank 1; .*'a = recv"):
        program.check()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: td.program("1f1b"), ScheduleError, "made of td.schedule"),
        (lambda s: td.program(s, block_bytes=-1), ScheduleError, "0 or more bytes, got -1"),
        (lambda s: td.program(s, block_bytes=[1, 2]), ScheduleError, "1 for 2 stages"),
        (lambda s: td.program(s, activation=-1), ScheduleError, "activation"),
    ],
)
def test_requests_that_make_no_sense(call, error, words):
    with pytest.raises(error) as caught:
        call(td.schedule("gpipe", 2, 2))
    assert words in str(caught.value)
