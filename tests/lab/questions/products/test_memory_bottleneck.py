"""A layer that no GPU holds: which strategies survive, and what each optimizer needs."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError


def test_only_what_cuts_the_matrix_survives():
    told = td.ask(2, run=False)
    assert told.values["survive"] == ["columns", "rows"]
    assert told.values["fewest"] == 2
    adam = td.ask(2, step="adam", run=False)
    assert (adam.values["survive"], adam.values["fewest"]) == ([], 5)
    assert td.ask(2, weights="23.8GB", run=False).values["survive"][0] == "copies"
    full = td.ask(2, weights="24GB", run=False).values["survive"]  # no room for y
    assert full == ["columns", "rows"]
    with pytest.raises(ConfigError, match="has room for 0"):
        td.ask(2, memory="1kB", run=False)


def test_26_gb_on_24_is_held_by_two_and_trained_by_five():
    told = td.ask(3, run=False)
    assert told.values["fewest"] == {
        "fp32-weights": 2,
        "fp32-sgd": 3,
        "fp32-momentum": 4,
        "fp32-adam": 5,
    }
    assert [nbytes / 1e9 for nbytes in told.values["held"].values()] == [6.5, 13, 19.5, 26]
    assert not told.values["fits"]
