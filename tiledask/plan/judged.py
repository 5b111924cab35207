"""A judged claim: what is said, whether it holds, and why.

✓ balance: the fullest of 4 stages has 6 layers        a line of a plan's critique
✗ devices: 8 of 16 stay unused
✗ 7 points apart, 3 allowed                            a row of predicted against measured
"""

from dataclasses import dataclass

__all__ = ["MARKS", "Judged"]

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

    @property
    def good(self) -> bool:
        return self.holds is True

    def __str__(self) -> str:
        claim = self.claim and f"{self.claim}:"
        return " ".join(filter(None, (MARKS[self.holds], claim, self.why)))
