"""SGD, Adam and AdamW against their formulas in loops; loss scales; steps in mixed precision.

Holds `tiledask.tile.optimizers`.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ConfigError, DivergedError
from tiledask.tile.backend import as_dtype, to_numpy
from tiledask.tile.optimizers import (
    MASTER,
    SGD,
    Adam,
    AdamW,
    LossScale,
    advance,
    begin,
    fused_step,
    update,
)

# -- rules -----------------------------------------------------------------------------------------

RULES = (
    SGD(0.1),
    SGD(0.1, momentum=0.9),
    SGD(0.3, momentum=0.8),
    Adam(0.1),
    Adam(0.05, 0.8, 0.95, 1e-3),
    AdamW(0.1),
    AdamW(0.05, 0.5, 0.7, 1e-6, weight_decay=0.5),
)


def loop_sgd(rule, w, gradients):
    """torch.optim.SGD's algorithm for one number, line by line."""
    b = None
    for g in gradients:
        if rule.momentum != 0:
            g = b = g if b is None else rule.momentum * b + g
        w = w - rule.rate * g
    return w


def loop_adam(rule, w, gradients):
    """torch.optim.Adam's and AdamW's algorithm for one number, line by line."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        if isinstance(rule, AdamW):
            w = w - rule.rate * rule.weight_decay * w
        m = rule.beta1 * m + (1 - rule.beta1) * g
        v = rule.beta2 * v + (1 - rule.beta2) * g**2
        m_hat = m / (1 - rule.beta1**t)
        v_hat = v / (1 - rule.beta2**t)
        w = w - rule.rate * m_hat / (math.sqrt(v_hat) + rule.tiny)
    return w


def run(rule, w, gradients):
    states = {name: np.zeros_like(w) for name in rule.keeps}
    for t, g in enumerate(gradients, start=1):
        w, states = rule.step(w, g, states, t)
        assert set(states) == set(rule.keeps)
    return w


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_steps_are_those_of_the_formulas_and_a_shard_s_the_shard_of_the_step(rule):
    rng = np.random.default_rng(0)
    w, gradients = rng.standard_normal(30), rng.standard_normal((12, 30))
    loop = loop_sgd if isinstance(rule, SGD) else loop_adam
    expected = [loop(rule, w[i], gradients[:, i]) for i in range(7)]
    np.testing.assert_allclose(run(rule, w[:7], gradients[:, :7]), expected, rtol=1e-13)
    w, gradients = w.astype("f4"), gradients.astype("f4")
    whole = run(rule, w, gradients)
    for start, stop in ((0, 0), (0, 17), (5, 6), (11, 30)):
        shard = run(rule, w[start:stop], gradients[:, start:stop])
        np.testing.assert_array_equal(shard, whole[start:stop])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_step_changes_nothing_and_keeps_the_type(rule, xp):
    w, g = xp.ones(3, xp.float32), xp.full(3, 0.5, xp.float32)
    states = {name: xp.full(3, 0.25, xp.float32) for name in rule.keeps}
    for t in (1, 2):
        new, kept = rule.step(w, g, states, t)
        assert {each.dtype.name for each in (new, *kept.values())} == {"float32"}
        assert not any(each is g for each in kept.values())  # who reuses g would change it
    sums = [float(each.sum()) for each in (w, g, *states.values())]
    assert sums == [3, 1.5, 0.75, 0.75][: len(sums)]


@pytest.mark.parametrize("rule", [Adam(0.1), RULES[-1]], ids=str)
@pytest.mark.parametrize("g_type", ["bfloat16", "float32"])
def test_a_fused_step_is_the_step(rule, g_type, xp):
    """Each of 12 operations is rounded once, here and there; one more may be left out."""
    rng, names = np.random.default_rng(1), ("momentum", "variance", MASTER)
    kept = [xp.asarray(abs(rng.standard_normal(999)).astype("f4")) for _ in names]
    states = dict(zip(names, kept, strict=True))
    states["weights"] = states[MASTER].astype(as_dtype("bfloat16"))
    g = xp.asarray(rng.standard_normal(999).astype("f4")).astype(as_dtype(g_type))
    expected = update(rule, states, g, 3, 0.5, 8.0)
    assert fused_step(rule, states, g, 3, 0.5, 8.0) == (xp is not np)
    if xp is np:
        return
    for name in names:
        got, want = to_numpy(states[name]), to_numpy(expected[name])
        np.testing.assert_allclose(got, want, rtol=0, atol=24 * 2.0**-24 * abs(want).max())
    rounded = states[MASTER].astype(as_dtype("bfloat16"))
    np.testing.assert_array_equal(to_numpy(states["weights"]), to_numpy(rounded))


# -- loss scales -----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.booleans(), max_size=60),
    interval=st.integers(1, 5),
    ends=st.sampled_from([(1.0, 2.0**127), (64.0, 4096.0), (1024.0, 1024.0)]),
)
def test_the_scale_grows_and_backs_off(steps, interval, ends):
    """By torch.amp.GradScaler's rule, a variable at a time, between a floor and a ceiling."""
    found, scale, tracker = LossScale(1024.0, 2.0, 0.5, interval, *ends, patience=99), 1024.0, 0
    for finite in steps:
        found = found.after(finite)
        tracker = (tracker + 1) * finite
        if tracker == interval:
            scale, tracker = min(scale * 2.0, ends[1]), 0
        elif not finite:
            scale = max(scale * 0.5, ends[0])
        assert found.scale == scale
    assert found.skipped == steps.count(False)


