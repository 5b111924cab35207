"""Goals and the level that each belongs to; a tile that is carried to another GPU."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.questions.products.goals import GOALS


def test_every_goal_moves_under_its_own_level_and_under_no_other():
    levels = td.ask(9, run=False).values["levels"]
    assert levels == {goal: level for goal, (level, _, _) in GOALS.items()}
    assert list(levels.values()) == ["high"] * 4 + ["low"] * 4
    with pytest.raises(ConfigError, match="size a multiple of 64 x workers"):
        td.ask(9, size=100, run=False)


def test_the_tile_of_an_l4_gives_two_thirds_of_an_h200_away():
    told = td.ask(8, run=False).values
    assert told["given away"] == pytest.approx(0.694, abs=0.001)
    assert told["tile before"] == [64, 64, 32]
    assert told["times as fast, carried"] < told["times as fast, tuned anew"]


def test_what_a_device_cannot_run_is_said():
    with pytest.raises(ConfigError, match="does not run on L4: needs compute capability"):
        td.ask(8, kernel="wgmma_ws_persistent", run=False)
    with pytest.raises(ConfigError, match="name two devices"):
        td.ask(8, tuned_on="H200", run=False)
    with pytest.raises(ConfigError, match="does not run on a T4"):
        td.ask(9, device="T4", run=False)
