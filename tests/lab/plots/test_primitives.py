"""What figures are made of: notes, ticks, and words that fit into their box."""

import pytest

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import BLUE, canvas


@pytest.fixture
def axes():
    return canvas(3, "a title").subplots()


@pytest.mark.parametrize(
    ("offset", "aligned"),
    [((6, 0), ("left", "center")), ((-4, 3), ("right", "bottom")), ((0, -2), ("center", "top"))],
)
def test_a_note_stands_on_the_side_that_its_offset_says(axes, offset, aligned):
    draw.note(axes, (0.5, 0.5), "words", offset)
    (text,) = axes.texts
    assert (text.get_ha(), text.get_va()) == aligned


@pytest.mark.parametrize(
    ("first", "last", "label"),
    [(0, 2, "time (s)"), (1, 1.02, "time (ms)"), (0, 3e-5, "time (µs)"), (0, 1e-9, "time (µs)")],
)
def test_time_is_in_a_unit_that_suits_it(axes, first, last, label):
    draw.time_ticks(axes, first, last)
    assert axes.get_xlabel() == label
    assert axes.get_xlim() == (first, last)


def test_logarithmic_ticks_are_round_numbers_within_the_limits(axes):
    draw.log_ticks(axes.yaxis, 3, 150, "{:g}".format)
    assert axes.get_yticks().tolist() == [5, 10, 20, 50, 100]
    assert not len(axes.yaxis.get_minorticklocs())


def test_words_are_written_only_where_they_fit(axes):
    axes.figure.lay_out()
    assert draw.fitting_text(axes, (0, 0, 1, 1), "fits", BLUE)
    assert not draw.fitting_text(axes, (0, 0, 0.01, 1), "does not fit", BLUE)
    assert [text.get_text() for text in axes.texts] == ["fits"]
