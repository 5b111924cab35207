"""Colours go by name, and words can be read on them."""

from itertools import combinations

import numpy as np
import pytest

from tiledask.lab.plots.style import _OWN, PALE, PALETTE, colour_named, ink_on
from tiledask.lab.plots.timelines import KINDS


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def test_no_two_names_of_the_package_have_the_same_colour_and_none_is_that_of_idle_time():
    own = [rgb(colour_named(name)) for name in _OWN]
    assert all(np.abs(one - rgb(PALE)).max() >= 16 for one in own)
    assert all(np.abs(a - b).max() >= 16 for a, b in combinations(own, 2))
    assert np.abs(rgb(colour_named("to_make_again")) - rgb(colour_named("all_reduce"))).max() > 9
    names = "forward", "backward", "backward_input", "backward_weight", "update", "multiply"
    assert [colour for _, colour in KINDS.values()] == [*map(colour_named, names)]
    assert colour_named("anything") == colour_named("anything") != colour_named("something")


@pytest.mark.parametrize("colour", [*PALETTE, "#FFFFFF", "#000000"])
def test_ink_has_the_contrast_that_small_text_needs(colour):
    from matplotlib.colors import to_rgb

    def luminance(c):
        r, g, b = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(c))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    dark, light = sorted((luminance(colour), luminance(ink_on(colour))))
    assert (light + 0.05) / (dark + 0.05) >= 4.5