@pytest.mark.parametrize("scale", [LossScale(2.0, patience=3), LossScale.static(1.0, patience=2)])
def test_at_the_floor_patience_ends(scale):
    for _ in range(3 if scale.scale == 2 else 1):
        scale = scale.after(False)
    assert scale.after(True).stuck == 0
    with pytest.raises(DivergedError, match=f"{scale.patience} steps in a row .* floor, 1, "):
        scale.after(False)


# -- steps -----------------------------------------------------------------------------------------


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"wq": (4, 6), "bq": (6,), "table": (11, 4)}
    return {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_half_a_step_of_the_last_digit_is_lost_without_a_master(dtype, bits):
    """1 + 2^-bits lies half-way between 1 and its neighbour, and ties go to the even one: 1."""
    rule, gradient = SGD(rate=1.0), np.array([-(2.0**-bits)]).astype(as_dtype(dtype))
    for master, end in ((False, 1.0), (True, 1 + 64 * 2.0**-bits)):
        state = begin({"w": np.ones(1, np.float32)}, rule, dtype, master=master)
        for _ in range(64):
            state, *_ = advance(state, rule, {"w": gradient})
        assert float(state.weights["w"][0]) == end


@pytest.mark.parametrize("scale", [None, 2.0**7, 2.0**16])
def test_masters_step_like_fp32_whatever_power_of_two_scales_the_loss(scale):
    """To the bit; and the forward's weights are the masters, rounded."""
    rule, weights = AdamW(0.01), drawn()
    half, single = begin(weights, rule, "bfloat16"), begin(weights, rule)
    np.testing.assert_array_equal(half.classes["master weights"]["wq"], weights["wq"])
    of_loss = scale and LossScale(scale)
    for seed in range(5):
        grads = {name: g.astype(as_dtype("bfloat16")) for name, g in drawn(seed + 1).items()}
        scaled = {name: (g * (scale or 1)).astype(g.dtype) for name, g in grads.items()}
        half, of_loss, norm = advance(half, rule, scaled, of_loss, limit=1.0)
        wide = {name: g.astype(np.float32) for name, g in grads.items()}
        single, _, same = advance(single, rule, wide, limit=1.0)
        assert norm == same > 1
    for name, master in half.classes["master weights"].items():
        np.testing.assert_array_equal(master, single.weights[name])
        np.testing.assert_array_equal(half.weights[name], master.astype(as_dtype("bfloat16")))


def test_an_overflow_skips_the_step_and_lowers_the_scale():
    rule, scale = Adam(), LossScale(8.0)
    state = start = begin({"w": np.ones(2, np.float32)}, rule, "float16")
    for bad, lower in ((np.inf, 4.0), (np.nan, 2.0)):
        state, scale, norm = advance(state, rule, {"w": np.array([bad, 1], np.float16)}, scale)
        assert state is start
        assert (scale.scale, norm) == (lower, pytest.approx(bad, nan_ok=True))
    state, scale, norm = advance(state, rule, {"w": np.array([2, 0], np.float16)}, scale)
    assert (state.t, norm, scale.skipped) == (1, 1.0, 2)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_norm_is_of_all_gradients_and_squares_of_halves_do_not_overflow(dtype):
    rule, grads = SGD(rate=1.0), {"w": np.full((9, 10), 3000, dtype), "b": np.full(10, 3000, dtype)}
    start = begin({name: np.zeros(g.shape, np.float32) for name, g in grads.items()}, rule)
    state, _, norm = advance(start, rule, grads, limit=0.5)
    assert norm == 30000
    for name, g in grads.items():
        np.testing.assert_allclose(state.weights[name], -0.5 / norm * g.astype("f4"), rtol=1e-6)


def test_a_step_changes_no_array_of_the_state(xp):
    rule, weights = Adam(), {name: xp.asarray(w) for name, w in drawn().items()}
    state = begin(weights, rule, "float16")
    arrays = [(x, weights[name]) for held in state.classes.values() for name, x in held.items()]
    before = [x.copy() for x, _ in arrays]
    advance(state, rule, {name: w.astype("float16") for name, w in weights.items()})
    assert not any(x is drew for x, drew in arrays)
    assert all(bool((x == was).all()) for (x, _), was in zip(arrays, before, strict=True))


ONES = np.ones(1)
REFUSED = [
    (lambda: SGD(-1.0), "rate is 0 or more, got -1"),
    (lambda: Adam(beta2=1.0), "beta2 is from 0 up to, not including, 1, got 1"),
    (lambda: LossScale(0.5), "got LossScale.scale=0.5"),
    (lambda: LossScale(backoff=1.0), "got LossScale.*backoff=1"),
    (lambda: stepped("w"), "2 weights and no other, got 1; 'b' is"),
    (lambda: stepped("wbc"), "2 weights and no other, got 3; 'c' is"),
    (lambda: stepped("wb", limit=0.0), "to a norm above 0, got 0"),
]


def stepped(names, **options):
    state = begin(dict.fromkeys("wb", ONES), SGD())
    return advance(state, SGD(), dict.fromkeys(names, ONES), **options)


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused_with_the_rule(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
