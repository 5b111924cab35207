"""A figure with sliders: drawn again when one is moved, and read without a kernel too.

Holds `tiledask.lab.plots.sliders`.
"""

import pytest

import tiledask as td
from tiledask.errors import ConfigError


def drawn(calls):
    def draw(m, p=4):
        calls.append((m, p))
        if m == 3:
            raise ConfigError("m = 3 has no picture; take 1 or 2")
        figure = td.plots.canvas(2, f"m = {m}, p = {p}")
        figure.subplots().set_xlabel("time (s)")
        return figure

    return draw


def test_a_slider_that_is_moved_draws_anew_and_what_is_refused_is_said():
    calls = []
    shown = td.plots.sliders(drawn(calls), {"m": 2}, m=[1, 2, 3], p=[4, 8])
    widget = shown._widget()
    m, p, words, image = widget.children
    assert (m.value, p.value, calls) == (2, 4, [(2, 4)])
    first = image.value
    p.value = 8
    assert calls[-1] == (2, 8)
    assert image.value != first
    before = image.value
    m.value = 3
    assert words.value == "m = 3 has no picture; take 1 or 2"
    assert image.value == before
    m.value = 1
    assert words.value == ""


def test_without_a_kernel_there_is_the_picture_it_begins_with_and_words():
    shown = td.plots.sliders(drawn([]), m=[1, 2])
    bundle = shown._repr_mimebundle_()
    figure = td.plots.sliders(drawn([]), m=[1]).figure()
    assert bundle["image/png"] == figure._repr_png_()[0]
    assert bundle["text/plain"] == "Figure: m = 1, p = 4 | time (s) | with sliders, here at m = 1"
    assert "application/vnd.jupyter.widget-view+json" in bundle


@pytest.mark.parametrize(
    ("start", "choices", "words"),
    [
        ({}, {}, "need 1 or more"),
        ({}, {"m": []}, "each with 1 value or more"),
        ({"m": 4}, {"m": [1, 2]}, "m = 4 is no value"),
        ({"q": 4}, {"m": [1, 2]}, "q = 4 is no value"),
    ],
)
def test_sliders_that_cannot_be_are_refused(start, choices, words):
    with pytest.raises(ConfigError, match=words):
        td.plots.sliders(drawn([]), start, **choices)
