"""Programs of LeNet's step and of split convolutions: right, read back, and counted as the closed
forms say; and what is wrong with one is found before anything runs.

Holds `tiledask.plan.program.lenet`, `tiledask.plan.program.making.convolution.convolutions`,
`tiledask.plan.program.making.convolution.lenet_formulas` and
`tiledask.plan.program.making.convolution.of_lenet`.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import closed_convolutions as P
from oracles.closed_collectives import seconds

from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.products.placement import ANY, Replicate, Shard, Tiling
from tiledask.plan.products.shards import Shards
from tiledask.plan.program.calls import calls
from tiledask.plan.program.instructions import (
    AllToAll,
    HaloExchange,
    HaloReduce,
)
from tiledask.plan.program.lenet import Split
from tiledask.plan.program.making.convolution.convolutions import WindowTerms
from tiledask.plan.program.making.convolution.lenet_formulas import calls_of, need_by_formulas
from tiledask.plan.program.making.convolution.of_lenet import LeNetTerms, lenet_program, need_of
from tiledask.plan.program.making.of_layer import LayerOperand, LayerTerms, layer_program
from tiledask.plan.program.program import Program


def program_of(split, images, itemsize=4):
    recipe = load_recipe("fp32-adam")
    states = tuple(replace(state, bytes=itemsize) for state in recipe.states)
    return lenet_program(LeNetTerms(split, images, replace(recipe, states=states), itemsize))


def assert_counted(program, split, images, itemsize=4):
    """Label, kind, bytes and messages of every call of every rank are the closed forms'."""
    for rank in range(split.ranks):
        assert tuple(calls(program, rank)) == calls_of(split, split.at(rank), images, itemsize)


SPLITS = st.builds(
    Split, st.integers(1, 3), st.integers(1, 4), st.sampled_from((1, 2, 3, 4, 11)), st.booleans()
)


@pytest.mark.few(8)
@settings(deadline=None, max_examples=20)
@given(SPLITS, st.integers(1, 9), st.sampled_from((4, 8)))
def test_any_split_is_right_read_back_and_counted_as_the_closed_forms_say(split, images, itemsize):
    program = program_of(split, images, itemsize).check()
    text = program.to_text()
    assert Program.from_text(text).to_text() == text
    assert_counted(program, split, images, itemsize)
    traffic, said = program.traffic, need_of(split, images, itemsize)
    assert need_by_formulas(split, images, itemsize) == said
    assert tuple(traffic.sent) == said.sent
    assert traffic.messages.sum() == said.messages


def test_what_stays_is_weights_and_states_and_no_gradient_of_images_is_made():
    program = program_of(Split(1, 1, 4, in_space=True), 8)
    for role in program.roles:
        assert role.stays["weights/conv2"] == role.stays["variance/conv2"] == 4 * 25_050
        kernels = [each.kernel for each in role.parts[0].instructions if hasattr(each, "kernel")]
        assert kernels.count("conv2d_grad_weight") == 2
        assert kernels.count("conv2d_grad_input") == 1
    assert max(program.memory.per_place.values()) > 4 * 4 * 129_068


# -- a layer ---------------------------------------------------------------------------------------

CONV = P.Convolution(2, 6, 10, (11, 5), (3, 3), padding=((1, 1), (1, 1)))
WINDOW = WindowTerms((3, 3), padding=((1, 1), (1, 1)))


def operand(name, shape, dim=None, counts=None):
    if dim is None:
        return LayerOperand(name, Tiling(shape, (ANY,), (Replicate(),)), 8)
    ends = np.cumsum([0, *counts]).tolist()
    parts = tuple(((a, b),) if a < b else () for a, b in pairwise(ends))
    held = Shard(dim, Shards(sum(counts), parts))
    return LayerOperand(name, Tiling(shape, (len(counts),), (held,)), 8)


def layer_of(layer, x, w, b, ranks=4, **told):
    given = operand("x0", (2, 6, 11, 5), *x)
    weights = operand("w", (10, 6, 3, 3), *w), operand("b", (10,), *b)
    told = {"unit": "", "window": WINDOW} | told
    return layer_program(
        LayerTerms(
            layer=layer,
            mesh=(ranks,),
            given=(given,),
            weights=weights,
            told=tuple(told.items()),
            itemsize=8,
        )
    )


LAYERS = {
    "by output": (
        lambda n: layer_of("conv_by_output", (), (0, even(10, n)), (0, even(10, n)), n),
        lambda n: P.by_output(CONV, n, 8),
    ),
    "by input": (
        lambda n: layer_of("conv_by_input", (1, even(6, n)), (1, even(6, n)), (), n),
        lambda n: P.by_input(CONV, n, 8),
    ),
    "by rows": (
        lambda n: layer_of(
            "conv_in_rows", (2, even(11, n)), (), (), n, split=CONV.rows(even(11, n))
        ),
        lambda n: P.in_rows(CONV, even(11, n), 8),
    ),
}


@pytest.mark.parametrize("ranks", [1, 2, 4, 12])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_10_and_6_channels_and_11_rows_calls_what_its_closed_form_says(name, ranks):
    make, said = LAYERS[name]
    program = make(ranks).check()
    for rank in range(ranks):
        found = [(c.label.partition("/")[2], *c[1:]) for c in calls(program, rank)]
        assert found == [
            (f"{e.label}", e.kind, e.cost.sent[rank], e.cost.received[rank], e.cost.messages[rank])
            for e in said(ranks)
        ]


def test_a_halo_takes_as_long_as_who_sends_two_rows():
    """Rows of 30 numbers, one to each neighbour: the middle ranks send two, one after the other."""
    program = layer_of("conv_in_rows", (2, even(11, 4)), (), (), split=CONV.rows(even(11, 4)))
    halo = next(
        each for each in program.role(0).parts[0].instructions if isinstance(each, HaloExchange)
    )
    row = 8 * 2 * 6 * 5
    assert halo.cost.sent == (row, 2 * row, 2 * row, row)
    links = {"latency": 0.25, "bandwidth": 480.0}
    there_and_back = 2 * (0.25 + 2 * row / 480)
    weights = max(seconds("all_reduce", "direct", even(CONV.parameters, 4), 8, **links))
    took = program.timeline(lambda each: 1e-9, **links).makespan
    assert took == pytest.approx(there_and_back + weights)


# -- faults ----------------------------------------------------------------------------------------


def test_sizes_of_a_collective_are_those_of_its_members():
    """What is brought and what is there afterwards, summed over members: chunks move, and only
    sums and copies change how many there are."""
    told = {"dim": 2, "extents": (3, 0, 2), "before": 1, "after": 2}
    halo = HaloExchange("x", "y", (0,), (12, 0, 8), 4, **told)
    back = HaloReduce("y", "x", (0,), (12, 0, 8), 4, **told)
    assert [halo.elements(me) for me in range(3)] == [(12, 20), (0, 0), (8, 12)]
    assert [back.elements(me)[::-1] for me in range(3)] == [halo.elements(me) for me in range(3)]
    assert (halo.cost.sent, halo.cost.received) == (back.cost.received, back.cost.sent)
    swap = AllToAll("x", "y", (0,), (1, 2, 3, 4), 8, split_dim=0, dim=1)
    assert swap.size == 2
    assert [swap.elements(me) for me in range(2)] == [(3, 4), (7, 6)]
