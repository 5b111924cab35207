"""Answers as people type them. Holds `tiledask.lab.judging.reading`."""

import pytest

from tiledask.errors import ConfigError
from tiledask.lab.judging.reading import COUNT, SECONDS, SHARE, labelled, parts, read_number


@pytest.mark.parametrize(
    ("typed", "unit", "value"),
    [
        *((word, SHARE, 3 / 12) for word in ("25 %", "25%", "3/12", "0.25", ".25", "25", 0.25)),
        *((word, SECONDS, 6) for word in ("6 s", "6", "6s", "6 seconds", "6000 ms", "T = 6 s", 6)),
        *((word, SECONDS, 30) for word in ("0.5min", "0.5 min.", "30 s.", "30000 ms", "30.")),
        *((word, COUNT, 8) for word in ("8", "m = 8", "8 micro-batches", "8.0", "16/2", 8)),
    ],
)
def test_one_number_in_many_ways(typed, unit, value):
    assert read_number(typed, unit) == pytest.approx(value)


@pytest.mark.parametrize(
    ("typed", "unit"),
    [("x", SHARE), ("6 %", SECONDS), ("8.5", COUNT), ("1/0", SHARE), ("", SECONDS), (True, COUNT)],
)
def test_what_is_none_is_told_the_form(typed, unit):
    with pytest.raises(ConfigError, match=f"the end is {unit.what}, as in "):
        read_number(typed, unit, "the end")


def test_commas_spaces_lines_and_lists_part_alike():
    wanted = ["6 s", "27.3 %", "3/11"]
    for answer in ("6 s, 27.3 %, 3/11", "6 s\n27.3 %\n3/11", "6 s;27.3 %;3/11;", wanted):
        assert parts(answer) == wanted
    assert parts("6 s 27.3 % 3 / 11") == ["6s", "27.3%", "3/11"]
    assert parts("0.5 min 6 s.") == ["0.5min", "6s."]
    assert parts({"worker 1": 6}) == ["worker 1: 6"]


def test_labels_order_the_words_and_counting_from_0_is_told():
    assert labelled(["2: b", "1: a"], ["1", "2"], "worker") == ["a", "b"]
    assert labelled(["A warm-up", "B: drain"], ["A", "B"], "gap") == ["warm-up", "drain"]
    assert labelled(["6 s", "7 s"], ["1", "2"], "worker") == ["6 s", "7 s"]
    with pytest.raises(ConfigError, match="counted workers from 0; here they count from 1"):
        labelled(["0: a", "1: b"], ["1", "2"], "worker")
