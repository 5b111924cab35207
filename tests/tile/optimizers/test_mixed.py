"""Mixed precision: bytes are the planner's, masters keep small updates, steps are those of fp32.

Holds `tiledask.tile.optimizers`.
"""

import numpy as np
import pytest

from tiledask.errors import ConfigError
from tiledask.plan.inputs.recipes import load_recipe, state_bytes
from tiledask.tile.backend import as_dtype
from tiledask.tile.optimizers import SGD, Adam, AdamW, LossScale, advance, begin, rule_for

FULL = ["fp32-adam", "fp32-momentum", "fp32-sgd"]
HALF = ["mixed-adam-16", "mixed-adam-18", "mixed-momentum", "bf16-adam", "fp16-sgd"]


def drawn(seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = {"wq": (4, 6), "bq": (6,), "table": (11, 4)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("recipe", FULL + HALF)
def test_bytes_are_those_of_the_planners_recipe(recipe):
    rule, weights = rule_for(recipe), drawn()
    state = begin(weights, rule, recipe=recipe)
    count = sum(w.size for w in weights.values())
    counted = dict(state.nbytes)
    counted["gradients"] = count * load_recipe(recipe).gradient_bytes
    assert counted == state_bytes(count, recipe)
    after, *_ = advance(state, rule, {n: w.astype(np.float16) for n, w in weights.items()})
    assert after.nbytes == state.nbytes


@pytest.mark.parametrize("recipe", ["mixed-adam-20", "fp32-momentum", "mixed-adam-8bit"])
def test_a_recipe_that_keeps_something_else_is_refused(recipe):
    with pytest.raises(ConfigError, match=f"recipe {recipe!r} keeps"):
        begin(drawn(), Adam(), recipe=recipe)


# -- masters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_half_a_step_of_the_last_digit_is_lost_without_a_master(dtype, bits):
    """1 + 2^-bits lies half-way between 1 and its neighbour, and ties go to the even one: 1."""
    rule, update = SGD(rate=1.0), np.array([-(2.0**-bits)]).astype(as_dtype(dtype))
    ends = {}
    for master in (False, True):
        state = begin({"w": np.ones(1, np.float32)}, rule, dtype, master=master)
        for _ in range(64):
            state, *_ = advance(state, rule, {"w": update})
        ends[master] = float(state.weights["w"][0])
    assert ends == {False: 1.0, True: 1 + 64 * 2.0**-bits}


def test_the_master_is_the_weight_as_it_came_and_steps_like_fp32():
    rule, weights = AdamW(0.01), drawn()
    half, single = begin(weights, rule, "float16"), begin(weights, rule)
    np.testing.assert_array_equal(half.master["wq"], weights["wq"])
    for seed in range(5):
        grads = {name: g.astype(np.float16) for name, g in drawn(seed + 1).items()}
        half, _, norm = advance(half, rule, grads, limit=1.0)
        wide = {name: g.astype(np.float32) for name, g in grads.items()}
        single, _, same = advance(single, rule, wide, limit=1.0)
        assert norm == same
    for name in weights:
        np.testing.assert_array_equal(half.master[name], single.weights[name])
        np.testing.assert_array_equal(half.weights[name], half.master[name].astype(np.float16))
        assert half.weights[name].dtype == np.float16


@pytest.mark.parametrize("scale", [1.0, 2.0**7, 2.0**16])
def test_a_power_of_two_as_scale_changes_no_bit(scale):
    rule, weights = Adam(0.01), drawn()
    plain, scaled = begin(weights, rule, "bfloat16"), begin(weights, rule, "bfloat16")
    growing = LossScale(scale)
    for seed in range(3):
        grads = {n: g.astype(as_dtype("bfloat16")) for n, g in drawn(seed + 1).items()}
        times = {n: (g * scale).astype(g.dtype) for n, g in grads.items()}
        plain, *_ = advance(plain, rule, grads)
        scaled, growing, _ = advance(scaled, rule, times, growing)
    np.testing.assert_array_equal(plain.master["wq"], scaled.master["wq"])


def test_an_overflow_skips_the_step_and_lowers_the_scale():
    rule = Adam()
    state = begin({"w": np.ones(2, np.float32)}, rule, "float16")
    new, scale, norm = advance(
        state, rule, {"w": np.array([np.inf, 1], np.float16)}, LossScale(8.0)
    )
    assert new is state
    assert (scale.scale, scale.skipped, norm) == (4.0, 1, np.inf)
    new, scale, norm = advance(new, rule, {"w": np.array([np.nan, 1], np.float16)}, scale)
    assert new is state
    assert scale.scale == 2.0
    assert np.isnan(norm)
    new, scale, norm = advance(new, rule, {"w": np.array([2, 0], np.float16)}, scale)
    assert (new.t, norm) == (1, 1.0)


# -- the state -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_norm_is_of_all_gradients_and_squares_of_halves_do_not_overflow(dtype):
    rule, grads = SGD(rate=1.0), {"w": np.full((9, 10), 3000, dtype), "b": np.full(10, 3000, dtype)}
    start = begin({name: np.zeros(g.shape, np.float32) for name, g in grads.items()}, rule)
    state, _, norm = advance(start, rule, grads, limit=0.5)
    assert norm == 30000
    for name, g in grads.items():
        np.testing.assert_allclose(state.weights[name], -0.5 / norm * g.astype("f4"), rtol=1e-6)


def arrays_of(state):
    """Every array, by class and name."""
    classes = {"weights": state.weights, "master": state.master, **state.moments}
    return {(kind, name): x for kind, held in classes.items() for name, x in held.items()}


def test_a_step_changes_no_array_of_the_state(xp):
    rule = Adam()
    weights = {name: xp.asarray(w) for name, w in drawn().items()}
    state = begin(weights, rule, "float16")
    before = {key: value.copy() for key, value in arrays_of(state).items()}
    advance(state, rule, {name: w.astype("float16") for name, w in weights.items()})
    assert all(bool((value == before[key]).all()) for key, value in arrays_of(state).items())
    assert not any(value is weights[key[1]] for key, value in arrays_of(state).items())


def test_a_gradient_for_each_weight():
    rule = SGD()
    state = begin({"w": np.ones(1), "b": np.ones(1)}, rule)
    with pytest.raises(ConfigError, match="each of 2 weights and no other, got 1; 'b' is on one"):
        advance(state, rule, {"w": np.ones(1)})
    with pytest.raises(ConfigError, match="each of 2 weights and no other, got 3; 'c' is on one"):
        advance(state, rule, dict.fromkeys("wbc", np.ones(1)))
