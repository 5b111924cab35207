"""The two levels of a product by arithmetic: what each of them decides."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.questions.products.blocks import blocked

SIZES = {"m": 48, "n": 36, "k": 24, "tile": 8}


def worked(**inputs):
    return td.ask(1, run=False, **(SIZES | inputs)).values


def test_the_blocking_that_sends_least():
    assert worked()["blocking"] == [2, 2]
    assert worked()["sent"] == (48 * 24 + 24 * 36) * 4
    for p, q in ((1, 4), (2, 2), (4, 1)):
        sent = worked(blocking=f"{p}x{q}")["sent"]
        assert sent == (48 * 24 * (q - 1) + 24 * 36 * (p - 1)) * 4
        assert sent == blocked(48, 36, 24, (p, q)).traffic(4).total


def test_neither_level_decides_what_is_the_others():
    assert worked(tile=4)["sent"] == worked()["sent"]
    assert worked(tile=4)["loaded"] > worked()["loaded"]
    assert worked(blocking="1x4")["intensity"] == worked()["intensity"] == 2
    assert worked(dtype="float64")["intensity"] == 1


def test_what_cannot_be():
    with pytest.raises(ConfigError, match="blocking of 3x3 is not one of 4 workers"):
        worked(blocking="3x3")
    with pytest.raises(ConfigError, match="a worker would hold 8"):
        worked(memory="1MB")
