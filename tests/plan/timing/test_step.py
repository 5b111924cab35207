"""The time of one step: it adds up, follows its laws, and refuses what cannot be.

Holds `tiledask.plan.timing.interleaved` and `tiledask.plan.timing.step_estimate`.
"""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import ConfigError, PartitionError
from tiledask.plan.inputs.layout import Layout, Numbers
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.pipelines.schedules import layout_schedule
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.timing.collective_time import all_reduce
from tiledask.plan.timing.step import estimate_step, pipeline_seconds
from tiledask.plan.timing.step_time import step_parts

GPT = Model(hidden=4096, layers=32, heads=32, ffn=16384, vocab=51200, dropout=True)
DGX = td.load_cluster("64xA100-80GB")
MIXED = load_recipe("mixed-adam-16")


def step(model=GPT, cluster=DGX, recipe="mixed-adam-16", sequence=2048, **layout):
    return estimate_step(model, Layout(**layout), cluster, recipe, sequence)


@settings(max_examples=25, deadline=None)
@given(
    p=st.integers(2, 6),
    turns=st.integers(1, 4),
    v=st.integers(1, 3),
    forward=st.floats(0.1, 3),
    backward=st.floats(0.1, 5),
)
def test_equal_stages_the_simulator_equals_the_closed_form(p, turns, v, forward, backward):
    """m + (p-1)/v micro-batches (Narayanan et al. 2021, section 2.2)."""
    layout = Layout(pp=p, microbatches=p * turns, interleave=v)
    run = pipeline_seconds(layout, [forward / v] * (p * v), [backward / v] * (p * v))
    assert run == pytest.approx((p * turns + (p - 1) / v) * (forward + backward), rel=1e-9)


