"""Readers of programs with collectives: faults are named before anything runs, memory is what
arrays take."""

from dataclasses import replace

import numpy as np
import pytest
from oracles.drawn_programs import drawn_jobs

import tiledask as td
from tiledask import Program, load_recipe
from tiledask.errors import ProgramError
from tiledask.plan.inputs.recipes import state_bytes
from tiledask.plan.program.count import calls
from tiledask.plan.program.making.training import step_program
from tiledask.plan.program.ops import Op, ProgramRole, Step, action_of

# -- faults, one on one rank -----------------------------------------------------------------------


def changed(program, rank, **role):
    """``program`` with another role of one rank alone."""
    role_of = list(program.role_of)
    role_of[rank] = len(program.roles)
    roles = (*program.roles, replace(program.role(rank), **role))
    return replace(program, roles=roles, role_of=tuple(role_of))


def one_of(program, rng, kind):
    """(rank, block, position) of some op of a kind; None if there is none."""
    places = [
        (rank, name, at)
        for rank in range(program.ranks)
        for name, block in program.role(rank).blocks.items()
        for at, op in enumerate(block)
        if kind(op)
    ]
    return places[rng.integers(len(places))] if places else None


def left_out_of(kind):
    def plant(program, rng):
        if place := one_of(program, rng, kind):
            rank, name, at = place
            blocks = program.role(rank).blocks
            less = blocks[name][:at] + blocks[name][at + 1 :]
            return changed(program, rank, blocks=blocks | {name: less})

    return plant


MAKES = {"linear", "linear_grad_input", "norm", "layer_norm", "rms_norm", "add", "gelu", "swiglu"}
"""Kernels of which something is read, or is of what is."""


def wrong_size(program, rng):
    if place := one_of(program, rng, lambda op: op.kind == "message"):
        rank, name, at = place
        op, sizes = program.role(rank).blocks[name][at], program.role(rank).sizes
        (buffer,) = (*op.reads, *op.writes)
        return changed(program, rank, sizes=sizes | {buffer: sizes[buffer] + 8})


def in_another_order(change):
    """What changes the order of a rank, a list."""

    def plant(program, rng):
        orders, rank = list(program.orders), int(rng.integers(program.ranks))
        order = list(orders[rank])
        change(order, rng)
        orders[rank] = tuple(order)
        return replace(program, orders=tuple(orders))

    return plant


def swapped_blocks(order, rng):
    actions = [(*action_of(step.block), step.microbatch) for step in order]
    backs = [n for n, action in enumerate(actions) if action[0] in "BI"]
    n = backs[rng.integers(len(backs))]
    ahead = actions.index(("F", *actions[n][1:]))
    order[ahead], order[n] = order[n], order[ahead]


def left_out_action(order, rng):
    del order[rng.integers(1, len(order) - 1)]  # neither "begin" nor "update"


FAULTS = {
    "a send left out": left_out_of(lambda op: op.name == "send"),
    "a receive left out": left_out_of(lambda op: op.name == "recv"),
    "a collective left out": left_out_of(lambda op: op.kind == "collective"),
    "a kernel left out": left_out_of(lambda op: op.kind == "kernel" and op.name in MAKES),
    "a message of another size": wrong_size,
    "a backward before its forward": in_another_order(swapped_blocks),
    "an action left out": in_another_order(left_out_action),
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


# -- the readers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_traffic_is_the_sum_of_the_calls(count):
    for job, mesh in drawn_jobs(count, 8):
        program = step_program(job, mesh)
        for rank in range(program.ranks):
            listed = calls(program, rank)
            assert program.traffic.sent[rank] == sum(call.sent for call in listed)
            assert program.traffic.messages[rank].sum() == sum(call.messages for call in listed)
            assert program.traffic.bytes[:, rank].sum() == sum(call.received for call in listed)


# -- what it holds -------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["mixed-adam-16", "mixed-adam-18", "fp32-adam", "fp32-sgd"])
@pytest.mark.parametrize("copies", [1, 4, 7])
def test_an_update_holds_no_more_than_states(copies, recipe):
    """Sums over copies and new weights take the places of gradients and weights."""
    model, given = td.GPT(59, hidden=8, layers=1, heads=2, sequence=4), load_recipe(recipe)
    options = {
        "batch": 1,
        "recipe": recipe,
        "dtype": {2: "bfloat16", 4: "float32"}[given.compute_bytes],
    }
    for zero in range(4):
        program = td.training_program(model, (copies, 1, 1), zero=zero, **options)
        orders = tuple((order[0], order[-1]) for order in program.orders)
        kept = state_bytes(model.size, given, zero, copies)
        held = replace(program, orders=orders).memory.per_place[0]
        assert held == sum(kept.values()) + 16  # the loss, and the number of updates


def test_work_space_is_there_while_its_kernel_works():
    make, change = Op("make", (), ("x",)), Op("change", ("x",), ("y",), (("work", 100),))
    role = ProgramRole({"0F": (make, change, Op("use", ("y",)))}, {"x": 8, "y": 8})
    held = Program((role,), ((Step("0F", 0),),), (0,)).check().memory
    assert held.by_tensor(0) == {"x": 8, "y": 8, "work space": 100}
