"""Loss scaling: the scale's rules against a loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import DivergedError
from tiledask.tile.optimizers import LossScale, unscaled


def loop(scale, growth, backoff, interval, floor, steps):
    """GradScaler's rule, a variable at a time."""
    tracker, scales, skipped = 0, [], 0
    for finite in steps:
        if finite:
            tracker += 1
            if tracker == interval:
                scale, tracker = scale * growth, 0
        else:
            scale, tracker, skipped = max(scale * backoff, floor), 0, skipped + 1
        scales.append(scale)
    return scales, skipped


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.sampled_from([1.0, 64.0]))
def test_the_scale_grows_and_backs_off(steps, interval, floor):
    scale, scales = LossScale(1024.0, 2.0, 0.5, interval, floor, patience=99), []
    for finite in steps:
        scale = scale.after(finite)
        scales.append(scale.scale)
    assert (scales, scale.skipped) == loop(1024.0, 2.0, 0.5, interval, floor, steps)


def test_it_stays_between_floor_and_ceiling():
    scale = LossScale(2.0, interval=1, ceiling=4.0, floor=1.0)
    assert [(scale := scale.after(True)).scale for _ in range(3)] == [4, 4, 4]
    assert [(scale := scale.after(False)).scale for _ in range(4)] == [2, 1, 1, 1]
    assert scale.skipped == 4


def test_at_the_floor_patience_ends():
    scale = LossScale(2.0, patience=3)
    for _ in range(3):
        scale = scale.after(False)
    assert scale.after(True).stuck == 0
    with pytest.raises(DivergedError, match=r"3 steps in a row overflowed at the scale's floor, 1"):
        scale.after(False)


def test_a_static_scale_stays_and_skips():
    scale = LossScale.static(128.0, patience=2)
    for finite in (True, False, True, False):
        scale = scale.after(finite)
        assert scale.scale == 128
    assert scale.skipped == 2
    with pytest.raises(DivergedError, match="static scale, 128; patience is 2"):
        scale.after(False)


def test_gradients_are_widened_before_they_are_divided():
    grads = {"w": np.array([2.0**-10], np.float16)}
    wide = unscaled(grads, 2.0**16)["w"]
    assert wide.dtype == np.float32
    assert wide[0] == 2.0**-26
    assert np.float16(grads["w"][0] / np.float16(2.0**15)) == 0  # what the other order does
