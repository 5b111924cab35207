"""Memory: the ledger against closed forms, loops and laws."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.finished import ROOT

import tiledask as td
from tiledask import Layout, Model, load_recipe, schedule
from tiledask.errors import ConfigError
from tiledask.plan.fitting.activations import alive, layer_bytes, saved_tensors
from tiledask.plan.inputs.layout import SCHEDULES
from tiledask.plan.inputs.recipes import state_bytes
from tiledask.plan.ledger import ALWAYS
from tiledask.plan.pipelines.schedules import BOTH_WAYS, LOOPED, V_SHAPED
from tiledask.plan.pipelines.validate import most_kept

SMALL = Model(hidden=64, layers=6, heads=8, ffn=256, vocab=96, learned_pos=64, dropout=True)
GATED = Model(hidden=64, layers=4, heads=8, ffn=128, vocab=96, kv_heads=2, mlp="swiglu")
MIXED = replace(GATED, experts=8, top_k=2, expert_ffn=32, shared_ffn=16, dense_layers=(0,))


RECIPES = "fp16-weights mixed-adam-20 fsdp-adam-pipeline mixed-adam-8bit deepspeed-bf16-adam"
RECIPES = RECIPES.split()


def estimate(model=SMALL, layout=None, recipe="mixed-adam-16", sequence=32, **fields):
    return td.estimate_memory(model, layout or Layout(**fields), recipe, sequence)


def held(memory, tensor, stage=0, moment=None):
    return memory.ledger.by_tensor(stage, moment).get(tensor, 0)


def stage_parameters(model, layout, stage):
    served = td.estimate_memory(model, replace(layout, zero=0), "fp16-weights", 32)
    return served.ledger.by_tensor(stage)["weights"] // 2


@given(dp=st.integers(1, 9), zero=st.integers(0, 3), recipe=st.sampled_from(RECIPES))
def test_zero_shards_cover_the_states_and_waste_less_than_one_parameter_each(dp, zero, recipe):
    parameters = 1_000_003
    each = state_bytes(parameters, recipe, zero, dp)
    for state in load_recipe(recipe).states:
        copies = 1 if state.sharded(zero) else dp
        spare = each[state.tensor] * dp - state.bytes * parameters * copies
        assert 0 <= spare < state.bytes * dp


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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("pp", [1, 2, 4, 6, (0, 1, 5, 6), (0, 0, 6)])
def test_stage_parameters_of_any_partition_sum_to_the_model(pp, tied):
    model = replace(SMALL, tied=tied)
    layout = Layout(pp=pp) if isinstance(pp, int) else Layout(pp=len(pp) - 1, partition=pp)
    copy = model.vocab * model.hidden if tied and pp != 1 else 0
    held = [stage_parameters(model, layout, stage) for stage in range(layout.pp)]
    assert sum(held) == model.parameters + copy


def test_uneven_chunks_take_the_fullest_state():
    layout = Layout(pp=2, microbatches=4, interleave=2, partition=(0, 1, 2, 5, 6))
    # stage 0 holds chunks of 1 and 3 layers: 5 chunk forwards, 0 0 1 1 0, before the first B
    most = (3 * 1 + 2 * 3) * layer_bytes(SMALL, layout, 32)
    assert held(estimate(layout=layout), "activations") == most


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_experts_are_dealt_out_and_their_states_over_what_is_left(ep):
    memory = estimate(MIXED, dp=4, cp=2, ep=ep, zero=1)
    expert = 3 * sum(w.copies * w.units * w.size for w in MIXED.layer if w.copies > 1)
    dense = MIXED.parameters - expert
    assert held(memory, "weights") == 2 * (dense + expert // ep)
    # the optimizer's shard is 1 / (dp cp) of everything, however experts are dealt out
    assert held(memory, "variance") == 4 * -(-dense // 8) + 4 * expert // 8


def test_imbalance_is_more_tokens_on_the_fullest_device_of_experts():
    even, full = (replace(MIXED, imbalance=each) for each in (1.0, 1.5))
    of = {m.imbalance: saved_tensors(m, 32, 1, 2, flash=True) for m in (even, full)}
    more = {a.name: b.units / a.units for a, b in zip(of[1.0], of[1.5], strict=True)}
    routed = {name for name, times in more.items() if times > 1}
    inside = {"gate", "activated gate", "up", "product"}
    assert routed == {"mlp input", "expert outputs", *(f"mlp {part}" for part in inside)}
    assert {more[name] for name in routed} == {1.5}


def test_a_recipe_of_ones_own_is_a_file(tmp_path):
    file = tmp_path / "mine.json"
    said = json.loads((ROOT / "data/recipes/mixed-adam-16.json").read_text("utf-8"))
    said["states"][0]["bytes"] = 3
    file.write_text(json.dumps(said | {"name": "mine"}))
    assert load_recipe(file).bytes_per_parameter == load_recipe(str(file)).bytes_per_parameter == 17
    first = said["states"][0]
    for wrong, words in (
        ([{"tensor": "weights", "bytes": 2}], "zero"),
        ([first | {"zero": 7}], "must be a ZeRO stage"),
        ([first | {"moment": "Always"}], "'moment' must be one of"),
        ([first, first], "names a tensor twice"),
    ):
        file.write_text(json.dumps(said | {"states": wrong}))
        with pytest.raises(ConfigError, match=words):
            load_recipe(file)


@pytest.mark.parametrize(
    ("model", "each"),
    [
        ("llama-2-7b", 524_288),  # "0.5 MB a token": PagedAttention, and many after it
        ("llama-3.1-70b", 327_680),  # 320 KB
        ("llama-3.1-405b", 516_096),
        ("deepseek-v3", 70_272),  # 70.272 KB: DeepSeek-V3 insights, arXiv:2505.09343, Table 1
    ],
)
def test_a_token_that_is_served_keeps_keys_and_values(model, each):
    run = model, Layout(), "fp16-weights", 1
    (row,) = (r for r in td.estimate_memory(*run, cached=1).ledger.rows if "cache" in r.tensor)
    assert (row.bytes, row.moment) == (each, ALWAYS)
    fit = td.fits(model, Layout(), "1xH200", "fp16-weights", 1, cached=65_536)
    assert fit.memory.peak - td.estimate_memory(*run).peak == 65_536 * each
    for tp in (4, 16):  # a latent is on every device, a head on one, or a copy of it
        parts = 1 if model == "deepseek-v3" else min(tp, td.load_model(model).kv_heads)
        split = td.estimate_memory(model, Layout(tp=tp), "fp16-weights", 1, cached=1).ledger
        assert split.by_tensor(0)["key-value cache"] == each // parts


def test_a_scan_keeps_its_inputs_and_output_and_serves_from_a_state():
    """What mamba_ssm's fused kernel saves: z, x, B, C and step, its output, and what the output
    projection reads; a state of each sequence, however long."""
    sizes = {"ssm_heads": 6, "ssm_head_dim": 8, "ssm_groups": 2, "ssm_state": 16, "conv_kernel": 4}
    kinds = {"mixer": "mamba2", "mlp": "none", "layer_norms": 1}, {}
    model = replace(SMALL, layers=8, kinds=kinds, pattern=(0, 0, 0, 1) * 2, dropout=False, **sizes)
    scan, tokens = 2 * 48 + 2 * 32 + 6 + 48 + 48, 2 * 32
    of_layer = layer_bytes(model, Layout(microbatch=2), 32, kind=0)
    assert of_layer == 2 * tokens * (scan + 2 * model.hidden)  # its input before and after the norm
    served = load_recipe("fp16-weights")
    by = {n: td.estimate_memory(model, Layout(), served, 32, cached=32 * n).ledger for n in (5, 9)}
    states = [ledger.by_tensor(0)["recurrent states"] for ledger in by.values()]
    assert states == [6 * n * (6 * 8 * 16 * 4 + 2 * 4 * (48 + 2 * 32)) for n in by]


def test_what_is_offloaded_lies_in_the_node_and_must_have_room_there():
    model, layout = "llama-2-7b", Layout(dp=8, zero=2, recompute="full")
    away = td.offload("mixed-adam-16")
    here, there = (td.estimate_memory(model, layout, r) for r in ("mixed-adam-16", away))
    assert (there.offloaded.keys(), here.offloaded) == ({"cpu"}, {})
    gone = here.ledger.by_tensor(0).keys() - there.ledger.by_tensor(0).keys()
    assert gone == {"master weights", "momentum", "variance"}
    moved = there.offloaded["cpu"].peak
    assert here.peak - there.peak == moved
    assert moved == 12 * -(-here.model.parameters // 8)
    for room, verdict in ((8 * moved, "fits"), (8 * moved - 1, "no"), (0, "fits")):
        node = replace(td.load_cluster("8xA100-80GB"), host_bytes=room)
        fit = td.fits(model, layout, node, away)
        assert (fit.verdict, fit.shortfall, fit.smallest_fix) == (verdict, 0, None)
        assert ("of its host memory" in fit.reason) == (verdict == "no")
    disks = td.offload(away, ("momentum", "variance"), "nvme")
    assert disks.places == ("cpu", "nvme")
    assert "of its disks" in td.fits(model, layout, replace(node, nvme_bytes=1), disks).lacking


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: replace(MIXED, imbalance=0.9), "imbalance must be a number of 1 or more"),
        (lambda: replace(MIXED, imbalance=5.0), "imbalance must be a number of 1 or more"),
        (lambda: replace(GATED, imbalance=1.2), "imbalance must be a number of 1 or more"),
        (lambda: estimate(cp=33), "cp=33 cannot cut 32 tokens"),
        (lambda: estimate(GATED, dp=2, ep=2), "ep=2 is for experts and model has none"),
        (lambda: estimate(sequence=10**15), "sequence must be at most 1,073,741,824 tokens"),
        (lambda: load_recipe("fp32-adm"), "did you mean 'fp32-adam'"),
        (lambda: state_bytes(5, zero=4), "must be"),
        (lambda: estimate(recipe=td.offload(states=("weights",))), "zero=3 alone brings them"),
        (lambda: td.offload(states="momentum"), "must be a tuple of names"),
        (lambda: td.estimate_step(SMALL, Layout(), "1xH100", td.offload()), "is not modelled"),
        (lambda: td.estimate_memory(SMALL, Layout(), cached=9), "serve with 'fp16-weights'"),
    ],
)
def test_what_cannot_be_held_so_is_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("m", [2, 4, 8, 14, 60])
def test_in_flight_is_what_the_schedule_holds(name, p, m):
    looped = name in LOOPED or name == "1f1b"
    v = 2 if looped or name in V_SHAPED else 1
    if name == "1f1b" and m % p:  # Megatron-LM's interleaved order takes multiples of p
        name, looped, v = "1f1b", False, 1
    layout = Layout(pp=p, microbatches=m, schedule=name, interleave=v)
    real = "interleaved" if name == "1f1b" and v > 1 else name
    built = schedule(real, p * v, m, **({"devices": p} if looped else {}))
    states = [alive(name, p, m, layout.interleave, stage) for stage in range(p)]
    assert tuple(max(map(sum, each)) for each in states) == most_kept(built)[0]
    for stage, each in enumerate(states):
        chunks = layout.stage_chunks(stage)
        assert all(len(state) == len(chunks) for state in each)
        if name not in BOTH_WAYS:
            assert [built.place[chunk] for chunk in chunks] == [stage] * v
