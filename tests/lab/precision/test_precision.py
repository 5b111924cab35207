"""The drift verdict tells faults apart, suspects are named by what helps."""

import math
from functools import reduce

import numpy as np
import pytest

from tiledask.errors import ConfigError
from tiledask.lab.precision import (
    TrainingSetting,
    acceptable,
    blame,
    likely,
    small,
    train,
    worst,
)
from tiledask.lab.precision.drift import ROUNDOFF

# -- the small network -----------------------------------------------------------------------------


def test_a_split_changes_nothing_but_the_order_of_sums():
    alone = train("float64", 5).losses
    for ranks in (2, 3, 64):
        split = train("float64", 5, ranks).losses
        np.testing.assert_allclose(split, alone, rtol=1e-13)
    assert train("float64", 5).losses == alone
    assert train("float64", 5, seed=1).losses != alone
    with pytest.raises(ConfigError, match="over 1 to 64 ranks, got 65"):
        train("float64", 1, 65)


def test_the_small_networks_gradients_are_its_derivative():
    x = np.random.default_rng(0).standard_normal((6, 784))
    labels, net, eps = np.arange(6), small.Small(8, 12, 2), 1e-6
    weights = small.layers.initialise(net.parameters(), 0, dtype="float64")
    _, grads = small.gradients(weights, net, x, labels, 3, 4.0)
    rng = np.random.default_rng(1)
    way = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
    ends = [
        small.gradients(
            {n: w + s * eps * way[n] for n, w in weights.items()}, net, x, labels, 3, 1
        )[0]
        for s in (1, -1)
    ]
    slope = sum((grads[name] * way[name]).sum() for name in weights)
    assert 4 * (ends[0] - ends[1]) / (2 * eps) == pytest.approx(slope, rel=1e-6)


# -- drift -----------------------------------------------------------------------------------------


FAULTS = {
    # backward (a list here) only the own gradient goes on, as if nobody had added them up
    "a missing f": lambda parts: parts[0] if isinstance(parts, list) else reduce(np.add, parts),
    "a doubled sum": lambda parts: 2 * reduce(np.add, parts),
    "a left out rank": lambda parts: reduce(np.add, parts[:-1]),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_from_round_off(fault, dtype, monkeypatch):
    alone = train(dtype, 4).losses
    honest = train(dtype, 4, 2).losses
    monkeypatch.setattr(small, "added", FAULTS[fault])
    wrong = train(dtype, 4, 2).losses
    assert all(verdicts(alone, honest, dtype))
    assert not all(verdicts(alone, wrong, dtype))


def test_bf16_sees_a_missing_f_later(monkeypatch):
    first = {}
    for dtype in ROUNDOFF:
        alone = train(dtype, 6).losses
        with monkeypatch.context() as patch:
            patch.setattr(small, "added", FAULTS["a missing f"])
            said = verdicts(alone, train(dtype, 6, 2).losses, dtype)
        first[dtype] = [bool(each) for each in said].index(False) + 1
    assert first == {"float16": 2, "bfloat16": 5, "float32": 2, "float64": 2}


def verdicts(alone, split, dtype):
    pairs = enumerate(zip(alone, split, strict=True), start=1)
    return [acceptable(a, b, n, dtype, ranks=2, layers=2) for n, (a, b) in pairs]


@pytest.mark.parametrize("dtype", ROUNDOFF)
@pytest.mark.parametrize("ranks", [2, 4])
def test_gathered_logits_in_a_split_loss_are_a_fault(dtype, ranks):
    loss = math.log(50)
    assert acceptable(loss, loss + math.log(ranks), 1, dtype, ranks, 2).grade == "fault"


def test_the_envelope_and_its_grades():
    u = 2.0**-24
    assert likely(9, "float32", 2, 3) == pytest.approx(9 * u)
    assert worst(9, "float32", 2, 3) == pytest.approx(81 * u)
    apart = (0, 17.9, 18.1, 80.9, 81.1)
    grades = [acceptable(1.0, 1 - x * u, 9, "float32", 2, 3).grade for x in apart]
    assert grades == ["round-off", "round-off", "doubtful", "doubtful", "fault"]
    assert acceptable(0.0, 0.0, 1, "float32")
    assert acceptable(2.0, 2.0, 1, "float32")
    assert not acceptable(2.0, 3.0, 1, "float32")


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((1.0, math.nan), "one run is finite and the other is not"),
        ((math.inf, math.nan), "neither run is finite"),
    ],
)
def test_what_is_no_number_is_a_fault(losses, words):
    said = acceptable(*losses, 3, "float16")
    assert not said
    assert words in said.reason
    assert "Drift(fault: inf apart" in repr(said)


def test_wrong_questions_are_refused():
    with pytest.raises(ConfigError, match=r"after 1 step or more.* got steps=0"):
        acceptable(1, 1, 0, "float32")
    with pytest.raises(ConfigError, match="one of float16, bfloat16, float32, float64, got 'half'"):
        acceptable(1, 1, 1, "half")


# -- blame ---------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("setting", "cause"),
    [
        ({}, "nothing"),
        ({"dtype": "float32"}, "nothing"),
        ({"scale": 2.0**-22}, "the loss scale is too low"),
        ({"scale": 2.0**24}, "the loss scale is too high"),
        ({"dtype": "bfloat16", "rate": 0.002, "master": False}, "no master weights"),
        ({"rate": 1.0}, "the rate is too high"),
        ({"dtype": "float32", "rate": 1.0}, "the rate is too high"),
    ],
)
def test_the_experiment_that_helps_names_the_suspect(setting, cause):
    assert blame(TrainingSetting(**setting)).cause == cause
