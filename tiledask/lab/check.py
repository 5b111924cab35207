"""Checks: a quantity predicted, simulated and measured, and the rule by which they agree.

rule                   holds if, among the values compared that are there,
"equal"                all are the same, bytes to the byte
("within", d)          every two are at most d apart
("ratio", low, high)   the last over each earlier one lies in [low, high]
"at most"              no later one is above the first, which is the bound
"true"                 every one is True
None                   nothing is claimed; the row informs

A `Comparison` is the table of several.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from tiledask.errors import ConfigError
from tiledask.plan.tables import Judged, Part, Printable, Table, Value, format_value
from tiledask.plan.whole import is_whole

__all__ = ["COLUMNS", "Check", "Comparison"]

COLUMNS = ("predicted", "simulated", "measured")
SLACK = 1e-9
"""Of a limit: 0.28 - 0.25 is a little above 0.03 in floating point."""


@dataclass(frozen=True)
class Check:
    """One row of a comparison. Bytes and seconds as such; a percentage as a share of 1.

    >>> str(Check("bytes moved", 4096, None, 4096, unit="bytes", rule="equal").verdict)
    '✓ equal to the byte'
    >>> str(Check("idle", 0.27, 0.28, 0.34, unit="percent", rule=("within", 0.03)).verdict)
    '✗ 7 points apart, 3 allowed'
    """

    quantity: str
    predicted: Value = None
    simulated: Value = None
    measured: Value = None
    unit: str = ""
    """"bytes", "seconds", "percent" (values are shares of 1), "count", or a unit to print."""
    rule: Any = None
    """Its name; where it has limits a tuple of name and limits."""
    note: str = ""
    compare: tuple[str, ...] = COLUMNS
    """The columns that the rule compares, in this order."""

    def __post_init__(self) -> None:
        for column in COLUMNS:
            object.__setattr__(self, column, _plain(getattr(self, column)))
        if isinstance(self.rule, str):
            object.__setattr__(self, "rule", (self.rule,))
        if self.rule and self.rule[0] not in RULES:
            raise ConfigError(f"{self.quantity!r}: rules are {', '.join(RULES)}; got {self.rule}")

    @property
    def verdict(self) -> Judged:
        """Whether the check holds, and why. One whose values are missing does not hold."""
        if self.rule is None:
            return Judged("", None)
        name, *limits = self.rule
        values = [v for v in (getattr(self, c) for c in self.compare) if v is not None]
        if len(values) < (1 if name == "true" else 2):
            return Judged("", False, "nothing to compare")
        holds, reason = RULES[name](values, self.unit, *limits)
        return Judged("", holds, reason)


def _plain(value: Any) -> Value:
    """``value`` without NumPy's types, so that it prints and travels as JSON."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    plain: Value = value.item() if hasattr(value, "dtype") else value
    return plain


# -- the rules: (values, unit, limits) -> whether it holds, and why --------------------------------

Values = Sequence[Any]


def _apart(values: Values) -> float:
    """The largest distance between two of ``values``; nan if one of them is."""
    gaps = [abs(a - b) for a, b in combinations(values, 2)]
    return math.nan if any(math.isnan(gap) for gap in gaps) else max(gaps)


def _gap(gap: float, unit: str) -> str:
    return f"{round(100 * gap, 1):g} points" if unit == "percent" else format_value(gap, unit)


def _equal(values: Values, unit: str) -> tuple[bool, str]:
    kinds = {type(value) for value in values}
    if (len(kinds) == 1 or bool not in kinds) and all(value == values[0] for value in values):
        return True, "equal to the byte" if unit == "bytes" else "equal"
    if not kinds <= {int, float}:
        return False, "differ"
    gap = _apart(values)
    return False, f"differ by {_digits(gap, unit) or _gap(gap, unit)}"


def _within(values: Values, unit: str, allowed: float) -> tuple[bool, str]:
    gap = _apart(values)
    limit = f"{100 * allowed:.3g}" if unit == "percent" else format_value(allowed, unit)
    return gap <= allowed * (1 + SLACK), f"{_gap(gap, unit)} apart, {limit} allowed"


def _ratio(values: Values, _: str, low: float, high: float) -> tuple[bool, str]:
    *earlier, last = values
    ratios = [last / value if value else (1.0 if last == 0 else math.inf) for value in earlier]
    holds = all(low * (1 - SLACK) <= r <= high * (1 + SLACK) for r in ratios)
    return holds, f"{' and '.join(f'{r:.3g}' for r in ratios)} times, {low:g} to {high:g} allowed"


