"""The time of one step: it adds up, follows its laws, and refuses what cannot be."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask import Layout, Model, estimate_step, load_recipe
from tiledask.errors import ConfigError, PartitionError
from tiledask.plan.inputs.layout import Numbers
from tiledask.plan.pipelines.schedules import layout_schedule
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.timing.collective_time import all_reduce
from tiledask.plan.timing.step import pipeline_seconds
from tiledask.plan.timing.step_time import step_parts

GPT = Model(hidden=4096, layers=32, heads=32, ffn=16384, vocab=51200, dropout=True)
DGX = td.load_cluster("64xA100-80GB")
MIXED = load_recipe("mixed-adam-16")


def step(model=GPT, recipe="mixed-adam-16", **layout):
    return estimate_step(model, Layout(**layout), DGX, recipe, 2048)


FORMS = [({"schedule": name}, 0.01) for name in ("naive", "gpipe", "1f1b")]
FORMS += [({"interleave": v}, 0.02) for v in (2, 4)]


@pytest.mark.parametrize(("form", "tolerance"), FORMS)
@pytest.mark.parametrize(("layers", "pp"), [(32, 4), (48, 4), (32, 8)])
def test_the_closed_form_stays_near_the_simulator(layers, pp, form, tolerance):
    model, layout = replace(GPT, layers=layers), {"pp": pp, "tp": 2, "microbatches": 16, **form}
    s, closed = step(model, **layout), step_parts(model, DGX, Numbers(**layout))
    assert s.total == pytest.approx(float(sum(closed.values())), rel=tolerance)
    for part in ("compute", "recompute", "tp", "pp", "optimizer", "dp"):
        assert getattr(s, part) == pytest.approx(float(closed[part]), rel=1e-9, abs=1e-12)


@settings(max_examples=60)
@given(st.data())
def test_rounds_that_repeat_themselves_are_the_whole_simulation(data):
    p, v = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 3))
    m = p * data.draw(st.integers(1, 14)) + (data.draw(st.integers(0, p - 1)) if v == 1 else 0)
    name = data.draw(st.sampled_from(["1f1b", "naive", "gpipe"])) if v == 1 else "1f1b"
    seconds = st.one_of(st.sampled_from([0.0, 1.0, 1.001, 2.0]), st.floats(0.1, 3))
    times = st.lists(seconds, min_size=p * v, max_size=p * v)
    forward, backward = data.draw(times), data.draw(times)
    layout = Layout(pp=p, interleave=v, microbatches=m, schedule=name)
    whole = td.simulate(layout_schedule(name, p * v, m, p), forward, backward).makespan
    assert pipeline_seconds(layout, forward, backward) == pytest.approx(whole, rel=1e-9)


def test_sums_over_tp_by_hand():
    """2 a layer forward, and backward what is not hidden; one for the embedding, the head."""
    whole = 32 * 2 * all_reduce(2048 * 4096 * 2, 8, 1, DGX)
    apart = 1 + calibration_of(DGX.device, MIXED).exposed["sum_backward"] + 1 / 32
    gathered = step(tp=8, sequence_parallel=True)
    assert step(tp=8).tp == pytest.approx(whole * apart)
    assert step(tp=8, recompute="full").tp == pytest.approx(whole * (apart + 1))
    assert gathered.tp == pytest.approx(whole * (1.5 + 1 / 32))
    assert gathered.compute < step(tp=8).compute


def test_two_devices_of_the_same_stages_sum_all_their_gradients():
    memory = td.estimate_memory(GPT, Layout(pp=4, schedule="dualpipe", microbatches=8), MIXED, 2048)
    gradients = max(memory.ledger.by_tensor(stage)["gradients"] for stage in range(4))
    expected = pytest.approx(float(all_reduce(gradients, 2, 1, DGX)), rel=1e-4)  # but the last norm
    assert step(pp=4, schedule="dualpipe", microbatches=8).dp == expected


def test_folded_experts_trade_slices_for_exchanges_and_compute_the_same():
    """Tokens gathered over the slices become tokens sent to other devices."""
    fields = {"dp": 8, "tp": 4, "zero": 1, "sequence_parallel": True, "flash_attention": True}
    model, cluster = replace(td.load_model("mixtral-8x7b"), experts=32), td.load_cluster("32xH100")
    known = calibration_of(cluster.device, MIXED, mixture=True)
    flop = replace(known, tiles=False, product_depth=0.0, casts=0.0)
    sliced, folded, same = (
        estimate_step(model, Layout(**fields, **experts), cluster, MIXED, 4096, calibration=flop)
        for experts in ({"ep": 8}, {"ep": 32, "expert_tp": 1}, {"ep": 8, "expert_tp": 4})
    )
    assert folded.compute == pytest.approx(sliced.compute, rel=1e-9)
    assert folded.optimizer == pytest.approx(sliced.optimizer, rel=1e-9)
    assert folded.tp < sliced.tp
    assert folded.ep > sliced.ep > 0
    assert same.total == pytest.approx(sliced.total, rel=1e-12)


def test_what_cannot_be_estimated():
    for fields, words in (
        ({"dp": 128}, "needs 128 devices .* the cluster has 64; .*'128xA100-80GB'"),
        ({"tp": 5}, "tp=5 does not divide the 32 attention heads"),
        ({"recipe": "fp16-weights"}, "keeps no gradients: it serves"),
        ({"pp": 64}, "need as many layers"),
    ):
        with pytest.raises((ConfigError, PartitionError), match=words):
            step(**fields)
