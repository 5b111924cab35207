"""Programs of LeNet's step and of split convolutions: right, read back and counted; and sizes of
collectives are those of their members.

Holds `tiledask.plan.program.making.lenet`, `tiledask.plan.program.making.convolutions`,
`tiledask.plan.program.making.layer` and `tiledask.plan.program.making.lenet`.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.rows import split_rows
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.products.placement import ANY, Replicate, Shard, Shards, Tiling
from tiledask.plan.program.making.convolutions import WindowTerms
from tiledask.plan.program.making.layer import LayerOperand, LayerTerms, layer_program
from tiledask.plan.program.making.lenet import LeNetTerms, Split, lenet_program, need
from tiledask.plan.program.ops import collective
from tiledask.plan.program.program import Program


def program_of(split, images, itemsize=4):
    recipe = load_recipe("fp32-adam")
    states = tuple(replace(state, bytes=itemsize) for state in recipe.states)
    return lenet_program(LeNetTerms(split, images, replace(recipe, states=states), itemsize))


SPLITS = st.builds(
    Split, st.integers(1, 3), st.integers(1, 4), st.sampled_from((1, 2, 3, 4, 11)), st.booleans()
)


@pytest.mark.few(8)
@settings(deadline=None, max_examples=20)
@given(SPLITS, st.integers(1, 9), st.sampled_from((4, 8)))
def test_any_split_is_right_read_back_and_counted(split, images, itemsize):
    program = program_of(split, images, itemsize).check()
    text = program.to_text()
    assert Program.from_text(text).to_text() == text
    traffic, said = program.traffic, need(split, images, split.ranks, itemsize)
    assert tuple(traffic.sent) == said.sent
    assert traffic.messages.sum() == said.messages


def test_what_stays_is_weights_and_states_and_no_gradient_of_images_is_made():
    program = program_of(Split(1, 1, 4, in_space=True), 8)
    for role in program.roles:
        assert role.state["weights/conv2"] == role.state["variance/conv2"] == 4 * 25_050
        kernels = [op.name for op in role.ops]
        assert kernels.count("conv2d_grad_weight") == 2
        assert kernels.count("conv2d_grad_input") == 1
    assert max(program.memory.per_place.values()) > 4 * 4 * 129_068


# -- a layer ---------------------------------------------------------------------------------------


def operand(name, shape, dim=None, counts=None):
    if dim is None:
        return LayerOperand(name, Tiling(shape, (ANY,), (Replicate(),)), 8)
    ends = np.cumsum([0, *counts]).tolist()
    parts = tuple(((a, b),) if a < b else () for a, b in pairwise(ends))
    held = Shard(dim, Shards(sum(counts), parts))
    return LayerOperand(name, Tiling(shape, (len(counts),), (held,)), 8)


def test_rows_of_11_over_4_ranks_are_lent_both_ways_and_weights_are_summed():
    """A row has 2 x 6 x 5 numbers: one to each neighbour, and back in the backward; of dw and db
    each rank brings all 550."""
    rows = even(11, 4)
    options = {
        "unit": "",
        "window": WindowTerms((3, 3), padding=((1, 1), (1, 1))),
        "split": split_rows(rows, 3, 1, (1, 1)),
    }
    terms = LayerTerms(
        layer="conv",
        ranks=4,
        given=(operand("x0", (2, 6, 11, 5), 2, rows),),
        weights=(operand("w", (10, 6, 3, 3)), operand("b", (10,))),
        options=tuple(options.items()),
        itemsize=8,
    )
    program = layer_program(terms).check()
    halo = next(op for op in program.role(0).ops if op.name == "halo_exchange")
    row = 8 * 2 * 6 * 5
    assert halo.cost.sent == (row, 2 * row, 2 * row, row)
    assert program.traffic.total == 2 * 6 * row + 2 * 3 * 550 * 8


def test_sizes_of_a_collective_are_those_of_its_members():
    """What is brought and what is there afterwards, summed over members: chunks move, and only
    sums and copies change how many there are."""
    options = {"dim": 2, "extents": (3, 0, 2), "before": 1, "after": 2}
    halo = collective("halo_exchange", "x", "y", (0,), (12, 0, 8), 4, **options)
    back = collective("halo_reduce", "y", "x", (0,), (12, 0, 8), 4, **options)
    assert [halo.elements(me) for me in range(3)] == [(12, 20), (0, 0), (8, 12)]
    assert [back.elements(me)[::-1] for me in range(3)] == [halo.elements(me) for me in range(3)]
    assert (halo.cost.sent, halo.cost.received) == (back.cost.received, back.cost.sent)
    swap = collective("all_to_all", "x", "y", (0,), (1, 2, 3, 4), 8, split_dim=0, dim=1)
    assert swap.size == 2
    assert [swap.elements(me) for me in range(2)] == [(3, 4), (7, 6)]
