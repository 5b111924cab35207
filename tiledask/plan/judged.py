"""A judged claim: what is claimed, whether it holds, and why: ✗ devices: 8 of 16 stay unused."""

from dataclasses import dataclass

__all__ = ["MARKS", "Judged"]

MARKS = {True: "✓", None: "", False: "✗"}


@dataclass(frozen=True)
class Judged:
    """One claim, judged; ``holds`` is None where nothing can be judged, and ``why`` says why."""

    claim: str
    holds: bool | None
    why: str = ""

    @property
    def good(self) -> bool:
        return self.holds is True

    def __str__(self) -> str:
        claim = self.claim and f"{self.claim}:"
        return " ".join(filter(None, (MARKS[self.holds], claim, self.why)))
