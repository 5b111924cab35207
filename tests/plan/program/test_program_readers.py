"""Readers of programs with collectives: faults are named before anything runs, times are those of
a second, obvious clock, memory is what arrays take, and text is read back.

Holds `tiledask.plan.program.graph`, `tiledask.plan.program.check`, `tiledask.plan.program.clock`,
`tiledask.plan.program.count`, `tiledask.plan.program.held` and
`tiledask.plan.program.text`.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from oracles.closed_collectives import seconds as collective_seconds
from oracles.drawn_programs import drawn_jobs

from tiledask.errors import ProgramError
from tiledask.plan.inputs.recipes import load_recipe, state_bytes
from tiledask.plan.program.calls import calls
from tiledask.plan.program.check import check
from tiledask.plan.program.instructions import Collective, Do, ProgramLine, Recv, Send
from tiledask.plan.program.making.of_states import states_program
from tiledask.plan.program.making.of_training import step_program
from tiledask.plan.program.program import Program

# -- faults, one on one rank -----------------------------------------------------------------------


def changed(program, rank, part, instructions=None, **role):
    """``program`` with other instructions in a part, or another role, of one rank alone."""
    mine = program.role(rank)
    if instructions is not None:
        parts = list(mine.parts)
        parts[part] = replace(parts[part], instructions=tuple(instructions))
        role = {"parts": tuple(parts)}
    of_rank = list(program.of_rank)
    of_rank[rank] = len(program.roles)
    return replace(program, roles=(*program.roles, replace(mine, **role)), of_rank=tuple(of_rank))


def one_of(program, rng, kind):
    """(rank, part, position) of some instruction of a kind; IndexError if there is none."""
    places = [
        (rank, p, at)
        for rank in range(program.ranks)
        for p, part in enumerate(program.role(rank).parts)
        for at, each in enumerate(part.instructions)
        if isinstance(each, kind)
    ]
    return places[rng.integers(len(places))] if places else None


def left_out_of(kind):
    def plant(program, rng):
        if not (place := one_of(program, rng, kind)):
            return None
        rank, part, at = place
        each = program.role(rank).parts[part].instructions
        return changed(program, rank, part, each[:at] + each[at + 1 :])

    return plant


def wrong_size(program, rng):
    if not (place := one_of(program, rng, (Send, Recv))):
        return None
    rank, part, at = place
    name = program.role(rank).parts[part].instructions[at].buffer
    sizes = program.role(rank).nbytes
    return changed(program, rank, part, nbytes=sizes | {name: sizes[name] + 8})


def wrong_counts(program, rng):
    if not (place := one_of(program, rng, Collective)):
        return None
    rank, part, at = place
    each = list(program.role(rank).parts[part].instructions)
    first, *rest = each[at].counts
    each[at] = replace(each[at], counts=(first + 1, *rest))
    return changed(program, rank, part, each)


def swapped_collectives(program, rng):
    """Two neighbours among the collectives of a part, that are not the same."""
    places = [
        (rank, p, a, b)
        for rank in range(program.ranks)
        for p, part in enumerate(program.role(rank).parts)
        for at in [[i for i, e in enumerate(part.instructions) if isinstance(e, Collective)]]
        for a, b in pairwise(at)
        if part.instructions[a].axes == part.instructions[b].axes
    ]
    if not places:
        return None
    rank, part, a, b = places[rng.integers(len(places))]
    each = list(program.role(rank).parts[part].instructions)
    each[a], each[b] = each[b], each[a]
    return changed(program, rank, part, each)


def with_line(program, rank, rows):
    line, lines = program.lines[rank], list(program.lines)
    lines[rank] = ProgramLine(line.part[rows], line.frame[rows], line.paired[rows])
    return replace(program, lines=tuple(lines))


def swapped_parts(program, rng):
    """A forward and its backward."""
    rank = int(rng.integers(program.ranks))
    role, turns = program.role(rank), list(program.lines[rank])
    backs = [n for n, (p, _) in enumerate(turns) if role.parts[p].kind in "BI"]
    n = backs[rng.integers(len(backs))]
    stage, frame = role.parts[turns[n][0]].stage, turns[n][1]
    ahead = next(
        i
        for i, (p, f) in enumerate(turns)
        if f == frame and role.parts[p].kind == "F" and role.parts[p].stage == stage
    )
    rows = np.arange(len(turns))
    rows[[ahead, n]] = n, ahead
    return with_line(program, rank, rows)


def left_out_part(program, rng):
    rank = int(rng.integers(program.ranks))
    turns = len(program.lines[rank])
    return with_line(program, rank, np.delete(np.arange(turns), rng.integers(turns)))


FAULTS = {
    "a send left out": left_out_of(Send),
    "a receive left out": left_out_of(Recv),
    "a collective left out": left_out_of(Collective),
    "a kernel left out": left_out_of(Do),
    "a message of another size": wrong_size,
    "a collective of other counts": wrong_counts,
    "two collectives swapped": swapped_collectives,
    "a backward before its forward": swapped_parts,
    "a part left out": left_out_part,
}


@pytest.mark.parametrize(
    ("count", "seed"), [(18, 5), pytest.param(200, 6, marks=pytest.mark.slow)], ids=str
)
def test_a_fault_on_one_rank_of_a_training_is_named_before_it_runs(count, seed):
    kinds, planted, rng = list(FAULTS.items()), 0, np.random.default_rng(seed)
    for job, mesh in drawn_jobs(5 * count, seed):
        program = step_program(job, mesh).check()
        name, plant = kinds[planted % len(kinds)]
        wrong = plant(program, rng)
        if wrong is None:  # one rank sends nothing
            continue
        with pytest.raises(ProgramError) as caught:
            wrong.check()
        assert "rank " in str(caught.value), name
        planted += 1
        if planted == count:
            return
    raise AssertionError(f"only {planted} of {count} faults could be planted")


@pytest.mark.parametrize("count", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_representatives_are_checked_as_all_would_be(count):
    for job, mesh in drawn_jobs(count, 7):
        program = step_program(job, mesh)
        check(program)
        check(program.representatives())


# -- the readers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_text_is_read_back(count):
    for job, mesh in drawn_jobs(count, 8):
        program = step_program(job, mesh)
        again = Program.from_text(program.to_text())
        assert again == program
        assert again.to_text() == program.to_text()


@pytest.mark.parametrize("count", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_traffic_is_the_sum_of_the_calls(count):
    for job, mesh in drawn_jobs(count, 9):
        program = step_program(job, mesh)
        for rank in range(program.ranks):
            listed = calls(program, rank)
            assert program.traffic.sent[rank] == sum(call.sent for call in listed)
            assert program.traffic.messages[rank].sum() == sum(call.messages for call in listed)
            assert program.traffic.bytes[:, rank].sum() == sum(call.received for call in listed)


SUM = """
program
mesh 4
rank 0 1 2 3: 0F.0
of rank 0 1 2 3: x.0 320 B, y.0 320 B
  stays loss 8 B
  0F
    x.0 = do batch
    y.0 = all_reduce x.0 {'axes': (0,), 'counts': (10, 10, 10, 10), 'itemsize': 8} @tp
    loss = do add_loss loss y.0
