"""A plan of a product, judged, and better as advised."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError


def worked(**inputs):
    return td.ask(10, run=False, **inputs)


def test_a_bad_plan_is_named_and_the_advised_one_has_no_fault_that_blocks_or_tiles_decide():
    bad = worked()
    assert bad.values["faults"] == ["traffic", "barriers", "tiles", "time"]
    assert bad.values["advised"] == "summa on 2 x 2, tiles of 64"
    assert bad.values["seconds, advised"] < bad.values["seconds"] / 2
    good = worked(strategy="summa", blocking="2x2", tile=64)
    assert good.values["advised"] == "summa on 2 x 2, tiles of 64"
    assert set(good.values["faults"]) <= {"time"}
    assert good.values["seconds"] == bad.values["seconds, advised"]


def test_each_line_has_its_fault():
    assert "memory" in worked(memory="9MB").values["faults"]
    uneven = worked(m=5, n=64, k=64, blocking="4x1", strategy="summa").values["faults"]
    assert "balance" in uneven
    with pytest.raises(ConfigError, match="blocking of 3x3 is not one of 4"):
        worked(blocking="3x3")
