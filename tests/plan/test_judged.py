"""Claims that are judged: one text.

Holds `tiledask.plan.judged`.
"""

import pytest

import tiledask as td
from tiledask.plan.judged import Judged


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (Judged("a", True, "1 < 2"), "✓ a: 1 < 2"),
        (Judged("a", False, "why."), "✗ a: why."),
        (Judged("a", None, "close"), "a: close"),
        (Judged("", False, "7 apart"), "✗ 7 apart"),
        (Judged("", None), ""),
    ],
)
def test_a_claim_in_words(one, text):
    assert str(one) == text


def test_what_judges_claims_gives_them_back_as_one_kind():
    plan = td.critique("gpt2-xl", td.Layout(pp=8, microbatches=8), "8xA100-80GB", sequence=1024)
    row = td.Check("bytes", 4, None, 5, rule="equal")
    for each in (*plan.lines, row.verdict):
        assert isinstance(each, Judged)
    assert {line.claim for line in plan.lines if not line.good} >= {"bubble", "utilisation"}
    assert row.verdict.why == "differ by 1"
