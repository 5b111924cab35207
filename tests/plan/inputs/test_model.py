"""A model as weights: layers that differ, latent attention, experts, shares, rules."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ConfigError
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model, Weight

TINY = {"hidden": 64, "layers": 6, "heads": 4, "ffn": 256, "vocab": 100}
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 6, "v_head_dim": 10}
MIXED = Model(**TINY, experts=8, top_k=2, expert_ffn=48, shared_ffn=96, dense_layers=(0, 3))


def test_dense_layers_stand_among_mixtures():
    named = [(kind.name, kind.many) for kind in MIXED.layer_kinds]
    assert named == [("dense layer", 2), ("mixture layer", 4)]
    own, routed = (kind.weights for kind in MIXED.layer_kinds)
    assert MIXED.kind_of == (0, 1, 1, 0, 1, 1)
    assert MIXED.layer is routed
    assert "router" in {w.name for w in routed} - {w.name for w in own}
    each = [sum(w.count() for w in weights) for weights in (own, routed)]
    assert MIXED.item_parameters[1:-1] == tuple(each[k] for k in MIXED.kind_of)
    assert sum(MIXED.item_parameters) == MIXED.parameters


def test_a_dense_layer_uses_every_weight_and_a_mixture_those_of_two_experts():
    expert = 2 * 64 * 48 + 48 + 64
    assert MIXED.parameters - MIXED.active_parameters == 4 * (8 - 2) * expert
    assert replace(MIXED, top_k=8).active_parameters == MIXED.parameters
    without, shared = replace(MIXED, shared_ffn=0), 4 * (2 * 64 * 96 + 96 + 64)
    assert MIXED.parameters - without.parameters == shared
    assert MIXED.active_parameters - without.active_parameters == shared


def test_tensor_parallel_shares_cover_the_model_and_copy_what_is_not_cut():
    model = load_model("llama-3.1-8b")
    for tp in (1, 2, 4, 8):
        cut = [w for w in model.layer if w.split]
        assert all(w.count(tp) * tp == w.count() for w in cut)
    assert sum(w.count(8) for w in model.layer if not w.split) == 2 * 4096
    key = next(w for w in model.layer if w.name == "key")
    assert key.count(16) == key.count(8) == 128 * 4096  # 8 heads on 16 devices: copied
    assert Weight("ffn", units=10, size=3).count(4) == 9  # the fullest of 3, 3, 3, 1


@settings(max_examples=60)
@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 600))
def test_tp_is_refused_unless_heads_and_groups_can_be_dealt_out(groups, each, tp):
    model = Model(**TINY | {"heads": groups * each, "hidden": 8 * groups * each}, kv_heads=groups)
    if groups * each % tp == 0 and (groups % tp == 0 or tp % groups == 0):
        model.check_tp(tp)
    else:
        with pytest.raises(ConfigError, match=f"tp={tp} "):
            model.check_tp(tp)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp": ["gelu"]}, "mlp must be one of"),
        ({"heads": 5}, "must be a multiple of"),
        ({"shared_ffn": 64}, "shared_ffn belongs to a mixture"),
        ({"experts": 4, "top_k": 1, "dense_layers": (-1,)}, "must be a whole number of 0"),
        ({"experts": 4, "top_k": 1, "dense_layers": 2}, "must be a tuple of at most 6 layer"),
        ({**LATENT, "qk_norm": "full"}, "qk_norm must be None in latent"),
        ({"mixer": "compressed", "q_lora_rank": 8, "output_rank": 8}, "output_groups must be 1"),
        ({"ssm_groups": 2, "ssm_heads": 3}, "ssm_heads .3. must be a multiple"),
        ({"output_groups": 3}, "must be a multiple of output_groups"),
    ],
)
def test_model_fields_are_checked(change, message):
    with pytest.raises(ConfigError, match=message) as error:
        Model(**TINY | change)
    assert len(str(error.value)) < 400
