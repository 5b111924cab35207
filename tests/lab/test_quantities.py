"""Numbers and answers as people type them."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ConfigError
from tiledask.lab.quantities import UNITS, parts, read_number, show_number

TYPED = [
    *((word, "share", 3 / 12) for word in ("25 %", "25%", "3/12", "0.25", ".25", "25", 0.25)),
    *((word, "s", 6) for word in ("6 s", "6", "6s", "6 seconds", "6000 ms", "T = 6 s", 6)),
    *((word, "s", 30) for word in ("0.5min", "0.5 min.", "30 s.", "30000 ms", "30.")),
    *((word, "count", 8) for word in ("8", "m = 8", "8 micro-batches", "8.0", "16/2", 8)),
    *((word, "B", 12e6) for word in ("12 MB", "12 mb", "12 million", "12E6", "12,000,000")),
    ("12 MiB", "B", 12 * 2**20),
    ("50 GPUs", "", 50),
    ("2 M", "", 2e6),
    ("20 µs", "s", 2e-5),
    ("27.3%", "%", 27.3),
    ("\u22124", "", -4),
    ("1,000 × 2**3 / 4", "", 2000),
    ("2^-9999999999", "", 0),
    ("1.5T", "billions", 1500),
    ("200Gb/s", "B/s", 25e9),
]
NONE = [
    *((word, "") for word in ("4 GB", "4 or 5", "1,05", "12 000 00", "1.234.567", "3/0", "1e999")),
    *((word, "") for word in ("nan", "1" * 200, "", "x")),
    *((word, "s") for word in ("5 m", "6 %", "", None)),
    ("12 apples", "B"),
    ("8.5", "count"),
    (True, "count"),
]


@pytest.mark.parametrize(("typed", "unit", "number"), TYPED)
def test_one_number_in_many_ways(typed, unit, number):
    assert read_number(typed, unit) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(("typed", "unit"), NONE)
def test_what_is_none_is_told_the_form(typed, unit):
    with pytest.raises(ConfigError, match=f"the end is {UNITS[unit].what}, as in "):
        read_number(typed, unit, "the end")


def test_a_unit_behind_a_sum_is_not_that_of_its_last_part():
    assert read_number("(3 + 4) MB", "B") == read_number("(2 + 14 / 2 - 2) * 1 MB", "B") == 7e6
    for typed in ("16 * 2e9 + 316 GB", "3 - 1 s"):
        with pytest.raises(ConfigError, match="behind a sum in brackets"):
            read_number(typed, "B" if "GB" in typed else "s")


@given(st.integers(0, 10**14), st.sampled_from([",", " "]))
def test_marks_stand_between_groups_of_three_digits_alone(number, mark):
    text = f"{number:,}".replace(",", mark)
    assert read_number(text) == number
    if mark in text:
        with pytest.raises(ConfigError):
            read_number(text[:-1])


@given(st.floats(-1e14, 1e14), st.sampled_from(["", "B", "s", "%", "layers"]))
def test_what_is_shown_can_be_typed(number, unit):
    assert read_number(show_number(number, unit), unit) == pytest.approx(number, rel=1e-2)


@settings(max_examples=40)
@given(st.text(max_size=30), st.sampled_from(list(UNITS)))
def test_any_text_is_a_finite_number_or_refused(text, unit):
    with contextlib.suppress(ConfigError):
        assert abs(read_number(text, unit)) < float("inf")


def test_commas_spaces_and_lines_part_alike():
    wanted = ["6 s", "27.3 %", "3/11"]
    for answer in ("6 s, 27.3 %, 3/11", "6 s\n27.3 %\n3/11", "6 s;27.3 %;3/11;"):
        assert parts(answer) == wanted
    assert parts("6 s 27.3 % 3 / 11") == ["6s", "27.3%", "3/11"]
    assert parts("0.5 min 6 s.") == ["0.5min", "6s."]
