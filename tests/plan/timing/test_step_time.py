"""Products, collectives and the step's formulas on arrays, against loops and limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask import Layout, Model, load_recipe
from tiledask.plan.inputs.layout import Numbers, stage_layers
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.timing.collective_time import all_gather, all_reduce, members
from tiledask.plan.timing.layer_time import LayerTime, products, shape_of
from tiledask.plan.timing.roofline import TILES, Rates, gemm_seconds
from tiledask.plan.timing.step_time import PARTS, held_weights, step_parts

A100 = Rates(flops=250e12, memory=1.5e12, depth=200, multiprocessors=108)
DGX = td.load_cluster("64xA100-80GB")
LLAMA = td.load_model("llama-2-70b")


def step_time(model, sequence, **layout):
    recipe = load_recipe("mixed-adam-16")
    known = calibration_of(DGX.device, recipe)
    return LayerTime(model, DGX, Numbers(**layout), recipe, sequence, known)


EXTENT = st.integers(1, 2000)


@given(m=EXTENT, k=st.integers(1, 20_000), n=EXTENT, batch=st.integers(1, 4))
def test_a_product_is_its_waves_of_tiles_counted_one_by_one_or_its_bytes(m, k, n, batch):
    best = np.inf
    for rows, columns, share in TILES:
        tiles = len(range(0, m, rows)) * len(range(0, n, columns)) * batch
        best = min(best, len(range(0, tiles, 108)) * 2 * rows * columns * k * 108 / share)
    expected = best / A100.flops * (1 + 200 / k)
    moved = 2 * batch * (m * k + k * n + m * n) / A100.memory
    seconds = gemm_seconds(m, k, n, A100, batch=batch)
    assert seconds == pytest.approx(max(expected, moved))
    assert seconds >= 2 * m * k * n * batch / A100.flops * (1 - 1e-12)


@pytest.mark.parametrize("name", ["gpt2", "llama-2-70b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_products_and_steps_hold_every_weight(name, tp):
    model = td.load_model(name)
    for weights in (kind.weights for kind in model.layer_kinds):
        matrices = tuple(w for w in weights if w.inputs)
        held = sum(np.prod(shape_of(p, tp)) * p[0].copies for p in products(weights))
        assert held == sum(w.count(tp) for w in matrices)
    time = step_time(model, 2048, tp=tp)
    held = float(held_weights(time, model.layers).sum())
    layers = sum(kind.many * w.count(tp) for kind in model.layer_kinds for w in kind.weights)
    known = layers + sum(w.count(tp) for w in (*model.embedding, *model.head))
    assert held == pytest.approx(known, rel=1e-4)  # the final norm is left out


def test_passes_of_a_gpt_by_hand():
    """Bytes a token in half precision, h wide: two norms 2 x (4, 6), two sums with dropout
    2 x (6 + 1, 6 + 5), two biases after sums (0, 4); GELU on 4h (16, 24) and its bias (0, 8),
    context turned (4, 4), gradients of q, k, v joined (0, 12) and their biases (0, 6)."""
    gpt = Model(hidden=512, layers=1, heads=8, ffn=2048, vocab=100, dropout=True)

    def passes(**layout):
        time = step_time(gpt, 10, **layout)
        vars(time)["rates"] = Rates(flops=1e12, memory=1.0)
        return time.passes(gpt.layer_kinds[0])

    found = passes()
    assert found[0] == 10 * 512 * (8 + 14 + 16 + 4)
    assert found[1] == 10 * 512 * (12 + 22 + 4 + 24 + 8 + 4 + 12 + 6)
    assert passes(tp=2, sequence_parallel=True).sum() == found.sum() / 2


def test_all_reduce_by_hand():
    """Within a node of 8 at NVLink's speed; across nodes each member by its own adapter."""
    near = [int(members(n, apart, DGX)) for n, apart in ((8, 1), (4, 2), (8, 4), (2, 64))]
    assert near == [8, 4, 2, 1]
    within, between = DGX.within_node, DGX.between_nodes
    for apart, link, rate in ((1, within, 300e9), (8, between, 25e9)):
        by_hand = 2 * (7 / 8 * 1e9 / (rate * link.share) + 3 * link.latency)
        assert all_reduce(1e9, 8, apart, DGX) == pytest.approx(by_hand)
    moved = 15 / 16 * 1e9 / (2 * 25e9 * between.share)  # 2 members a node, 8 nodes: a ring
    for calls in (1, 10):
        two = all_gather(1e9, 16, 4, DGX, calls=calls)
        assert two == pytest.approx(moved + calls * (within.latency + 7 * between.latency))


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 20), st.booleans())
def test_layers_of_the_first_the_next_and_the_last_stage(pp, v, more, items):
    v = v if pp > 1 and not items else 1
    layout = Layout(pp=pp, interleave=v, microbatches=pp, partition="items" if items else None)
    layers = pp * v + more
    stages = [layout.stage_layers(stage, layers) for stage in (0, min(1, pp - 1), pp - 1)]
    assert [int(n) for n in stage_layers(Numbers.of(layout), layers)] == stages


def some(rng, count):
    """Numbers of ``count`` layouts."""
    pp = 2 ** rng.integers(0, 5, count)
    return {
        "dp": 2 ** rng.integers(0, 5, count),
        "tp": 2 ** rng.integers(0, 4, count),
        "pp": pp,
        "cp": 2 ** rng.integers(0, 2, count),
        "microbatch": 2 ** rng.integers(0, 3, count),
        "microbatches": pp * rng.integers(1, 9, count),
        "zero": rng.integers(0, 4, count),
        "interleave": np.where(pp > 1, rng.integers(1, 3, count), 1),
        "sequence_parallel": rng.random(count) < 0.5,
        "flash_attention": rng.random(count) < 0.5,
        "recompute": rng.choice(["none", "selective", "full"], count),
        "schedule": rng.choice(["1f1b", "naive"], count),
    }


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_arrays_say_what_one_layout_at_a_time_says(seed):
    numbers = some(np.random.default_rng(seed), 8)
    together = step_parts(LLAMA, DGX, Numbers(**numbers), sequence=4096)
    for i in range(8):
        one = Numbers(**{name: values[i].item() for name, values in numbers.items()})
        alone = step_parts(LLAMA, DGX, one, sequence=4096)
        for part in PARTS:
            many = np.broadcast_to(together[part], 8)[i]
            assert many == pytest.approx(float(alone[part]), rel=1e-12, abs=1e-15), part


@pytest.mark.parametrize(("h", "a", "L"), [(6144, 64, 48), (25600, 160, 128)])
def test_appendix_a_of_korthikanti(h, a, L):
    model = Model(hidden=h, layers=L, heads=a, ffn=4 * h, vocab=51200)
    B, s, V = 4, 2048, 51200
    needed = 72 * B * L * s * h**2 * (1 + s / (6 * h) + V / (12 * h * L))
    step = td.estimate_step(model, Layout(microbatch=B), "1xA100-80GB", sequence=s)
    assert step.flops == pytest.approx(needed)
    mixture = td.load_model("mixtral-8x7b")
    visited = mixture.active_parameters - mixture.vocab * mixture.hidden  # a table is looked up
    step = td.estimate_step(mixture, Layout(), "1xA100-80GB", sequence=1)
    assert step.flops == pytest.approx(6 * visited, rel=1e-3)