"""


def test_seconds_of_a_collective_are_by_default_those_of_its_messages():
    program = Program.from_text(SUM).check()
    timed = program.timeline({"F": 0.0}, latency=1.0, bandwidth=80.0)
    assert timed.makespan == 0.0  # of work there is none
    said = collective_seconds("all_reduce", "direct", (10,) * 4, 8, latency=1.0, bandwidth=80.0)
    assert {e - s for s, e in zip(timed.start, timed.end, strict=True) if e > s} == {max(said)}
    with pytest.raises(ProgramError, match="with links that differ"):
        program.timeline({"F": 0.0}, latency=np.arange(16).reshape(4, 4).tolist())


# -- what it holds -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_memory_of_what_stays_is_what_a_rank_keeps(count):
    for job, mesh in drawn_jobs(count, 13):
        program = step_program(job, mesh)
        for rank in range(program.ranks):
            states = sum(
                size for name, size in program.role(rank).stays.items()
                if name.split("/")[0].replace("_", " ") in {s.tensor for s in job.recipe.states}
            )  # fmt: skip
            rows = [r for r in program.memory.rows if r.place == rank]
            kept = sum(
                r.bytes for r in rows
                if r.tensor.split("/")[0].replace("_", " ") in {s.tensor for s in job.recipe.states}
            )  # fmt: skip
            assert kept == states
            assert program.memory.per_place[rank] >= states


@pytest.mark.parametrize("recipe", ["mixed-adam-16", "mixed-adam-20", "fp32-adam", "fp32-sgd"])
@pytest.mark.parametrize("copies", [1, 4, 7])
def test_an_update_holds_no_more_than_states(copies, recipe):
    """Sums over copies and new weights take the places of gradients and weights."""
    for zero in range(4):
        program = states_program(1001, load_recipe(recipe), zero, copies).check()
        held = program.memory
        kept = state_bytes(1001, load_recipe(recipe), zero, copies)
        assert held.per_place[0] == sum(kept.values()) + 8  # the number of updates
        assert Program.from_text(program.to_text()) == program


def test_what_lies_within_another_buffer_fits_there():
    program = states_program(1000, load_recipe("fp32-adam"), 1, 2)
    (role,) = program.roles
    for within in ({"part.0": "gradients/elsewhere"}, {"part.0": "momentum/parameters"}):
        size = role.nbytes["part.0"]
        wrong = replace(role, within=within, nbytes=role.nbytes | {"part.0": size})
        stays = wrong.stays | {"momentum/parameters": size - 4}
        wrong = replace(wrong, stays=stays)
        with pytest.raises(ProgramError, match="give it a place of its own"):
            check(replace(program, roles=(wrong,)))


def test_work_space_is_there_while_its_kernel_works():
    text = """program
rank 0: 0F.0
of rank 0: x 8 B, y 8 B
  0F
    x = do make
    y = do change x {'work': 100}
    do use y"""
    held = Program.from_text(text).check().memory
    assert held.by_tensor(0) == {"x": 8, "y": 8, "work space": 100}
