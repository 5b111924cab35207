"""A feed-forward layer over devices, by arithmetic: the shards, the sums, the wrong order."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError


def test_shards_sum_to_the_width_also_where_devices_do_not_divide_it():
    assert td.ask(5, run=False).values["widths"] == [64] * 4
    assert td.ask(5, d_h=130, run=False).values["widths"] == [33, 33, 32, 32]
    with pytest.raises(ConfigError, match="4 devices take 4 rows"):
        td.ask(5, d=3, run=False)


def test_one_sum_of_the_activations_each_way():
    assert td.ask(5, run=False).values["sent"] == 2 * 3 * 32 * 64 * 8


def test_gelu_of_a_sum_is_not_the_sum_of_gelus():
    assert td.ask(5, run=False).values["wrong order, off by"] > 0.1
