"""Claims that are judged: one text, one table.

Holds `tiledask.plan.judged`.
"""

import pytest

import tiledask as td
from tiledask.plan.judged import Judged, judged_table


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (Judged("a", True, "1 < 2"), "✓ a: 1 < 2"),
        (Judged("a", False, "why.", "b would."), "✗ a: why. b would."),
        (Judged("a", None, "close"), "a: close"),
        (Judged("", False, "7 apart"), "✗ 7 apart"),
        (Judged("", None), ""),
    ],
)
def test_a_claim_in_words(one, text):
    assert str(one) == text


def test_a_table_has_every_claim_and_no_markup_of_theirs():
    found = judged_table(
        [Judged("<b>", False, "1 & 2", "<i>"), Judged("c", None), Judged("d", True)], "<u>"
    )
    assert not any(tag in found for tag in ("<b>", "<i>", "<u>"))
    assert "<td>✗</td><td>&lt;b&gt;</td>" in found
    assert "1 &amp; 2 &lt;i&gt;</td>" in found
    assert "<td>✓</td><td>d</td>" in found


def test_what_judges_claims_gives_them_back_as_one_kind():
    plan = td.critique("gpt2-xl", td.Layout(pp=8, microbatches=8), "8xA100-80GB", sequence=1024)
    row = td.Claim("bytes", 4, None, 5, rule="equal")
    for each in (*plan.lines, row.verdict):
        assert isinstance(each, Judged)
    assert {line.about for line in plan.lines if not line.good} >= {"bubble", "utilisation"}
    assert row.verdict.reason == row.verdict.why == "differ by 1"