@pytest.mark.parametrize(
    ("layers", "pp", "form", "near"),
    [
        *(
            (layers, pp, {"schedule": schedule}, {"total": 0.01})
            for schedule in ("naive", "gpipe", "1f1b")
            for layers, pp in ((32, 4), (30, 4), (32, 8))
        ),
        *(
            (layers, 4, {"interleave": v}, {"total": 0.02, "bubble": 0.2})
            for layers, v in ((32, 2), (32, 4), (36, 3))
        ),
    ],
)
def test_the_closed_form_stays_near_the_simulator(layers, pp, form, near):
    model, layout = replace(GPT, layers=layers), {"pp": pp, "tp": 2, "microbatches": 16, **form}
    s, closed = step(model, **layout), step_parts(model, DGX, Numbers(**layout))
    for part, tolerance in near.items():
        assert getattr(s, part) == pytest.approx(float(getattr(closed, part)), rel=tolerance)
    for part in ("compute", "recompute", "tp", "pp", "optimizer", "dp"):
        assert getattr(s, part) == pytest.approx(float(getattr(closed, part)), rel=1e-9, abs=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("p", [2, 4, 7, 16])
@pytest.mark.parametrize("partition", [None, "items"])
def test_chunks_that_are_not_equal_the_formula_stays_near_the_simulator(p, partition):
    """Of as many layers as chunks, nearly twice as many, and more. Which plans are the fastest is
    told by the simulator, of the first 14 by formula."""
    model, off = td.load_model("llama-2-70b"), []
    cluster = td.load_cluster(f"{8 * p}xH100")
    for v, turns in product((2, 3, 4), (1, 2, 8)):
        for layers in (p * v, 2 * p * v - 1, 2 * p * v + p // 2, 3 * p * v - 2):
            form = {"pp": p, "tp": 8, "microbatches": turns * p, "interleave": v}
            layout = Layout(**form, flash_attention=True, partition=partition)
            few = replace(model, layers=layers)
            s = estimate_step(few, layout, cluster, "mixed-adam-16", 4096)
            closed = step_parts(few, cluster, Numbers.of(layout), sequence=4096)
            off.append(abs(float(closed.total) / s.total - 1))
    assert max(off) < 0.15
    assert sum(off) / len(off) < 0.05


def test_a_partition_that_unburdens_the_last_stage_is_faster():
    """The head of a large vocabulary costs the last stage some layers."""
    model = replace(GPT, vocab=256_000)
    even = step(model, pp=4, microbatches=32)
    uneven = step(model, pp=4, microbatches=32, partition=(0, 9, 18, 27, 32))
    assert uneven.total < 0.97 * even.total
    as_even = step(model, pp=4, microbatches=32, partition=(0, 8, 16, 24, 32))
    assert as_even.total == pytest.approx(even.total, rel=1e-9)


@pytest.mark.parametrize(
    "schedule", ["eager-1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "chimera", "dualpipe"]
)
def test_every_schedule_does_the_same_work(schedule):
    """Busy time is the work; the schedule decides the bubble, and zero bubbles are small."""
    s = step(pp=4, microbatches=16, schedule=schedule)
    plain = step(pp=4, microbatches=16)
    work, usual = s.total - s.bubble - s.pp - s.dp - s.optimizer, plain.compute
    assert work == pytest.approx(usual, rel=0.12)  # V and both ways: the head shares a stage
    if schedule in ("zb-h2", "zb-v"):
        assert s.bubble < plain.bubble / 2
    assert s.total > 0.8 * plain.total


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rounds_that_repeat_themselves_are_the_whole_simulation(data):
    p, v = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 3))
    m = p * data.draw(st.integers(1, 14)) + (data.draw(st.integers(0, p - 1)) if v == 1 else 0)
    name = data.draw(st.sampled_from(["1f1b", "naive", "gpipe"])) if v == 1 else "1f1b"
    seconds = st.one_of(st.sampled_from([0.0, 1.0, 1.001, 2.0]), st.floats(0.1, 3))
    forward, backward = (
        data.draw(st.lists(seconds, min_size=p * v, max_size=p * v)) for _ in range(2)
    )
    layout = Layout(pp=p, interleave=v, microbatches=m, schedule=name)
    whole = td.simulate(layout_schedule(name, p * v, m, p), forward, backward).makespan
    assert pipeline_seconds(layout, forward, backward) == pytest.approx(whole, rel=1e-9)


def test_sums_over_tp_by_hand():
    """Per layer 2 sums of b s h numbers forward, and backward what is not hidden; one more
    forward for the embedding, one more backward for the head."""
    whole = 32 * 2 * all_reduce(2048 * 4096 * 2, 8, 1, DGX)
    apart = 1 + calibration_of(DGX.device, MIXED).exposed["sum_backward"] + 1 / 32
    gathered = step(tp=8, sequence_parallel=True)
    assert step(tp=8).tp == pytest.approx(whole * apart)
    assert step(tp=8, recompute="full").tp == pytest.approx(whole * (apart + 1))
    assert gathered.tp == pytest.approx(whole * (1.5 + 1 / 32))
    assert gathered.compute < step(tp=8).compute


FOLDED = {"dp": 8, "tp": 4, "zero": 1, "sequence_parallel": True, "flash_attention": True}


def test_folded_experts_trade_slices_for_exchanges_and_compute_the_same():
    """What a device computes, holds and updates stays; tokens gathered over the slices become
    tokens sent to other devices."""
    model, cluster = replace(td.load_model("mixtral-8x7b"), experts=32), td.load_cluster("32xH100")
    sliced, folded = (
        step(model, cluster, "mixed-adam-18", 4096, **FOLDED, ep=ep, expert_tp=slices)
        for ep, slices in ((8, 0), (32, 1))
    )
    flop = replace(sliced.calibration, tiles=False, product_depth=0.0, casts=0.0)
    same = [
        estimate_step(model, s.layout, cluster, "mixed-adam-18", 4096, calibration=flop)
        for s in (sliced, folded)
    ]
    assert same[1].compute == pytest.approx(same[0].compute, rel=1e-9)
    assert folded.optimizer == pytest.approx(sliced.optimizer, rel=1e-9)
    assert folded.tp < sliced.tp
    assert folded.ep > sliced.ep > 0
    assert step(model, cluster, **FOLDED, ep=8, expert_tp=4).total == pytest.approx(
        step(model, cluster, **FOLDED, ep=8).total, rel=1e-12
    )
    with pytest.raises(ConfigError, match="expert_tp=1 is for experts and model has none"):
        step(**FOLDED, expert_tp=1)


def test_an_exchange_hides_behind_the_work_of_another_micro_batch_and_no_more():
    """DualPipe and Megatron's overlap: what is left is what that work is shorter by."""
    model, cluster = td.load_model("deepseek-v3"), td.load_cluster("128xH100")
    run = {"dp": 8, "pp": 16, "ep": 8, "microbatches": 64, "flash_attention": True}
    plain, dual = (
        step(model, cluster, "mixed-adam-18", 4096, **run, schedule=name)
        for name in ("1f1b", "dualpipe")
    )
    assert dual.ep == pytest.approx(20 / 132 * plain.ep, rel=0.05)  # multiprocessors that send
    (row,) = (row for row in dual.rows if row.part == "ep")
    assert row.formula.endswith("less what another micro-batch's work hides")
    slow = replace(cluster, within_node=replace(cluster.within_node, bytes_per_second=1e10))
    layout = Layout(**run)
    known = calibration_of(slow.device, MIXED, framework="megatron-2025-ep-overlap", mixture=True)
    bare = replace(known, exposed=known.exposed | {"ep": 1.0})
    both, hidden = (
        estimate_step(model, layout, slow, "mixed-adam-18", 4096, calibration=each)
        for each in (bare, known)
    )
    assert 0 < hidden.ep < both.ep
    mixtures = 4 * layout.microbatches  # of a stage
    left = (both.ep - hidden.ep) / mixtures
    assert left == pytest.approx(both.compute / mixtures, rel=0.1)  # dense layers take as long


def test_zero_moves_weights_and_saves_updating():
    plain, one, three = (step(dp=64, zero=z) for z in (0, 1, 3))
    assert one.optimizer < plain.optimizer
    assert one.dp == pytest.approx(plain.dp, rel=1e-9)  # gradients and weights both of 2 bytes
    # 3 P for 2 P: ZeRO, section 7.2.2; what is left is a message round the nodes for each call
    assert three.dp == pytest.approx(1.5 * one.dp, rel=0.1)
    four = step(dp=64, recipe="mixed-adam-18")  # bytes of a gradient: they hide in the product
    assert four.dp == pytest.approx(2 * plain.dp, rel=0.1)
    assert four.compute < plain.compute


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step(dp=128), "needs 128 devices .* the cluster has 64; .*'128xA100-80GB'"),
        (lambda: step(tp=5), "tp=5 does not divide the 32 attention heads"),
        (lambda: step(sequence=2.5), "got 2.5"),
        (lambda: step(recipe="fp16-weights"), "keeps no gradients: it serves"),
        (lambda: step(pp=64), "need as many layers"),
        (lambda: step().budget(-1), "tokens must be a number of 0 or more, got -1"),
    ],
)
def test_what_cannot_be_estimated(call, message):
    with pytest.raises((ConfigError, PartitionError), match=message):
        call()
