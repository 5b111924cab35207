"""The small network's gradients, and the drift verdict, which tells faults apart."""

import math

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.precision import acceptable, small, train

# -- the small network -----------------------------------------------------------------------------


def test_a_training_is_the_same_again_and_another_by_another_seed():
    alone = train("float64", 5).losses
    assert train("float64", 5).losses == alone
    assert train("float64", 5, seed=1).losses != alone


def test_the_small_networks_gradients_are_its_derivative():
    x = np.random.default_rng(0).standard_normal((6, 784))
    labels, net, eps = np.arange(6), small.Small(8, 12, 2), 1e-6
    weights = small.layers.initialise(net.parameters(), 0, dtype="float64")
    _, grads = small.gradients(weights, net, x, labels, 4.0)
    rng = np.random.default_rng(1)
    way = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
    ends = [
        small.gradients({n: w + s * eps * way[n] for n, w in weights.items()}, net, x, labels, 1)[0]
        for s in (1, -1)
    ]
    slope = sum((grads[name] * way[name]).sum() for name in weights)
    assert 4 * (ends[0] - ends[1]) / (2 * eps) == pytest.approx(slope, rel=1e-6)


# -- drift -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_fault_is_told_from_round_off(dtype):
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=2, sequence=8)
    options = {"steps": 3, "batch": 4, "dtype": dtype, "progress": False}
    alone = td.train(model, text, (1, 1, 1), **options).losses
    honest = td.train(model, text, (1, 2, 1), **options).losses
    split = model, text, (1, 2, 1)
    wrong = td.studies.train_with_fault("g sums twice", *split, **options).losses
    for losses, sound in ((honest, True), (wrong, False)):
        pairs = enumerate(zip(alone, losses, strict=True), 1)
        grades = {acceptable(*pair, n, dtype, layers=2).grade for n, pair in pairs}
        assert sound == (grades == {"round-off"})


def test_the_envelope_and_its_grades():
    u = 2.0**-24
    found = acceptable(1.0, 1.0, 9, "float32", 2, 3)
    assert (found.likely, found.worst) == (pytest.approx(9 * u), pytest.approx(81 * u))
    apart = (0, 17.9, 18.1, 80.9, 81.1)
    grades = [acceptable(1.0, 1 - x * u, 9, "float32", 2, 3).grade for x in apart]
    assert grades == ["round-off", "round-off", "doubtful", "doubtful", "fault"]
    assert [acceptable(x, x, 1, "float32").difference for x in (0.0, 2.0)] == [0, 0]
    assert acceptable(2.0, 3.0, 1, "float32").difference == 1 / 3


@pytest.mark.parametrize("losses", [(1.0, math.nan), (math.inf, math.nan)])
def test_what_is_no_number_is_a_fault(losses):
    assert acceptable(*losses, 3, "float16")[:2] == ("fault", math.inf)


def test_wrong_questions_are_refused():
    with pytest.raises(ConfigError, match=r"after 1 step or more.* got steps=0"):
        acceptable(1, 1, 0, "float32")
    with pytest.raises(ConfigError, match="one of float16, bfloat16, float32, float64, got 'half'"):
        acceptable(1, 1, 1, "half")
