"""Programs of schedules that gather weights: the clock says what the simulator says, bytes are the
closed form, buffers are there from their gather to their drop, and what is left out is refused.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ProgramError, ScheduleError
from tiledask.plan.pipelines.schedule import SHARDING
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped
from tiledask.plan.program.instructions import Do, Drop

KEEPS = ("action", "phase", "step", 1, 2)


def made(name, keep, reduce="step", microbatches=4):
    stages = 4 if is_looped(name) or name in V_SHAPED else 2
    options = {"devices": 2} if is_looped(name) else {}
    return td.shard_weights(td.schedule(name, stages, microbatches, **options), keep, reduce)


def spans(timeline, device):
    """What a device did, but for what comes to it."""
    frame = timeline.to_frame().query("device == @device and kind not in ('T', 'U')")
    return frame.sort_values(["kind", "stage", "microbatch", "start"]).reset_index(drop=True)


@pytest.mark.long
@pytest.mark.few(24)
@pytest.mark.parametrize(("name", "keep"), [*product(td.schedules, KEEPS)])
def test_the_clock_says_what_the_simulator_says(name, keep):
    """Two ways to the same seconds: loops over the order, and a graph of instructions."""
    s = made(name, keep)
    program = td.program(s, copies=2, weight_bytes=8, block_bytes=5).check()
    gather, sums = [0.5, 1.0, 1.5, 2.0][: s.stages], 0.75

    def collective(each):
        stage, what = each.label.split("/")
        return gather[int(stage)] if what == "weights" else sums

    timed = program.timeline(
        {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}, latency=0.25, collective=collective
    )
    simulated = td.simulate(s, 1.0, 2.0, latency=0.25, unshard=gather, reduce_grad=sums)
    for device in range(s.devices):
        one, other = spans(simulated, device), spans(timed, device)
        assert one[["kind", "stage", "microbatch"]].equals(other[["kind", "stage", "microbatch"]])
        np.testing.assert_allclose(one[["start", "end"]], other[["start", "end"]], atol=1e-12)
    assert timed.makespan == pytest.approx(simulated.makespan)


@pytest.mark.parametrize("reduce", ["step", "action"])
@pytest.mark.parametrize(("copies", "keep"), [*product((2, 3), KEEPS)])
def test_bytes_are_the_closed_form(copies, keep, reduce):
    """Each gather and each sum of W bytes moves (copies - 1) W among the copies in all."""
    W, m = [10, 11, 12, 13], 4
    s = made("interleaved", keep, reduce, m)
    program = td.program(s, copies=copies, weight_bytes=W, block_bytes=5)
    assert td.Program.from_text(program.to_text()).to_text() == program.to_text()
    found = program.traffic.bytes.reshape(copies, s.devices, copies, s.devices)
    for d in range(s.devices):
        said = [a for a in s.lines[d] if a.kind == "UNSHARD"]
        wanted = (copies - 1) * sum(W[a.stage] for a in said)
        stages = {a.stage for a in said}
        wanted += (copies - 1) * sum(W[a] for a in stages) * (1 if reduce == "step" else m)
        assert found[:, d, :, d].sum() == wanted


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_weights_are_held_as_many_at_a_time(keep):
    s = made("looped-bfs", keep)
    held = td.program(s, copies=2, weight_bytes=100, activation=0).memory
    for rank in range(4):
        rows = [row for row in held.rows if row.place == rank]
        whole = sum(row.bytes for row in rows if row.tensor.startswith("weights"))
        assert whole == 100 * min(keep, 2)


@pytest.mark.parametrize("keep", ["action", 1])
def test_whatever_is_left_out_is_refused(keep):
    """Planted, on all ranks alike: a gather, a drop, a sum, a beginning; and a turn of each."""
    program = td.program(made("interleaved", keep), copies=2, weight_bytes=8, block_bytes=5).check()
    role, tried = program.roles[0], 0
    for n, part in enumerate(role.parts):
        for at, each in enumerate(part.instructions):
            if part.kind in (*SHARDING, "begin") and not (isinstance(each, Do) and each.reads):
                rest = part.instructions[:at] + part.instructions[at + 1 :]
                parts = [*role.parts]
                parts[n] = replace(part, instructions=rest)
                changed = (replace(role, parts=tuple(parts)), *program.roles[1:])
                with pytest.raises(ProgramError):
                    replace(program, roles=changed).check()
                tried += 1
    assert tried >= 10
    text = program.to_text()
    assert ": 0UNSHARD.0 0F.0" in text
    with pytest.raises(ProgramError, match=r"weights0 is read and is not there: turn 0 of rank 0"):
        td.Program.from_text(text.replace(": 0UNSHARD.0 0F.0", ": 0F.0 0UNSHARD.0", 1)).check()


def test_a_drop_is_of_what_frames_share():
    program = td.program(made("gpipe", "step"), copies=2, weight_bytes=8)
    role = program.roles[0]
    parts = [replace(p, instructions=(*p.instructions, Drop("x1"))) if p.kind == "F" else p
             for p in role.parts]  # fmt: skip
    with pytest.raises(ProgramError, match="x1 is dropped, and frames share no such buffer"):
        replace(program, roles=(replace(role, parts=tuple(parts)), *program.roles[1:])).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": 0}, "copies is a number of 1 or more"),
        ({"copies": 2, "weight_bytes": [1]}, "weight_bytes must be one whole number .* per stage"),
        ({"copies": 2, "weight_bytes": -1}, "0 or more"),
        (
            {"weight_bytes": 12, "itemsize": 8},
            "whole numbers of 8 bytes, got weight_bytes 12; give",
        ),
        ({"itemsize": 0}, "itemsize must be a whole number of 1 or more, got 0"),
    ],
)
def test_refuses_other_numbers(options, message):
    with pytest.raises(ScheduleError, match=message):
        td.program(made("gpipe", 1), **options)
    with pytest.raises(ScheduleError, match=r"copies is .* above 1 for a schedule that says when"):
        td.program(td.schedule("gpipe", 2, 2), copies=2)


def test_one_copy_gathers_nothing():
    """And so `run_schedule` runs the schedule as if nothing was said."""
    s = td.schedule("zb-h1", 2, 3)
    assert td.program(td.shard_weights(s, 1)).to_text() == td.program(s).to_text()
