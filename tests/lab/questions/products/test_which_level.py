"""Tiles or blocks at fault; all ways to cut a product."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.questions import readers


def test_the_roofline_of_tiles_on_an_h200():
    told = td.ask(6, run=False).values
    assert told["intensity"] == [0.25, 0.5, 1, 2, 4, 8]
    assert told["loaded"] == [2 * 64**3 // t * 4 for t in (1, 2, 4, 8, 16, 32)]
    assert told["tile at the ridge"] == 56
    assert told["busy, uneven blocks"] == pytest.approx(2 / 3)
    with pytest.raises(ConfigError, match="leaves some worker without a row"):
        td.ask(6, largest=1, run=False)


@pytest.mark.parametrize("workers", [3, 4, 8])
def test_the_chosen_cut_moves_least_of_all(workers):
    told = td.ask(7, workers=workers, m=48, n=36, k=24, run=False).values
    assert told["moved"]["x".join(map(str, told["best"]))] == min(told["moved"].values())
    p, q, r = (round(workers ** (1 / 3)),) * 3
    if p * q * r == workers:
        assert told["moved"]["2x2x2"] == 4 * (48 * 24 + 24 * 36 + 48 * 36)


def test_what_does_not_fit_is_not_chosen():
    assert td.ask(7, memory="1MB", run=False).values["best"] is None
    wide = td.ask(7, m=64, n=64, k=4096, run=False).values
    assert wide["best"] == [1, 1, 4]  # C is small: cut the inner dimension


@pytest.mark.parametrize(
    ("read", "wrong"), [(readers.device, "H900"), (readers.device, 4), (readers.grid, "2x0")]
)
def test_readers_say_the_rule(read, wrong):
    with pytest.raises(ValueError, match=r"^(must be|is not known)"):
        read(wrong)
