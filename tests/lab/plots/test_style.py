"""Colours go by name: the package's own have one each, others never theirs, whatever else runs."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tiledask.lab.plots.gantt import KINDS
from tiledask.lab.plots.style import _NAMES, PALE, colour_named

OWN = " ".join(_NAMES.values()).split()


def rgb(name: str) -> np.ndarray:
    colour = colour_named(name)
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def test_no_two_names_of_the_package_have_the_same_colour_and_none_is_that_of_idle_time():
    pale = [int(PALE[i : i + 2], 16) for i in (1, 3, 5)]
    for one in OWN:
        assert np.abs(rgb(one) - pale).max() >= 16, one
    near = [(a, b) for a, b in combinations(OWN, 2) if np.abs(rgb(a) - rgb(b)).max() < 16]
    assert near == []


@given(st.text(max_size=20))
def test_any_other_name_has_always_the_same_colour_and_none_of_the_packages(name):
    if name in OWN:
        return
    colour = colour_named(name)
    assert colour == colour_named(name)
    assert colour not in {colour_named(own) for own in OWN}


def test_figures_have_the_colours_of_the_page():
    names = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
    names |= {"U": "update", "M": "multiply"}
    assert {kind: colour for kind, (_, colour) in KINDS.items()} == {
        kind: colour_named(name) for kind, name in names.items()
    }
