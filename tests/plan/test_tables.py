"""Tables of which nothing is cut off, in text and on a page; values as people read them."""

import re

import numpy as np
import pytest
from hypothesis import example as drawn_before
from hypothesis import given
from hypothesis import strategies as st

import tiledask as td
from tiledask import Ledger
from tiledask.errors import ConfigError
from tiledask.plan.tables import Judged, Printable, Table, format_value
from tiledask.plan.units import format_count


def test_values_as_people_read_them():
    shown = {(0.0003, "percent"): "0.03 %", (12345.6, ""): "12,346", (3.2e-06, ""): "3.2e-06"}
    shown |= {("no", "bytes"): "no", ((0.0015, 2.5), "seconds"): "1.5 ms, 2.5 s"}
    assert {each: format_value(*each) for each in shown} == shown
    assert (format_count(999_500), format_count(999_499)) == ("1M", "999,000")
    assert (Ledger.of(()).peak, repr(Ledger.of(()))) == (0, "Ledger(empty)")
    assert (str(Judged("a", True, "1 < 2")), str(Judged("", False, "x"))) == ("✓ a: 1 < 2", "✗ x")


NUMBER = r"[0-9][0-9.,]*[0-9]"
PIECES = ["65.59 GB", "tokens/s", "123,456,789", "a", "0.5", ""]
CELLS = st.lists(st.sampled_from(PIECES), max_size=3).map(" ".join)


@given(
    st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=4), st.integers(100, 140)
)
@drawn_before(rows=[["65.59 GB 65.59 GB", " 123,456,789", "", ""]], width=100)  # it is indented
def test_a_table_cuts_no_word_and_keeps_to_its_width(rows, width):
    head = ("", "a device", "share", "[how]")
    shown = Table(head, rows, "What fits where", left=(0, 3), bold=(0,)).to_text(width)
    assert max(map(len, shown.splitlines())) <= width
    given_numbers = [number for row in rows for cell in row for number in re.findall(NUMBER, cell)]
    assert sorted(re.findall(NUMBER, shown)) == sorted(given_numbers)


def test_a_table_shows_each_column_in_its_unit_on_paper_and_on_a_page():
    rows = {"<a>": {"sent": 4096, "kind": "ring"}, "b": {"sent": np.int64(2), "idle": 0.5}}
    shown = td.table(rows, sent="bytes", idle="percent")
    assert repr(shown).splitlines() == [
        "         sent  kind    idle",
        "<a>  4.096 kB  ring       —",
        "b         2 B  —     50.0 %",
    ]
    assert re.search(r"&lt;a&gt;.*4\.096 kB</td>", shown._repr_html_())
    with pytest.raises(ConfigError, match="no column 'send' to show in bytes; columns are sent"):
        td.table([{"sent": 1}], send="bytes")


def test_prose_wraps_and_commands_do_not():
    class Shown(Printable):
        def printed(self):
            yield "so many", " words that stand in one line"
            yield from ("two\nlines, one of them long", "tiledask fit a-model-of-a-long-name")

    assert Shown().to_text(15).splitlines() == [
        *("so many words", "that stand in", "one line"),
        *("two", "lines, one of them long", "tiledask fit a-model-of-a-long-name"),
    ]
    assert Shown()._repr_html_().startswith("<p><b>so many</b> words that stand in one line</p>")