def _at_most(values: Values, unit: str) -> tuple[bool, str]:
    bound, *later = values
    if not all(value <= bound for value in later):
        return False, f"above the bound by {_gap(max(later) - bound, unit)}"
    share = f"{100 * max(later) / bound:.3g} % of the bound" if bound > 0 else ""
    return True, share or "within the bound"


RULES: dict[str, Callable[..., tuple[bool, str]]] = {
    "equal": _equal,
    "within": _within,
    "ratio": _ratio,
    "at most": _at_most,
    "true": lambda values, _: (all(values), "true" if all(values) else "not true"),
}


def _digits(value: Value, unit: str) -> str:
    """Every digit of a whole number of bytes; empty for anything else."""
    return f"{value:,} B" if is_whole(value) and unit == "bytes" else ""


def _json(value: Value) -> Any:
    if isinstance(value, tuple):
        return [_json(v) for v in value]
    # JSON has no words for infinity and not-a-number
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# -- several ---------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Comparison(Printable):
    """Checks under one title: a table for each part of a story.

    >>> table = Comparison("Idle time", (
    ...     Check("2 workers", 0.5, 0.5, 0.51, unit="percent", rule=("within", 0.03)),
    ...     Check("4 workers", 0.75, 0.75, 0.81, unit="percent", rule=("within", 0.03))))
    >>> table, table.ok, table.failures[0].quantity
    (Comparison('Idle time': 1 of 2 claims hold), False, '4 workers')
    """

    title: str
    rows: Sequence[Check]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        if not self.rows:
            raise ConfigError(f"{self.title!r} has no Check in its rows, and so proves nothing")

    @classmethod
    def of(
        cls,
        title: str,
        values: Mapping[str, Sequence[Value]],
        unit: str = "",
        rule: str | tuple[Any, ...] | None = None,
    ) -> "Comparison":
        """The table of checks by one rule: quantity -> its predicted, simulated and measured value.

        >>> Comparison.of("Idle time", {"2 workers": (0.5, 0.5, 0.51)}, "percent", ("within", 0.03))
        Comparison('Idle time': 1 of 1 claims hold)
        """
        rows = [Check(name, p, s, m, unit, rule) for name, (p, s, m) in values.items()]
        return cls(title, rows)

    @cached_property
    def verdicts(self) -> tuple[Judged, ...]:
        return tuple(row.verdict for row in self.rows)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many checks hold, and how many claim something."""
        ends = [verdict.holds for verdict in self.verdicts if verdict.why]
        return {"held": ends.count(True), "checked": len(ends)}

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(row for row in self.rows if row.verdict.holds is False)

    @property
    def ok(self) -> bool:
        """Whether no check fails."""
        return not self.failures

    @property
    def summary(self) -> str:
        """ "3 of 4 claims hold"."""
        held, checked = self.counts.values()
        return f"{held} of {checked} claims hold" if checked else "no claims"

    def to_dict(self) -> dict[str, Any]:
        """Everything in the table as JSON can hold it; raw values in bytes, seconds and shares."""
        rows = []
        for row, verdict in zip(self.rows, self.verdicts, strict=True):
            facts: dict[str, Any] = {"quantity": row.quantity}
            facts |= {column: _json(getattr(row, column)) for column in COLUMNS}
            facts |= {"unit": row.unit, "rule": None if row.rule is None else list(row.rule)}
            facts |= {"compare": list(row.compare), "note": row.note}
            rows.append(facts | {"holds": verdict.holds, "reason": verdict.why})
        return {"title": self.title, "ok": self.ok, **self.counts, "rows": rows}

    @property
    def table(self) -> Table:
        """A row for each check, a note and every digit of bytes below it."""
        rows = []
        for row, verdict in zip(self.rows, self.verdicts, strict=True):
            values = [getattr(row, column) for column in COLUMNS]
            cells = [row.quantity, *(format_value(v, row.unit) for v in values), str(verdict)]
            below = [row.note, "", "", "", ""]
            if row.rule == ("equal",):
                digits = [_digits(value, row.unit) for value in values]
                below[1:] = ["", "", "", max(digits)] if verdict.holds else [*digits, ""]
            rows.append([f"{a}\n{b}".rstrip() for a, b in zip(cells, below, strict=True)])
        return Table(("", *COLUMNS, "verdict"), rows, self.title, (0, 4), below=self.summary)

    def printed(self) -> Iterator[Part]:
        yield self.table

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"Comparison({self.title!r}: {self.summary})"
