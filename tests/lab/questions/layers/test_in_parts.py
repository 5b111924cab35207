"""Networks in parts: the numbers of d2l's LeNet, split layers, layers in order."""

import pytest

import tiledask as td
from tiledask.errors import PlacementError


def worked(number, **inputs):
    return td.ask(number, run=False, **inputs)


def test_parts_divide_memory_and_nothing_else():
    answer = worked(13)
    assert (answer.values["one unit"], answer.values["each unit"]) == (48e9, 12e9)
    assert (answer.values["fits on one"], answer.values["fits in parts"]) == (False, True)
    assert answer.values["seconds"] >= 0.6


def test_lenet_on_4_devices():
    found = worked(26).values
    assert found["parameters"] == [200, 25_050, 102_528, 1_290]
    assert found["boundary bytes"] == [3_461_120, 819_200, 131_072]
    assert found["bytes"] == 2 * sum(found["boundary bytes"])
    assert found["transfers"] == 6
    assert round(found["imbalance"], 2) == 3.67


def test_64_channels_over_4_and_10_over_4():
    found = worked(27).values
    assert found["channels"] == [16] * 4
    assert worked(27, channels=10).values["channels"] == [3, 3, 2, 2]
    assert found["barriers"] == [7, 6, 1]
    assert {way: each["barriers"] for way, each in found["ways"].items()} == {
        "by output channels": 2,
        "by input channels": 1,
        "out, then in": 2,
        "by rows": 3,
    }


def test_a_copy_on_each_of_4_devices():
    found = worked(28).values
    assert found["bytes of each"] == 774_408
    assert found["synchronisations"] == 1
    assert found["speed-up at best"] == pytest.approx(4)
    assert found["batch normalisation off by"] > 0.1


def test_a_block_has_2_sums_up_and_2_down():
    found = worked(30).values
    assert found["all_reduces"] == 2 * 4
    assert found["bytes"] == 8 * 2 * 3 * (4 * 16 * 16 * 8)  # 2 (t - 1) rows x tokens x h x 8 B
    assert abs(found["gelu of a sum"] - found["sum of gelus"]) > 0.01
    with pytest.raises(PlacementError, match="take a multiple of 4"):
        worked(30, hidden=18)


def test_24_layers_in_order_on_4_workers():
    found = worked(29).values
    assert found["cut"] == "[1-6][7-12][13-18][19-24]"
    assert (found["fullest"], found["transfers"], found["utilisation"]) == (0.25, 6, 0.25)
