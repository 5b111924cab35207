"""A judged claim: what is said, whether it holds, why, and the way out.

✓ balance: the fullest of 4 stages has 6 layers        a line of a plan's critique
✗ devices: 8 of 16 stay unused
✗ 7 points apart, 3 allowed                            a row of predicted against measured
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tiledask.plan import html

__all__ = ["MARKS", "Judged", "judged_table"]

MARKS = {True: "✓", None: "", False: "✗"}


@dataclass(frozen=True)
class Judged:
    """One claim, judged."""

    claim: str
    """What is claimed, or what it is about; empty where that stands beside it."""
    holds: bool | None
    """None: neither, or nothing can be said now, and then ``why`` says why."""
    why: str = ""
    """The numbers and the formula."""
    way_out: str = ""
    """What would make it true; empty if it is."""

    @property
    def about(self) -> str:
        return self.claim

    @property
    def good(self) -> bool:
        return self.holds is True

    @property
    def reason(self) -> str:
        return self.why

    def __str__(self) -> str:
        claim = self.claim and f"{self.claim}:"
        return " ".join(filter(None, (MARKS[self.holds], claim, self.why, self.way_out)))


def judged_table(claims: Iterable[Judged], caption: object = "") -> str:
    """Claims as an HTML table: the verdict, the claim, and how it was worked out; all escaped.

    >>> judged_table([Judged("a < b", True, "1 < 2")])[-77:]
    "✓</td><td>a &lt; b</td><td style='text-align:left'>1 &lt; 2</td></tr></table>"
    """
    rows = [(MARKS[c.holds], c.claim, f"{c.why} {c.way_out}".rstrip()) for c in claims]
    return html.table(("", "claim", "worked out"), rows, caption, style={2: "text-align:left"})
