"""Programs of layers and of LeNet's step: right, counted, and what closed forms say to the byte."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import closed_layers as L

import tiledask as td
from tiledask import Replicate, Shard, Tiling, load_recipe
from tiledask.errors import ConfigError
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.rows import split_rows
from tiledask.plan.products.placement import ANY, even_shards
from tiledask.plan.program.making.convolutions import WindowTerms
from tiledask.plan.program.making.layer import layer_program
from tiledask.plan.program.making.lenet import Split, lenet_program, need
from tiledask.plan.program.ops import Op
from tiledask.plan.program.program import moved_by


def program_of(split, images, itemsize=4):
    recipe = load_recipe("fp32-adam")
    states = tuple(replace(state, bytes=itemsize) for state in recipe.states)
    return lenet_program(split, images, replace(recipe, states=states), itemsize)


SPLITS = st.builds(
    Split, st.integers(1, 3), st.integers(1, 4), st.sampled_from((1, 2, 3, 4, 11)), st.booleans()
)


@pytest.mark.few(8)
@settings(deadline=None, max_examples=20)
@given(SPLITS, st.integers(1, 9), st.sampled_from((4, 8)))
def test_any_split_is_right_and_counted(split, images, itemsize):
    program = program_of(split, images, itemsize).check()
    traffic, said = program.traffic, need(split, images, split.ranks, itemsize)
    assert tuple(traffic.sent) == said.sent
    assert traffic.messages.sum() == sum(c.messages for mine in said.calls for c in mine)


def test_what_stays_is_weights_and_states_and_no_gradient_of_images_is_made():
    program = program_of(Split(1, 1, 4, in_space=True), 8)
    for role in program.roles:
        assert role.state["weights/conv2"] == role.state["variance/conv2"] == 4 * 25_050
        kernels = [op.name for ops in role.blocks.values() for op in ops]
        assert kernels.count("conv2d_grad_weight") == 2
        assert kernels.count("conv2d_grad_input") == 1
    assert max(program.memory.per_place.values()) > 4 * 4 * 129_068


# -- a layer ---------------------------------------------------------------------------------------


def test_rows_of_11_over_4_ranks_are_lent_both_ways_and_weights_are_summed():
    """A row has 2 x 6 x 5 numbers: one to each neighbour, and back in the backward; of dw and db
    each rank brings all 550."""
    rows, window = even(11, 4), WindowTerms((3, 3), padding=((1, 1), (1, 1)))
    options = {"unit": "", "window": window, "split": split_rows(rows, 3, 1, (1, 1))}
    held = Tiling((2, 6, 11, 5), (4,), (Shard(2, even_shards(11, 4)),))
    shapes = {"w": (10, 6, 3, 3), "b": (10,)}.items()
    weights = [(name, Tiling(shape, (ANY,), (Replicate(),)), 8) for name, shape in shapes]
    given = "conv", 4, (("x0", held, 8),), tuple(weights), tuple(options.items()), 8
    program = layer_program(*given).check()
    halo = next(op for op in program.role(0).blocks["forward"] if op.name == "halo_exchange")
    row = 8 * 2 * 6 * 5
    assert moved_by(halo).sent == (row, 2 * row, 2 * row, row)
    assert program.traffic.total == 2 * 6 * row + 2 * 3 * 550 * 8


def test_what_members_of_a_collective_send():
    args = {"counts": (12, 0, 8), "itemsize": 4, "extents": (3, 0, 2), "before": 1, "after": 2}
    halo, back = (Op(f"halo_{name}", args=tuple(args.items())) for name in ("exchange", "reduce"))
    assert (moved_by(halo).sent, moved_by(halo).received) == (
        moved_by(back).received,
        moved_by(back).sent,
    )
    assert moved_by(halo).bytes.tolist() == [[0, 0, 4 * 4], [0, 0, 0], [2 * 16, 0, 0]]
    swap = Op("all_to_all", args=(("counts", (1, 2, 3, 4)), ("itemsize", 8)))
    assert [moved_by(swap).of_rank(r) for r in range(2)] == [(16, 24, 1), (24, 16, 1)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("layer", ["mlp", "self_attention", "decoder_block"])
def test_every_call_is_that_of_the_closed_form(layer, ranks):
    heads = (10, 2, 4) if layer == "self_attention" else (8, 8, 4)
    for sequence, fused, gated in product((False, True), repeat=3):
        x = L.Stream(2, 7, 16, ranks, sequence)
        plan = {
            "mlp": L.swiglu_mlp(x, fused) if gated else L.mlp(x),
            "self_attention": L.self_attention(x, *heads, fused),
            "decoder_block": L.decoder_block(
                x, *heads, fused=fused, gated=gated, norm_bias=not gated
            ),
        }[layer]
        wanted = {}
        for call in plan.calls:
            sent = wanted.setdefault(call.label, (call.kind, [0] * ranks))[1]
            for member, nbytes in zip(call.members, call.cost(8).sent, strict=True):
                sent[member] += nbytes
        of = {"batch": 2, "tokens": 7, "width": 16, "heads": heads}
        found = td.layer_calls(
            layer, ranks=ranks, gated=gated, fused=fused, sequence=sequence, **of
        )
        assert {c.label: (c.kind, list(c.sent)) for c in found} == wanted


def test_a_layer_that_is_none():
    with pytest.raises(ConfigError, match=r"layers are decoder_block, .* got 'moe'"):
        td.layer_calls("moe", ranks=2, batch=1, tokens=1, width=1)
