"""The drift verdict tells faults apart."""

import math
from functools import reduce

import numpy as np
import pytest

from tiledask.errors import ConfigError
from tiledask.lab.precision import (
    acceptable,
    small,
    train,
)

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


def verdicts(alone, split, dtype):
    pairs = enumerate(zip(alone, split, strict=True), start=1)
    return [acceptable(a, b, n, dtype, ranks=2, layers=2) for n, (a, b) in pairs]


def test_the_envelope_and_its_grades():
    u = 2.0**-24
    found = acceptable(1.0, 1.0, 9, "float32", 2, 3)
    assert (found.likely, found.worst) == (pytest.approx(9 * u), pytest.approx(81 * u))
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
