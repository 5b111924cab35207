"""Memory: the ledger against closed forms, loops and laws.

Holds `tiledask.plan.fitting.activations`, `tiledask.plan.fitting.transient` and
`tiledask.plan.inputs.recipes`.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import ConfigError, PartitionError
from tiledask.plan.fitting.activations import layer_bytes, saved_tensors
from tiledask.plan.fitting.in_flight import in_flight
from tiledask.plan.fitting.memory import stage_parameters
from tiledask.plan.inputs.layout import SCHEDULES, Layout
from tiledask.plan.inputs.model import Model, count
from tiledask.plan.inputs.recipes import load_recipe, lora, recipes, state_bytes

SMALL = Model(hidden=64, layers=6, heads=8, ffn=256, vocab=96, learned_pos=32, dropout=True)
PER_PARAMETER = {
    "fp32-weights": 4,
    "fp16-weights": 2,
    "fp32-sgd": 8,
    "fp32-momentum": 12,
    "fp32-adam": 16,
    "mixed-adam-16": 16,
    "mixed-adam-18": 18,
    "mixed-adam-20": 20,
    "deepspeed-fp16-adam": 20,
    "deepspeed-bf16-adam": 20,
    "fsdp-adam": 16,
    "fsdp-adam-pipeline": 22,
    "mixed-adam-8bit": 10,
    "bf16-adam": 8,
    "bf16-adam-8bit": 6,
    "mixed-momentum": 12,
    "lora": 2,
}

TRAINED_WHOLE = sorted(PER_PARAMETER.keys() - {"lora"})


def held(memory, tensor, stage=0, moment=None):
    return memory.ledger.by_tensor(stage, moment).get(tensor, 0)


def states(memory, stage=0):
    names = {state.tensor for state in memory.recipe.states}
    return sum(n for t, n in memory.ledger.by_tensor(stage).items() if t in names)


def test_recipes_are_the_shipped_files():
    assert PER_PARAMETER.keys() <= set(recipes())
    assert {n: load_recipe(n).bytes_per_parameter for n in PER_PARAMETER} == PER_PARAMETER
    assert all(load_recipe(name).source for name in recipes())
    with pytest.raises(ConfigError, match="did you mean 'fp32-adam'"):
        load_recipe("fp32-adm")
    with pytest.raises(ConfigError, match="a recipe is a name"):
        load_recipe(16)


@pytest.mark.parametrize("recipe", TRAINED_WHOLE)
def test_states_on_one_device_are_bytes_per_parameter(recipe):
    memory = td.estimate_memory(SMALL, Layout(), recipe, sequence=32)
    assert states(memory) == PER_PARAMETER[recipe] * SMALL.parameters


@given(dp=st.integers(1, 9), zero=st.integers(0, 3), recipe=st.sampled_from(TRAINED_WHOLE))
def test_zero_shards_cover_the_states_and_waste_less_than_one_parameter_each(dp, zero, recipe):
    parameters = 1_000_003
    each = state_bytes(parameters, recipe, zero, dp)
    for state in load_recipe(recipe).states:
        copies = 1 if state.sharded(zero) else dp
        spare = each[state.tensor] * dp - state.bytes * parameters * copies
        assert 0 <= spare < state.bytes * dp


def test_zero_stages_deal_out_what_their_name_says():
    by_stage = [state_bytes(1000, "mixed-adam-16", zero, 10) for zero in range(4)]
    assert [sum(s.values()) for s in by_stage] == [16000, 5200, 3400, 1600]
    assert by_stage[1]["gradients"] == 2000
    assert by_stage[2]["weights"] == 2000


@given(d=st.integers(1, 5000))
def test_data_parallelism_alone_never_shrinks_a_device(d):
    assert sum(state_bytes(10**9, "mixed-adam-16", 0, d).values()) == 16 * 10**9


def reference_layer(h, a, s, b, t, sp, recompute):
    """Korthikanti et al., Table 2, term by term; fractions of bytes do not occur here."""
    if recompute == "full":
        return 2 * s * b * h // (t if sp else 1)
    outside = 2 + 1 + 2 + 1 + 4  # qkv input, mask, mlp input, mask, two norms
    inside = 4 + 2 + 2 + 8 + 8  # query and key, value, projection, mlp twice
    core = 0 if recompute == "selective" else 5 * a * s // h
    return s * b * h * outside // (t if sp else 1) + s * b * h * (inside + core) // t


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("b", [1, 3])
def test_activations_are_korthikantis_table_2(recompute, sp, t, b):
    h, a, s = 512, 8, 1024
    model = Model(hidden=h, layers=2, heads=a, ffn=4 * h, vocab=64, dropout=True)
    layout = Layout(tp=t, microbatch=b, sequence_parallel=sp, recompute=recompute)
    assert layer_bytes(model, layout, s) == reference_layer(h, a, s, b, t, sp, recompute)


def test_activations_of_grouped_heads_gates_experts_and_single_precision():
    h, s = 512, 128
    base = Model(hidden=h, layers=1, heads=8, ffn=1024, vocab=64)
    each = layer_bytes(base, Layout(), s)
    grouped = layer_bytes(replace(base, kv_heads=2), Layout(), s)
    assert each - grouped == 2 * (2 * s * h) * 3 // 4
    gated = layer_bytes(replace(base, mlp="swiglu"), Layout(), s)
    assert gated - each == 2 * (2 * s * 1024)
    assert layer_bytes(base, Layout(), s, width=4) == 2 * each
    names = {t.name for t in saved_tensors(replace(base, experts=4, top_k=2), s, 1, 2)}
    assert {"router probabilities", "expert outputs"} <= names
    assert all(t.flows for t in saved_tensors(base, s, 1, 2))
    bare = layer_bytes(replace(base, norm="none"), Layout(), s)
    assert each - bare == 2 * (2 * s * h)
    normed = layer_bytes(replace(base, qk_norm="full"), Layout(), s)
    assert normed - each == 2 * (2 * s * h)


def test_stage_parameters_of_any_partition_sum_to_the_model():
    for pp, bounds in (
        (1, None),
        (2, None),
        (4, None),
        (6, None),
        (3, (0, 1, 5, 6)),
        (2, (0, 0, 6)),
    ):
        for tied in (True, False):
            model = replace(SMALL, tied=tied)
            layout = Layout(pp=pp, partition=bounds)
            copy = model.vocab * model.hidden if tied and pp > 1 else 0
            held = [stage_parameters(model, layout, stage) for stage in range(pp)]
            assert sum(held) == model.parameters + copy


@pytest.mark.parametrize(("schedule", "alive"), [("naive", 1), ("gpipe", 8), ("1f1b", 3)])
def test_activations_follow_the_schedule(schedule, alive):
    layout = Layout(pp=3, microbatches=8, schedule=schedule)
    memory = td.estimate_memory(SMALL, layout, sequence=32)
    assert held(memory, "activations") == alive * 2 * layer_bytes(SMALL, layout, 32)
    last = {"naive": 1, "gpipe": 8, "1f1b": 1}[schedule]
    assert held(memory, "activations", 2) == last * 2 * layer_bytes(SMALL, layout, 32)
    assert held(memory, "logits", 2, "loss") == last * 4 * 32 * 96


def test_interleaving_scales_the_first_stage():
    base = Layout(pp=3, microbatches=6)
    plain = held(td.estimate_memory(SMALL, base, sequence=32), "activations")
    chunks = td.estimate_memory(SMALL, replace(base, interleave=2), sequence=32)
    assert held(chunks, "activations") * 6 == plain * (6 + 3 - 1)  # 1 + (p-1)/(p v)


def test_uneven_chunks_take_the_fullest_state():
    layout = Layout(pp=2, microbatches=4, interleave=2, partition=(0, 1, 2, 5, 6))
    memory = td.estimate_memory(SMALL, layout, sequence=32)
    # stage 0 holds chunks of 1 and 3 layers; 5 chunk forwards: 0 0 1 1 0, then B of chunk 1
    # frees 3, and the next forwards are 0 1 1: never more than 3 x 1 + 2 x 3 layers
    assert held(memory, "activations") == (3 * 1 + 2 * 3) * layer_bytes(SMALL, layout, 32)


def test_moments_and_peak():
    memory = td.estimate_memory(SMALL, Layout(pp=2), sequence=32)
    assert list(memory.ledger.moments(0)) == ["always", "forward", "backward", "optimizer step"]
    assert "loss" in memory.ledger.moments(1)
    assert memory.per_stage == tuple(max(memory.ledger.moments(s).values()) for s in (0, 1))
    assert memory.peak == max(memory.per_stage)
    assert memory.total == sum(memory.per_stage)
    step = memory.ledger.moments(0)["optimizer step"]
    assert step == 16 * stage_parameters(SMALL, Layout(pp=2), 0)
    assert all(row.formula and row.source for row in memory.ledger.rows if row.bytes)


def test_what_recomputation_saves_it_pays_for_one_layer_in_the_backward():
    full = td.estimate_memory(SMALL, Layout(recompute="full"), sequence=32)
    none = td.estimate_memory(SMALL, Layout(), sequence=32)
    whole = layer_bytes(SMALL, Layout(), 32)
    kept = layer_bytes(SMALL, Layout(recompute="full"), 32)
    assert held(full, "recomputed activations", 0, "backward") == whole - kept
    assert held(none, "activations") - held(full, "activations") == 6 * (whole - kept)
    assert held(none, "recomputed activations", 0, "backward") == 0
    assert full.peak < none.peak


def test_zero_3_gathers_one_item_and_zero_2_waits_for_its_gradients():
    def tensors(zero, dp):
        memory = td.estimate_memory(SMALL, Layout(dp=dp, zero=zero), sequence=32)
        return memory.ledger.by_tensor(0, "backward")

    layer = SMALL.item_parameters[1]
    assert tensors(3, 4)["gathered weights"] == 2 * layer
    assert tensors(2, 4)["unreduced gradients"] == 2 * layer
    assert "gathered weights" not in tensors(2, 4)
    assert "unreduced gradients" not in tensors(1, 4)
    assert "gathered weights" not in tensors(3, 1)


def test_serving_has_no_gradients_and_one_layer_at_work():
    memory = td.estimate_memory(SMALL, Layout(pp=2), "fp16-weights", sequence=32)
    assert set(memory.ledger.by_tensor(0)) == {"weights", "working activations"}
    assert set(memory.ledger.by_tensor(1)) == {"weights", "working activations", "logits"}
    assert held(memory, "weights") == 2 * stage_parameters(SMALL, Layout(pp=2), 0)
    work = layer_bytes(SMALL, Layout(), 32, masks=False)
    assert held(memory, "working activations") == work


def test_bloom_adds_the_input_of_its_embedding_norm():
    plain = td.estimate_memory(replace(SMALL, dropout=False), Layout(), sequence=32)
    normed = replace(SMALL, dropout=False, embedding_norm=True)
    assert held(plain, "embedding activations") == 0
    assert held(td.estimate_memory(normed, Layout(), sequence=32), "embedding activations") == (
        2 * 32 * 64
    )


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.integers(1, 6),
    dp=st.integers(1, 5),
    zero=st.integers(0, 2),
    b=st.integers(1, 3),
    m=st.integers(1, 7),
    sp=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
def test_more_of_anything_that_shards_never_needs_more(tp, pp, dp, zero, b, m, sp, recompute):
    layout = Layout(dp, tp, pp, b, m, zero, sp, recompute)
    peak = td.estimate_memory(SMALL, layout, sequence=32).peak
    assert td.estimate_memory(SMALL, replace(layout, dp=dp + 1), sequence=32).peak <= peak or (
        zero == 2 and dp == 1  # the first copy brings the gradients that wait
    )
    assert td.estimate_memory(SMALL, replace(layout, microbatch=b + 1), sequence=32).peak > peak
    if tp < 8:
        assert td.estimate_memory(SMALL, replace(layout, tp=2 * tp), sequence=32).peak < peak
    if not sp:
        cut = td.estimate_memory(SMALL, replace(layout, sequence_parallel=True), sequence=32)
        assert cut.peak <= peak


def test_sequence_parallelism_cuts_what_lies_outside_the_layers():
    layout = Layout(tp=4, pp=2)
    cut = replace(layout, sequence_parallel=True)
    for stage, tensor in ((0, "embedding activations"), (1, "head activations")):
        whole = held(td.estimate_memory(SMALL, layout, sequence=32), tensor, stage)
        assert whole == 4 * held(td.estimate_memory(SMALL, cut, sequence=32), tensor, stage) > 0


def test_layouts_that_the_model_does_not_allow():
    with pytest.raises(ConfigError, match="tp=3 does not divide the 8 attention heads"):
        td.estimate_memory(SMALL, Layout(tp=3))
    with pytest.raises(ConfigError, match="tp=6 neither divides"):
        td.estimate_memory(replace(SMALL, heads=12, kv_heads=4, head_dim=8), Layout(tp=6))
    with pytest.raises(PartitionError, match="7 chunks need as many layers, the model has 6"):
        td.estimate_memory(SMALL, Layout(pp=7))
    for sequence in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="sequence must be an integer"):
            td.estimate_memory(SMALL, Layout(), sequence=sequence)


def test_a_device_wider_than_the_key_value_heads_copies_them():
    model = replace(SMALL, kv_heads=2)
    one = stage_parameters(model, Layout(tp=2), 0)
    two = stage_parameters(model, Layout(tp=4), 0)
    assert two > one / 2  # keys and values are copied, norms too
    assert layer_bytes(model, Layout(tp=4), 32) > layer_bytes(model, Layout(tp=4), 32, masks=False)


def test_shown():
    memory = td.estimate_memory(SMALL, Layout(pp=2), sequence=32)
    assert repr(memory).startswith("MemoryEstimate(model, dp=1 tp=1 pp=2, mixed-adam-16")
    html = memory._repr_html_()
    assert html.count("<tr>") == 3
    assert "GB = 1e9 bytes" in html


# flash attention, context and expert parallelism ---------------------------------------------

GATED = Model(
    hidden=64,
    layers=4,
    heads=8,
    kv_heads=2,
    ffn=128,
    vocab=96,
    mlp="swiglu",
    norm="rmsnorm",
    tied=False,
)
MIXED = replace(GATED, experts=8, top_k=2, expert_ffn=32, shared_ffn=16, dense_layers=(0,))


@pytest.mark.parametrize("model", [SMALL, GATED])
def test_flash_attention_leaves_one_number_per_head_and_token_of_the_scores(model):
    s, heads = 32, model.heads // 2
    layout = Layout(tp=2, flash_attention=True)
    core = heads * s * s * (2 + 3 * model.dropout)
    plain = layer_bytes(model, Layout(tp=2), s)
    assert plain - layer_bytes(model, layout, s) == core - 4 * heads * s
    selective = layer_bytes(model, Layout(tp=2, recompute="selective"), s)
    assert layer_bytes(model, layout, s) - selective == 4 * heads * s
    assert layer_bytes(model, replace(layout, recompute="selective"), s) == selective


@given(s=st.integers(1, 400), cp=st.integers(1, 9), tp=st.sampled_from([1, 2, 4]))
def test_context_parallelism_is_a_shorter_sequence_but_for_the_scores(s, cp, tp):
    each = -(-s // cp)
    layout = Layout(tp=tp, cp=cp, flash_attention=True, sequence_parallel=True)
    assert layer_bytes(GATED, layout, s) == layer_bytes(GATED, replace(layout, cp=1), each)
    rows = layer_bytes(GATED, Layout(cp=cp), s) - layer_bytes(
        GATED, Layout(cp=cp, recompute="selective"), s
    )
    assert rows == 2 * GATED.heads * each * s  # every device's rows against all columns


def test_zero_deals_out_over_dp_and_cp():
    for zero, recipe in ((1, "mixed-adam-16"), (3, "fsdp-adam")):
        both = td.estimate_memory(GATED, Layout(dp=3, cp=2, zero=zero), recipe, 64)
        alone = td.estimate_memory(GATED, Layout(dp=6, zero=zero), recipe, 64)
        assert states(both) == states(alone)
    assert both.total == both.peak * 6


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_experts_are_dealt_out_and_their_states_over_what_is_left(ep):
    layout = Layout(dp=4, cp=2, ep=ep, zero=1)
    memory = td.estimate_memory(MIXED, layout, sequence=64)
    expert = 3 * sum(w.copies * w.units * w.size for w in MIXED.layer if w.copies > 1)
    dense = MIXED.parameters - expert
    assert held(memory, "weights") == 2 * (dense + expert // ep)
    # the optimizer's shard is 1 / (dp cp) of everything, however experts are dealt out
    assert held(memory, "variance") == 4 * -(-dense // 8) + 4 * expert // 8
    row = next(r for r in memory.ledger.rows if r.tensor == "variance")
    assert f"of experts / (dp 4 x cp 2 / ep {ep})" in row.formula


def test_experts_of_one_device_gather_nothing():
    model = replace(MIXED, dense_layers=())

    def gathered(ep):
        return held(
            td.estimate_memory(model, Layout(dp=8, ep=ep, zero=3), sequence=64),
            "gathered weights",
            moment="forward",
        )

    dense = sum(w.count() for w in model.layer if w.copies == 1)
    assert gathered(8) == 2 * dense
    assert gathered(1) == 2 * count(model.layer)


def test_expert_parallelism_that_there_cannot_be():
    with pytest.raises(ConfigError, match="ep=2 shards experts and model has none"):
        td.estimate_memory(GATED, Layout(dp=2, ep=2), sequence=64)
    with pytest.raises(ConfigError, match=r"ep=3 does not divide the 8 experts.*\[1, 2, 4, 8\]"):
        td.estimate_memory(MIXED, Layout(dp=3, ep=3), sequence=64)


def test_dense_first_layers_have_weights_and_activations_of_their_own():
    layout = Layout(pp=4, microbatches=4)
    memory = td.estimate_memory(MIXED, layout, sequence=64)
    dense, mixture = (count(MIXED.layer_weights(i)) for i in (0, 1))
    assert held(memory, "weights", 1) == 2 * mixture
    assert held(memory, "weights") == 2 * (dense + count(MIXED.embedding))
    for stage in (0, 1):
        each = layer_bytes(MIXED, layout, 64, mixture=stage > 0)
        assert held(memory, "activations", stage) == (4 - stage) * each


def test_latent_attention_keeps_its_latents_and_whole_heads():
    v3 = td.load_model("deepseek-v3")
    sizes = {t.name: t.elements for t in saved_tensors(v3, 4096, 2, 2, flash=True)}
    assert sizes["query"] == sizes["key"] == 64 * (128 + 64)
    assert sizes["value"] == sizes["attention output input"] == 64 * 128
    assert (sizes["kv latent norm input"], sizes["kv latent"]) == (512 + 64, 512)
    assert sizes["query latent"] == 1536
    assert sizes["softmax row statistic"] == 64
    assert sizes["mlp gate"] == 8 * 2048 // 2
    assert sizes["shared mlp gate"] == 2048 // 2


# what comes and goes ----------------------------------------------------------------------


def test_sequence_parallelism_gathers_one_layers_input():
    layout = Layout(tp=4, sequence_parallel=True, microbatch=2, recompute="full")
    memory = td.estimate_memory(SMALL, layout, sequence=32)
    whole = 2 * SMALL.hidden * 2 * 32
    assert held(memory, "gathered sequence", 0, "forward") == whole
    assert held(memory, "gathered sequence", 0, "backward") == 2 * whole
    assert (
        held(
            td.estimate_memory(SMALL, replace(layout, sequence_parallel=False), sequence=32),
            "gathered sequence",
            0,
            "backward",
        )
        == 0
    )


def test_gradients_of_a_layer_are_the_residual_stream_and_two_tensors():
    memory = td.estimate_memory(replace(SMALL, dropout=False), Layout(tp=2), sequence=32)
    inside = 2 * 32 * 256 // 2  # activation input and output; scores are 2 x 32 x 32 x 4
    assert held(memory, "activation gradients", 0, "backward") == 2 * 32 * 64 + 2 * inside


def test_operators_kept_are_every_second_product_and_the_attention():
    s, h = 32, GATED.hidden
    kept = layer_bytes(GATED, Layout(recompute="selective_op", flash_attention=True), s)
    # input, query, value, attention output, its statistic, gate, down
    assert kept == s * (2 * (h + h + h // 4 + h + 128 + h) + 4 * GATED.heads)
    for model in (SMALL, GATED, MIXED):
        sizes = [
            layer_bytes(model, Layout(recompute=r), s)
            for r in ("full", "selective_op", "selective", "none")
        ]
        assert sizes == sorted(sizes)


def test_a_recipe_says_what_it_works_with():
    cast = td.estimate_memory(SMALL, Layout(), "mixed-adam-20", sequence=32)
    assert held(cast, "gradient cast to single precision", 0, "backward") == 4 * 64 * 256
    assert held(cast, "gradient cast to single precision", 0, "forward") == 0
    for tp, more in ((1, 8), (2, 16)):
        loss = td.estimate_memory(SMALL, Layout(dp=2, tp=tp, zero=3), "fsdp-adam", sequence=32)
        classes = loss.ledger.by_tensor(0, "loss")
        extra = ("log-probabilities and their gradient", "loss over a split vocabulary")
        assert sum(classes.get(name, 0) for name in extra) == more * 32 * 96 // tp


def test_fsdp_in_a_pipeline_keeps_weights_and_gradients_whole():
    layout = Layout(dp=4, pp=2, zero=3, microbatches=4)
    plain = td.estimate_memory(SMALL, layout, "fsdp-adam", sequence=32)
    whole = td.estimate_memory(SMALL, layout, "fsdp-adam-pipeline", sequence=32)
    n = stage_parameters(SMALL, layout, 0)
    assert held(whole, "gathered weights") == 2 * n > held(plain, "gathered weights")
    assert held(whole, "unreduced gradients") == 4 * n
    assert held(plain, "weights") == 4 * -(-n // 4) == held(whole, "weights")


# adapters ---------------------------------------------------------------------------------


def test_adapters_alone_have_gradients_and_states():
    h, g, r = GATED.hidden, GATED.kv_heads * GATED.head_dim, 16
    adapters = GATED.layers * r * ((h + h) + (h + g))
    memory = td.estimate_memory(GATED, Layout(), "lora", sequence=32)
    assert held(memory, "weights") == 2 * GATED.parameters
    assert held(memory, "adapter weights") == held(memory, "gradients") == 2 * adapters
    assert held(memory, "variance") == 4 * adapters
    more = lora(rank=32, matrices=("query", "value", "mlp down"))
    wide = td.estimate_memory(GATED, Layout(), more, sequence=32)
    assert held(wide, "variance") == 4 * (2 * adapters + GATED.layers * 32 * (h + GATED.ffn))


def test_adapters_under_tensor_parallelism_and_zero():
    h, f, r = GATED.hidden, GATED.ffn, 16
    recipe = lora(matrices=("mlp up", "mlp down"))
    memory = td.estimate_memory(GATED, Layout(tp=2, dp=2, zero=1), recipe, sequence=32)
    # column-parallel: A whole, B cut; row-parallel: A cut, B whole
    each = GATED.layers * r * (h + f // 2 + f // 2 + h)
    assert held(memory, "adapter weights") == 2 * each
    assert held(memory, "momentum") == 4 * each // 2


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, float("nan")])
def test_ranks_and_matrices_are_checked(bad):
    with pytest.raises(ConfigError, match="rank of an adapter must be an integer of 1 or more"):
        lora(rank=bad)
    with pytest.raises(ConfigError, match="matrices must be a tuple of names"):
        lora(matrices="query")
    with pytest.raises(ConfigError, match="'mixed-adam-16' trains all weights"):
        lora(base="mixed-adam-16")


# pipelines of other shapes ----------------------------------------------------------------


def test_a_v_holds_both_ends_on_the_first_device_and_no_second_embedding():
    layout = Layout(pp=3, schedule="zb-v", microbatches=6)
    memory = td.estimate_memory(SMALL, layout, sequence=32)
    held_parameters = [stage_parameters(SMALL, layout, stage) for stage in range(3)]
    assert sum(held_parameters) == SMALL.parameters  # tied: embedding and head are together
    assert "loss" in memory.ledger.moments(0)
    assert "loss" not in memory.ledger.moments(2)


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_two_copies_of_the_model_hold_its_parameters_twice(name):
    layout = Layout(pp=2, schedule=name, microbatches=4)
    model = replace(SMALL, tied=False)
    assert sum(stage_parameters(model, layout, stage) for stage in range(2)) == 2 * model.parameters
    memory = td.estimate_memory(model, layout, sequence=32)
    assert {"loss", "backward"} <= memory.ledger.moments(1).keys()
    assert memory.per_stage[0] == memory.per_stage[1]


def test_every_schedule_has_a_ledger():
    model = replace(SMALL, layers=8)
    for name in SCHEDULES:
        several = 2 if name in ("interleaved", "looped-bfs", "interleaved-zb", "wave") else 1
        layout = Layout(pp=2, microbatches=4, schedule=name, interleave=several)
        memory = td.estimate_memory(model, layout, sequence=32)
        assert min(memory.per_stage) > 0
        chunk = 8 // layout.chunks
        held_chunks = held(memory, "activations") // (chunk * layer_bytes(SMALL, layout, 32))
        assert held_chunks == in_flight(layout, 0)


def test_partitions_with_embedding_and_head_as_items():
    untied = replace(SMALL, tied=False)
    alone = Layout(pp=4, partition="E, 3x2, H")
    sizes = [stage_parameters(untied, alone, stage) for stage in range(4)]
    assert (sizes[0], sizes[3]) == (count(untied.embedding), count(untied.head))
    assert sum(sizes) == untied.parameters
    memory = td.estimate_memory(untied, alone, sequence=32)
    assert held(memory, "activations", 3) == 0
    assert held(memory, "logits", 3, "loss") == 4 * 32 * 96


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Layout(), SMALL), "a model is named by text or by a path, got Layout"),
        ((SMALL, None), "a layout is a td.Layout, such as .* got None"),
        ((SMALL, Layout(cp=33)), "cp=33 cannot cut a sequence of 32 tokens"),
    ],
)
def test_what_is_no_run_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        td.estimate_memory(*arguments, sequence=32)
    with pytest.raises(ConfigError, match="sequence must be 1,073,741,824 tokens or fewer"):
        td.estimate_memory(SMALL, Layout(), sequence=10**15)


@pytest.mark.parametrize(
    "bad",
    [
        {"parameters": 1.5},
        {"parameters": True},
        {"parameters": -1},
        {"parameters": 5, "dp": 0},
        {"parameters": 5, "zero": 4},
        {"parameters": float("nan")},
    ],
)
def test_state_bytes_refuses_what_is_no_number_of_parameters(bad):
    with pytest.raises(ConfigError, match="must be"):
        state_bytes(**bad)
