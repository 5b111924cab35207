"""A judged claim: what is claimed, whether it holds, and why: ✗ devices: 8 of 16 stay unused."""

from dataclasses import dataclass

__all__ = ["MARKS", "Judged"]

MARKS = {True: "✓", None: "", False: "✗"}


@dataclass(frozen=True)
class Judged:
    """One claim, judged."""

    claim: str
    """What it is about; empty where that stands beside it."""
    holds: bool | None
    """None: neither, or nothing can be judged, and then ``why`` gives the reason."""
    why: str = ""
    """The numbers and the formula."""

    @property
    def good(self) -> bool:
        return self.holds is True

    def __str__(self) -> str:
        claim = self.claim and f"{self.claim}:"
        return " ".join(filter(None, (MARKS[self.holds], claim, self.why)))
