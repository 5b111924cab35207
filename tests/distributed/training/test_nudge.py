"""A training whose weights begin one rounding up or down is the same training."""

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import CheckpointError, ConfigError
from tiledask.lab.precision import FORMATS
from tiledask.tile import layers as L

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT, DIGITS = td.load_text("tales"), td.load_images("digits")
MODEL = td.GPT(TEXT.vocabulary, hidden=12, layers=2, heads=2, sequence=8)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_weight_is_nudged_by_one_rounding(dtype):
    def drawn(nudge, part=None, kind="normal"):
        nudge = L.Nudge(nudge, dtype) if nudge else None
        return L.draw(L.Parameter((40, 30), kind), 0, "w", part, dtype, nudge=nudge)

    plain, one, other = (drawn(n).astype("f8") for n in (0, 1, 2))
    part = (slice(3, 9), [0, 7])
    np.testing.assert_array_equal(drawn(1, part), drawn(1)[part])
    moved = (one - plain) / plain / FORMATS[dtype].roundoff
    assert 0.9 < np.abs(moved).min() <= np.abs(moved).max() < 4.1  # one step of the format, or two
    assert 0.4 < (moved > 0).mean() < 0.6
    assert (one != other).mean() > 0.4
    assert not drawn(1, kind="zeros").any()


@pytest.mark.parametrize("ranks", [(1, 1, 1), (2, 2, 1)], ids=str)
def test_a_control_is_the_same_training_of_a_text(ranks):
    plain, control = (
        td.train(MODEL, TEXT, ranks, steps=4, batch=5, dtype="float64", nudge=n, progress=False)
        for n in (0, 1)
    )
    np.testing.assert_allclose(control.losses, plain.losses, rtol=1e-12)
    assert any((w != plain.weights[name]).any() for name, w in control.weights.items())


def test_a_control_is_the_same_training_of_images_and_the_same_control_if_split():
    plain, control, split = (
        td.train_lenet(DIGITS, ways, steps=3, batch=6, dtype="float64", nudge=n)
        for ways, n in (({}, 0), ({}, 1), ({"layerwise": 2, "network": 2}, 1))
    )
    np.testing.assert_allclose(control.losses, plain.losses, rtol=1e-12)
    np.testing.assert_allclose(split.losses, control.losses, rtol=1e-12)
    assert (control.weights["fc1"]["w"] != plain.weights["fc1"]["w"]).any()


def test_halves_are_nudged_by_their_own_rounding():
    plain, control, single = (
        td.train(MODEL, TEXT, (1, 1, 1), steps=1, batch=5, dtype=dtype, nudge=n, progress=False)
        for dtype, n in (("bfloat16", 0), ("bfloat16", 1), ("float32", 1))
    )
    single_plain = td.train(MODEL, TEXT, (1, 1, 1), steps=1, batch=5, progress=False)
    moved = abs(control.losses[0] - plain.losses[0])
    assert moved > 100 * abs(single.losses[0] - single_plain.losses[0])


def test_a_nudge_is_part_of_what_a_checkpoint_is_of(tmp_path):
    def go(nudge, steps):
        given = {"steps": steps, "nudge": nudge, "folder": tmp_path}
        return td.train(MODEL, TEXT, (1, 1, 1), batch=2, progress=False, **given)

    go(3, 1)
    with pytest.raises(CheckpointError, match="nudge is 3 there and none here"):
        go(0, 2)
    assert len(go(3, 2).losses) == 1
    with pytest.raises(ConfigError, match="nudge must be a whole number of 0 or more, got -1"):
        go(-1, 3)
    with pytest.raises(ConfigError, match=r"nudge must be a whole number of 0 or more, got 1\.5"):
        td.train_lenet(DIGITS, {}, steps=1, batch=2, nudge=1.5)
