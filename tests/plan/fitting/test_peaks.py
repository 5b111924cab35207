"""Peaks of many layouts at once: the ledger's, to the byte; rows that are alike."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask import Layout, Model, load_recipe
from tiledask.errors import ConfigError
from tiledask.plan.arrays import combinations
from tiledask.plan.data import names
from tiledask.plan.fitting.vectorized import peak_bytes
from tiledask.plan.inputs.recipes import State

DENSE = Model(hidden=64, layers=13, heads=8, ffn=250, vocab=97, learned_pos=128, dropout=True)
PLAIN = Model(hidden=64, layers=12, heads=8, ffn=256, vocab=96, mlp="swiglu")
GATED = replace(PLAIN, kv_heads=2, norm="rmsnorm", tied=False, qk_norm="per_head")
GATED = replace(GATED, embedding_norm=True)
MIXED = replace(PLAIN, ffn=2000, experts=8, top_k=2, expert_ffn=96, shared_ffn=64)
MIXED = replace(MIXED, dense_layers=(0, 1, 2))
EVERY_OTHER = replace(MIXED, expert_ffn=16, dense_layers=(0, 2, 4, 6, 8, 10))
EXPERTS = replace(MIXED, expert_ffn=512, shared_ffn=0, dense_layers=())
SCAN = {"mixer": "mamba2", "mlp": "none", "layer_norms": 1}
HYBRID = replace(EXPERTS, ssm_heads=8, ssm_groups=2, ssm_head_dim=6, ssm_state=10, conv_kernel=4)
KINDS = SCAN, {}, {"mixer": "delta", "window": 9, "windowed_layers": 12}
HYBRID = replace(HYBRID, kinds=KINDS, pattern=(0, 1, 2, 2) * 3)
HYBRID = replace(HYBRID, index_heads=2, index_dim=4, index_topk=16)
MODELS = [DENSE, GATED, MIXED, EVERY_OTHER, EXPERTS, HYBRID]


WAYS = [
    load_recipe("qlora"),
    replace(load_recipe("int4-weights"), cached=999),
    td.offload("mixed-adam-16", ("weights", "momentum")),
    replace(load_recipe("mixed-adam-18-fp8"), framework="megatron-2025"),
    replace(load_recipe("mixed-adam-18"), framework="megatron-2025-fused-loss"),
    replace(load_recipe("mixed-adam-16"), framework="deepspeed-2021"),
]


@st.composite
def layouts(draw):
    pp = draw(st.integers(1, 6))
    v = draw(st.integers(1, 2)) if pp > 1 else 1
    schedule = draw(st.sampled_from(("naive", "gpipe", "1f1b"))) if v == 1 else "1f1b"
    ep = draw(st.sampled_from((1, 2, 4)))
    return {
        "dp": ep * draw(st.sampled_from((1, 1, 2, 3, 5))),
        "tp": draw(st.sampled_from((1, 2, 4, 8))),
        "pp": pp,
        "cp": draw(st.integers(1, 3)),
        "ep": ep,
        "microbatch": draw(st.integers(1, 4)),
        "microbatches": draw(st.integers(1, 9)) * (pp if v > 1 else 1),
        "zero": draw(st.integers(0, 3)),
        "sequence_parallel": draw(st.booleans()),
        "recompute": draw(st.sampled_from(("none", "selective", "full", "selective_op"))),
        "flash_attention": draw(st.booleans()),
        "schedule": schedule,
        "interleave": v,
    }


@pytest.mark.few(2)
@pytest.mark.parametrize("recipes", [*[names("recipes")] * 4, WAYS], ids=[*"1234", "programs"])
@settings(max_examples=30)
@given(
    many=st.lists(layouts(), min_size=1, max_size=6),
    model=st.sampled_from(MODELS),
    data=st.data(),
    sequence=st.integers(3, 70),
)
def test_peaks_are_the_ledgers_to_the_byte(recipes, many, model, data, sequence):
    recipe = data.draw(st.sampled_from(recipes))
    if not model.experts:
        many = [{**row, "ep": 1} for row in many]
    if recipes is WAYS:  # weights away from the device are for ZeRO-3 alone
        many = [{**row, "zero": 3} for row in many]
    columns = {field: np.array([row[field] for row in many]) for field in many[0]}
    found = peak_bytes(model, recipe, sequence, **columns).tolist()
    expected = [td.estimate_memory(model, Layout(**row), recipe, sequence).peak for row in many]
    assert found == expected


def test_a_state_of_one_moment_counts_at_that_moment():
    """The stage of the head is fullest before its first backward pass."""
    base, model = load_recipe("mixed-adam-16"), replace(PLAIN, vocab=10_000)
    recipe = replace(base, states=(*base.states, State("late", 2, 4, "backward")))
    fields = {"pp": 2, "microbatches": 4, "schedule": "gpipe"}
    memory = td.estimate_memory(model, Layout(**fields), recipe, 64)
    assert memory.ledger.binding[:2] == (1, "loss")
    assert peak_bytes(model, recipe, 64, **fields) == memory.peak


def test_what_64_bits_do_not_hold_is_refused():
    with pytest.raises(ConfigError, match="too large to count"):
        peak_bytes(DENSE, sequence=64, microbatch=2**31, microbatches=2**31, schedule="gpipe")
    with pytest.raises(ConfigError, match="schedule must be one of"):
        peak_bytes(DENSE, sequence=64, schedule="zb-v")


@pytest.mark.parametrize("largest", [3, 10**5, 2**40], ids=["listed", "sorted", "beyond 64 bits"])
def test_each_row_has_the_combination_that_it_is_said_to_have(largest: int) -> None:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, largest, (20, 4))
    drawn[:, 1:] = largest - 1  # what they differ in would be the first to leave 64 bits
    columns = list(drawn[rng.integers(0, 20, 500)].T)
    columns += [np.array(["none", "full", "half"])[rng.integers(0, 3, 500)], columns[0] > 1]
    rows, which = combinations(columns)
    assert len(rows) == len({*zip(*(column.tolist() for column in columns), strict=True)})
    for column in columns:
        assert (column[rows][which] == column).all()
