"""Models as weights, shipped ones with their published counts; layouts: which are valid."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask import Layout, Model, load_model
from tiledask.errors import ConfigError, PartitionError, ScheduleError
from tiledask.plan.inputs.model import Weight

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


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"sequence_parallel": 1}, ConfigError, "sequence_parallel must be True or False"),
        ({"schedule": "zb"}, ConfigError, "schedule must be one of"),
        ({"interleave": 2, "pp": 4, "microbatches": 6}, ScheduleError, "got 6 and 4; 8 works"),
        ({"pp": 2, "partition": (1, 2, 4)}, PartitionError, "must start at 0 and rise"),
        ({"schedule": "zb-v"}, ScheduleError, "of 2 or more, got pp=1; use schedule='1f1b'"),
        ({"expert_tp": -1}, ConfigError, "expert_tp must be a whole number of 0 or more"),
        ({"tp": 2, "ep": 2, "expert_tp": 1}, ConfigError, "use sequence_parallel=True"),
    ],
)
def test_rules(fields, error, message):
    with pytest.raises(error, match=message):
        Layout(**fields)


def test_partitions_and_what_is_none():
    bloom = Layout(pp=12, partition=[0, *range(5, 66, 6), 70])
    assert bloom.chunk_layers(70) == (5, *[6] * 10, 5)
    assert Layout(pp=2, partition=(0, 0, 4)).chunk_layers(4) == (0, 4)  # embedding alone
    assert Layout(pp=2, partition="3,5").partition == (0, 3, 8)
    assert Layout(pp=3, partition="items").chunk_layers(10) == (3, 4, 3)
    assert Layout(pp=12, partition="items").chunk_layers(10) == (0, *[1] * 10, 0)
    for layout, layers, words in (
        (bloom, 71, "ends at 70, the model has 71"),
        (Layout(pp=4, interleave=2, microbatches=4), 7, "8 chunks need as many layers"),
        (Layout(pp=13, partition="items"), 10, "13 chunks need as many items"),
    ):
        with pytest.raises(PartitionError, match=words):
            layout.chunk_layers(layers)
    for text in ("", "5,E+5", "-1,3"):
        with pytest.raises(PartitionError, match="write the layers of each stage"):
            Layout(pp=2, partition=text)


def test_chunks_of_each_shape():
    looped = Layout(pp=2, interleave=2, microbatches=2, partition=(0, 1, 3, 6, 10))
    assert [looped.stage_layers(stage, 10) for stage in (0, 1)] == [1 + 3, 2 + 4]
    assert Layout(pp=4, schedule="v-half").interleave == 2
    assert Layout(pp=2, schedule="interleaved", interleave=3, microbatches=5).chunks == 6
    both = Layout(pp=4, schedule="chimera")
    assert [both.stage_layers(stage, 8) for stage in range(4)] == [4, 4, 4, 4]


COUNTS = json.loads((Path(__file__).parents[2] / "oracles" / "shipped_counts.json").read_text())
PUBLISHED, ACTIVE = COUNTS["parameters"], COUNTS["active"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_shipped_models_have_the_published_count(name):
    assert load_model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_agree_with_what_is_printed(name):
    model = load_model(name)
    digits = len(ACTIVE[name].partition(".")[2])
    looked_up = model.active_parameters, model.active_parameters - model.item_parameters[0]
    rounded = {round(n / 1e9, digits) for n in looked_up}
    assert float(ACTIVE[name]) in rounded | {
        int(n / 1e9 * 10**digits) / 10**digits for n in looked_up
    }


def test_a_layer_that_predicts_a_further_token_is_that_of_the_checkpoint():
    """DeepSeek-V3's has 684,531,386,000 elements, with copies of both tables and scales of fp8."""
    more = replace(load_model("deepseek-v3"), mtp_layers=1).parameters + 2 * 129_280 * 7168
    assert 0 < 684_531_386_000 - more < 671e9 / 128**2 * 1.02


def test_shipped_models_are_found_by_their_name_on_the_hub():
    for hub, name in COUNTS["hub"].items():
        assert load_model(hub) == load_model(name)


SIZES = "100M 350M 1.3B 7e9 13B 65b 175B 540B 1T 7000000000 1e14"


@pytest.mark.parametrize("typed", SIZES.split())
def test_a_number_of_parameters_is_a_decoder_of_about_as_many(typed):
    model = load_model(typed)
    units = {"m": 6, "b": 9, "t": 12}
    wanted = float(typed.rstrip("mbtMBT")) * 10 ** units.get(typed[-1].lower(), 0)
    assert model.parameters == pytest.approx(wanted, rel=0.02)
    assert model.head_dim == 128
    assert 1.5 * model.hidden <= model.ffn <= 4 * model.hidden
    assert 60 <= model.hidden / model.layers <= 180
    assert wanted < 5e9 or (model.heads % 8, model.layers % 4) == (0, 0)
    assert f"{model.layers} layers of width {model.hidden:,}" in model.source


def test_a_number_that_no_model_has_is_refused():
    for typed in ("7", "99M", "200T", "0b"):
        with pytest.raises(ConfigError, match=r"from 100,000,000 to .* write '7B'"):
            load_model(typed)
