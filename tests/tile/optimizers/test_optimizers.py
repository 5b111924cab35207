"""SGD, Adam and AdamW: against the formulas in loops, and laws that need no reference."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.tile.optimizers import SGD, Adam, AdamW, rule_for

RULES = (
    SGD(0.1),
    SGD(0.1, weight_decay=0.3),
    SGD(0.1, momentum=0.9),
    SGD(0.1, momentum=0.8, dampening=0.25, weight_decay=0.1),
    SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    Adam(0.1),
    Adam(0.05, 0.8, 0.95, 1e-3, weight_decay=0.2),
    AdamW(0.1),
    AdamW(0.05, 0.5, 0.7, 1e-6, weight_decay=0.5),
)


def loop_sgd(rule, w, gradients):
    """torch.optim.SGD's algorithm for one number, line by line."""
    b = None
    for g in gradients:
        if rule.weight_decay != 0:
            g = g + rule.weight_decay * w
        if rule.momentum != 0:
            b = g if b is None else rule.momentum * b + (1 - rule.dampening) * g
            g = g + rule.momentum * b if rule.nesterov else b
        w = w - rule.rate * g
    return w


def loop_adam(rule, w, gradients):
    """torch.optim.Adam's and AdamW's algorithm for one number, line by line."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        if isinstance(rule, AdamW):
            w = w - rule.rate * rule.weight_decay * w
        elif rule.weight_decay != 0:
            g = g + rule.weight_decay * w
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
def test_steps_are_those_of_the_formulas(rule):
    rng = np.random.default_rng(0)
    w, gradients = rng.standard_normal(7), rng.standard_normal((12, 7))
    loop = loop_sgd if isinstance(rule, SGD) else loop_adam
    expected = [loop(rule, w[i], gradients[:, i]) for i in range(7)]
    np.testing.assert_allclose(run(rule, w, gradients), expected, rtol=1e-13)


@pytest.mark.parametrize("rule", RULES, ids=str)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(0, 30))
def test_the_step_of_a_shard_is_the_shard_of_the_step(rule, seed, a, b):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((30,)).astype(np.float32)
    gradients = rng.standard_normal((4, 30)).astype(np.float32)
    part = slice(min(a, b), max(a, b))
    np.testing.assert_array_equal(
        run(rule, w[part], gradients[:, part]), run(rule, w, gradients)[part]
    )


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_step_changes_nothing_and_keeps_the_type(rule, xp):
    w, g = xp.ones(3, xp.float32), xp.full(3, 0.5, xp.float32)
    states = {name: xp.full(3, 0.25, xp.float32) for name in rule.keeps}
    for t in (1, 2):
        new, kept = rule.step(w, g, states, t)
        assert new.dtype == np.float32
        assert {each.dtype.name for each in kept.values()} <= {"float32"}
        assert not any(each is g for each in kept.values())  # who reuses g would change it
    assert float(w.sum()) == 3
    assert float(g.sum()) == 1.5
    assert all(float(each.sum()) == 0.75 for each in states.values())


def test_the_rule_of_a_recipe():
    assert rule_for("mixed-adam-16") == Adam()
    assert rule_for("fp32-momentum", 0.1) == SGD(0.1, momentum=0.9)
    assert rule_for("fp32-sgd") == SGD()
