"""Programs of schedules: their readers agree with what was there before, and faults are found."""

import numpy as np
import pytest

import tiledask as td
from tiledask import Program
from tiledask.errors import ProgramError, ScheduleError
from tiledask.lab.sweep import schedule_on
from tiledask.plan.pipelines.validate import most_kept, needs


def drawn(name, seed):
    """A schedule of some size that the name allows, with times for it."""
    rng = np.random.default_rng((seed, *str(name).encode()))
    devices = int(rng.integers(1, 5)) * 2
    schedule = schedule_on(name, devices, 2 * devices * int(rng.integers(1, 3)))
    F, I, W = rng.uniform(0.5, 2.0, (3, schedule.stages, schedule.microbatches))
    return schedule, F, I, W, rng.uniform()


def actions(timeline):
    """kind, stage and micro-batch -> start and end, of all compute."""
    columns = (timeline.kind, timeline.stage, timeline.microbatch, timeline.start, timeline.end)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(k, s, i): (a, b) for k, s, i, a, b in rows if k in "FBIW"}


@pytest.mark.few(20)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", td.schedules)
def test_its_timeline_is_that_of_the_schedule(name, seed):
    """Action by action: orders, places and pairs are read back from the program's text."""
    schedule, F, I, W, latency = drawn(name, seed)
    read = Program.from_text(str(td.program(schedule)))
    here = read.timeline({"F": F, "B": I + W, "I": I, "W": W}, latency)
    there = actions(td.simulate(schedule, F, I + W, latency, I, W))
    assert actions(here) == {k: pytest.approx(span, abs=1e-9) for k, span in there.items()}


@pytest.mark.parametrize("name", td.schedules)
def test_it_holds_and_moves_what_the_schedule_does_and_text_is_read_back(name):
    schedule, *_ = drawn(name, 4)
    program = td.program(schedule).check()
    assert program.memory.per_place == dict(enumerate(most_kept(schedule)[0]))
    program = td.program(schedule, block_bytes=6, activation=10)
    moves = [
        (schedule.holder(b.stage, b.microbatch), schedule.holder(a.stage, a.microbatch), 6)
        for a, before in needs(schedule).items()
        for b in before
        if b.stage != a.stage
    ]
    assert program.traffic == td.Traffic.of(schedule.devices, moves)
    again = Program.from_text(str(program))
    assert again == program
    assert again.name == program.name
    alone = td.program(schedule, activation=10).memory.per_place
    assert alone == {d: 10 * peak for d, peak in enumerate(most_kept(schedule)[0])}


def test_memory_names_what_is_held_and_when():
    ledger = td.program(td.schedule("1f1b", 2, 3), block_bytes=100, activation=10).memory
    assert ledger.binding == (0, "0F.1", "x1")
    assert ledger.by_tensor(0) == {"x1": 100, "kept0": 20}
    # what a kernel reads is there beside what it writes
    assert td.program(td.schedule("gpipe", 2, 1), block_bytes=8).memory.per_place == {0: 9, 1: 9}


def test_forward_only_and_one_device():
    program = td.program(td.schedule("gpipe", 3, 2, forward_only=True), block_bytes=4).check()
    assert program.traffic.sent == (8, 8, 0)
    assert program.timeline({"F": 1.0}).makespan == 4.0
    nothing = td.program(td.schedule("gpipe", 1, 1, forward_only=True)).memory
    assert [(row.tensor, row.bytes) for row in nothing.rows] == [("nothing", 0)]


# -- faults ----------------------------------------------------------------------------------------


def test_a_circle_is_said_with_all_who_wait():
    text = str(td.program(td.schedule("naive", 2, 2)))
    turned = Program.from_text(text.replace("1F.0 1B.0 1F.1 1B.1", "1F.1 1B.1 1F.0 1B.0"))
    with pytest.raises(ProgramError, match=r"deadlock: .*'dx1 = recv .* waits for rank 1; .*'x1 ="):
        turned.check()
    with pytest.raises(ProgramError, match="deadlock"):
        turned.timeline({"F": 1.0, "B": 1.0})


def changed(schedule, old, new):
    return Program.from_text(str(td.program(schedule)).replace(old, new))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: td.program("1f1b"), ScheduleError, "made of td.schedule"),
        (lambda s: td.program(s, block_bytes=-1), ScheduleError, "0 or more bytes, got -1"),
        (lambda s: td.program(s, block_bytes=[1, 2]), ScheduleError, "1, one per boundary"),
        (lambda s: td.program(s, activation=-1), ScheduleError, "activation"),
        (lambda s: td.program(s).timeline({"F": 1}), ProgramError, "blocks of B, F and seconds"),
        (lambda s: Program.from_text("rank 0: 0F.0"), ProgramError, "each has blocks"),
        (lambda s: Program.from_text("hello"), ProgramError, "line 1 cannot be read: 'hello'"),
        (lambda s: changed(s, "0F.1", "2F.1"), ProgramError, "rank 0 has no block '2F.1'"),
        (lambda s: changed(s, "dx1 0 B", "d1 0 B"), ProgramError, "of rank 0: dx1 8 B"),
        (lambda s: changed(s, "to 1", "to 7"), ProgramError, "0 to 1, and it says 'send x1 to 7"),
    ],
)
def test_requests_that_make_no_sense(call, error, words):
    with pytest.raises(error) as caught:
        call(td.schedule("gpipe", 2, 2))
    assert words in str(caught.value)
