"""Checks and the rules that judge them; comparisons in the terminal, in HTML and in JSON."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from tiledask.errors import ConfigError, DoesNotFitError
from tiledask.lab.check import Check, Comparison
from tiledask.lab.claims import RandomProduct

NAN = math.nan

CHECKS = [
    ("equal", (5, 5, 5)),
    ("equal", (5, None, 5)),
    ("equal", (None, (6, 6), [6, 6])),
    (("within", 0.03), (0.25, 0.26, 0.28)),
    (("ratio", 0.9, 1.1), (10.0, 9.5, 9.9)),
    (("ratio", 0.9, 1.1), (0, None, 0)),
    ("at most", (10, None, 10)),
    ("at most", (10, 9, 8)),
    ("at most", (0, None, 0)),
    ("true", (True, True, np.True_)),
    # and by how much it does not
    ("equal", (5, 5, 6), "differ by 1"),
    ("equal", (5, 6, 5), "differ by 1"),
    ("equal", ("fits", None, "no"), "differ"),
    ("equal", (1, None, True), "differ"),
    ("equal", (NAN, None, NAN), "differ by nan"),
    (("within", 0.03), (0.25, 0.27, 0.29), "0.04 apart, 0.03 allowed"),
    (("within", 0.03), (0.25, NAN, 0.25), "nan apart, 0.03 allowed"),
    (("within", 9), (math.inf, None, math.inf), "nan apart, 9 allowed"),
    (("ratio", 0.9, 1.1), (10.0, 13.0, 11.0), "1.1 and 0.846 times, 0.9 to 1.1 allowed"),
    (("ratio", 0.9, 1.1), (0, None, 1), "inf times, 0.9 to 1.1 allowed"),
    ("at most", (10, None, 11), "above the bound by 1"),
    ("at most", (10, 11, 9), "above the bound by 1"),
    ("at most", (10, 9, NAN), ""),
    ("true", (True, None, False), "not true"),
    ("equal", (5, None, None), "nothing to compare"),
    ("true", (None, None, None), "nothing to compare"),
]


@pytest.mark.parametrize(("rule", "values", "reason"), [(*row, None)[:3] for row in CHECKS])
def test_a_check_holds_or_says_by_how_much_it_fails(rule, values, reason):
    verdict = Check("x", *values, rule=rule).verdict
    assert verdict.holds is (reason is None), verdict
    assert not reason or verdict.why == reason
    assert str(verdict)[:2] == ("✗ " if reason is not None else "✓ ")
    unclaimed = Check("x", *values).verdict
    assert (unclaimed.holds, str(unclaimed)) == (None, "")


def test_what_cannot_be_judged_is_refused():
    for call, words in (
        (lambda: Check("x", rule="alike"), "rules are equal, .*'alike'"),
        (lambda: Comparison("empty", ()), "proves nothing"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()


def example() -> Comparison:
    return Comparison(
        "Product <script>",
        [
            Check("bytes between workers", 134217728, None, 134217728, "bytes", "equal"),
            Check("the same & another tile", 134217728, None, 134217729, "bytes", "equal", "t=64"),
            Check("idle share", 0.2727, 0.2731, np.float64(0.281), "percent", ("within", 0.03)),
            Check("crossings", 3, unit="count"),
            Check("blow-up", math.inf, measured=np.int64(3)),
        ],
    )


def test_a_comparison_counts_its_claims_and_json_holds_everything():
    table = example()
    assert (table.counts["checked"], table.counts["held"], table.ok) == (3, 2, False)
    assert [claim.quantity for claim in table.failures] == ["the same & another tile"]
    assert repr(table) == "Comparison('Product <script>': 2 of 3 claims hold)"
    without = Comparison("informs", [Check("x", 1)])
    assert (without.ok, without.summary) == (True, "no claims")
    data = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    assert (data["ok"], data["held"], data["checked"]) == (False, 2, 3)
    first, other, idle, crossings, blow_up = data["rows"]
    assert (first["measured"], first["simulated"], first["holds"]) == (134217728, None, True)
    assert (other["holds"], other["reason"], other["note"]) == (False, "differ by 1 B", "t=64")
    assert (idle["rule"], crossings["holds"]) == (["within", 0.03], None)
    assert blow_up["predicted"] == "inf"


@pytest.mark.parametrize("width", [64, 80, 100])
def test_no_line_is_too_wide_and_no_digit_is_cut(width):
    text = example().to_text(width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for part in ("134.2 MB", "134,217,728 B", "134,217,729 B", "27.3 %", "28.1 %", "✗", "—"):
        assert part in words
    assert "…" not in text
    assert "2 of 3 claims hold" in words
    page = example()._repr_html_()
    assert "Product &lt;script&gt;" in page
    assert "the same &amp; another tile\nt=64" in page


# -- claims ----------------------------------------------------------------------------------------


def test_a_product_is_refused_below_the_bytes_that_it_and_its_comparison_take(monkeypatch):
    # A and B twice, C three times: 8 B x (2 x (4 x 6 + 6 x 5) + 3 x 4 x 5)
    needed = 8 * (2 * 54 + 60)
    memory = SimpleNamespace(available=needed)
    monkeypatch.setattr("tiledask.lab.claims.psutil.virtual_memory", lambda: memory)
    made = RandomProduct.random(4, 5, 6, "float64")
    assert (made.a.shape, made.b.shape) == ((4, 6), (6, 5))
    np.testing.assert_allclose(made.c, made.a @ made.b)
    memory.available -= 1
    with pytest.raises(DoesNotFitError, match=r"take 1\.344 kB, and"):
        RandomProduct.random(4, 5, 6, "float64")
