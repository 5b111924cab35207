"""A published number beside ours, and groups of them with a goal."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from tiledask.plan.data import shipped_json

__all__ = ["PublishedRow", "PublishedSource", "published"]


@cache
def published(name: str = "plan") -> dict[str, dict[str, Any]]:
    """The cases of data/published/NAME.json by their id."""
    return {case["id"]: case for case in shipped_json("published", f"{name}.json")}


@dataclass(frozen=True)
class PublishedRow:
    """One published number and what tiledask says instead."""

    case: str
    quantity: str
    published: float
    ours: float
    unit: str = ""
    allowed: float | None = None
    """Largest difference that still counts as equal: half a unit of the last printed digit, 0 for
    an integer. None for what was measured: there the error counts."""
    calibration: bool = False
    """The constants of the model were fitted to it, among others."""
    note: str = ""

    @property
    def error(self) -> float:
        """Relative: ours / published - 1."""
        if self.published == 0:
            return 0.0 if self.ours == 0 else float("inf")
        return self.ours / self.published - 1

    @property
    def exact(self) -> bool | None:
        """Whether it is reproduced to the digits that are printed; None for a measurement."""
        if self.allowed is None:
            return None
        return abs(self.ours - self.published) <= self.allowed


@dataclass(frozen=True)
class PublishedSource:
    """Rows of one source, and what is to be reached on them."""

    name: str
    rows: tuple[PublishedRow, ...]
    mean: float | None = None
    """Largest mean error, relative; None: every row to its printed digits."""
    worst: float | None = None
    remark: str = ""
    """What a reader of the errors must know."""

    @classmethod
    def of(cls, name: str, rows: Iterable[PublishedRow], **more: Any) -> "PublishedSource":
        return cls(name, tuple(rows), **more)

    def part(self, calibration: bool) -> tuple[PublishedRow, ...]:
        """The rows that were fitted, or those that check."""
        return tuple(row for row in self.rows if row.calibration == calibration)

    @cached_property
    def errors(self) -> tuple[float, float]:
        """(mean, worst) absolute error of all rows, relative."""
        sizes = [abs(row.error) for row in self.rows]
        return statistics.mean(sizes), max(sizes)

    @property
    def signed(self) -> str:
        """The mean error with its sign; nothing where rows are exact or not."""
        if self.mean is None:
            return ""
        return f"{100 * statistics.mean(row.error for row in self.rows):+.1f} %"

    @property
    def goal(self) -> str:
        if self.mean is None:
            return "every row to its printed digits"
        if self.mean == float("inf"):
            return "none, reported"
        worst = "" if self.worst is None else f", worst <= {100 * self.worst:.0f} %"
        return f"mean error <= {100 * self.mean:g} %{worst}"

    @property
    def met(self) -> bool:
        if self.mean is None:
            return all(row.exact for row in self.rows)
        mean, worst = self.errors
        return mean <= self.mean and (self.worst is None or worst <= self.worst)

    @property
    def reached(self) -> str:
        if self.mean is None:
            return f"{sum(bool(row.exact) for row in self.rows)} of {len(self.rows)}"
        mean, worst = self.errors
        return f"mean {100 * mean:.1f} %, worst {100 * worst:.1f} % ({len(self.rows)} rows)"
