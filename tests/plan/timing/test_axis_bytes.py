"""`tiledask.plan.timing.axis_bytes` beside the bytes that a training's program moves.

program --each rank's collectives and sends--> bytes by axis --the most of any rank--> the estimate
"""

from collections import Counter

import pytest

import tiledask as td
from tiledask.distributed.memory.case import training_terms
from tiledask.plan.program.count import moved_by, nameless
from tiledask.plan.program.making.training import step_program
from tiledask.plan.timing.axis_bytes import axis_bytes

MESH = {(0,): "dp", (1,): "tp", (2,): "pp"}


def counted(model, layout, recipe, sequence):
    """Bytes that the rank with most of them sends along each axis, instruction by instruction."""
    terms = training_terms(model, layout, recipe, sequence)
    program = step_program(terms, (layout.dp, layout.tp, layout.pp))
    most = Counter()
    for rank, order in enumerate(program.orders):
        role, sent = program.role(rank), Counter()
        for step in order:
            for op in role.blocks[step.block]:
                if op.name == "send":
                    sent["pp"] += role.sizes[op.reads[0]]
                elif op.kind == "collective" and op["axes"] in MESH:
                    sent[MESH[op["axes"]]] += moved_by(nameless(op))[1][
                        program.members(rank, op).index(rank)
                    ][0]
        most |= sent
    return dict(most)


LAYOUTS = (
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 4},
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 4, "zero": 1},
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 4, "zero": 2},
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 4, "zero": 3},
    {"dp": 4, "zero": 1, "microbatch": 2},
    {"tp": 2, "pp": 2, "microbatches": 4, "interleave": 2},
    {"dp": 2, "pp": 4, "microbatches": 8, "partition": "items"},
    {"pp": 3, "microbatches": 6, "recompute": "full"},
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b"])
def test_axes_move_what_the_program_counts(name, layout):
    model, layout, recipe = td.load_model(name), td.Layout(**layout), td.load_recipe("fp32-adam")
    assert axis_bytes(model, layout, recipe, 256) == counted(model, layout, recipe, 256)


def test_a_cut_sequence_moves_a_slice_and_as_many_sums():
    model, recipe = td.load_model("llama-3.2-1b"), td.load_recipe("mixed-adam-16")
    whole = td.Layout(tp=2, pp=2, microbatches=4)
    cut = td.Layout(tp=2, pp=2, microbatches=4, sequence_parallel=True)
    before, after = (axis_bytes(model, each, recipe, 256) for each in (whole, cut))
    assert after["tp"] == before["tp"]
    stream, tied = 4 * 256 * 2048 * 2, 128_256 // 2 * 2048 * 2
    assert (before["pp"], after["pp"]) == (stream + tied, stream // 2 + tied)
    program = counted(model, cut, recipe, 256)
    assert program["pp"] == after["pp"]
    # and in every micro-batch the gradients of the last stage's 17 norms
    assert program["tp"] == after["tp"] + 4 * 17 * 2048 * 2
