"""What a layer's program calls is what closed forms say, to the byte.

Holds `tiledask.plan.program.making.layer`.
"""

from itertools import product

import pytest
from oracles import closed_layers as L

import tiledask as td
from tiledask.errors import ConfigError


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("layer", ["mlp", "self_attention", "decoder_block"])
def test_every_call_is_that_of_the_closed_form(layer, ranks):
    heads = (10, 2, 4) if layer == "self_attention" else (8, 8, 4)
    for sequence, fused, gated in product((False, True), repeat=3):
        x = L.Stream(2, 7, 16, ranks, sequence)
        plan = {
            "mlp": L.swiglu_mlp(x, fused) if gated else L.mlp(x),
            "self_attention": L.self_attention(x, *heads, fused),
            "decoder_block": L.decoder_block(x, *heads, fused, gated, norm_bias=not gated),
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
