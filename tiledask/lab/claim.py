"""One claim: a quantity predicted, simulated and measured, and the rule by which they agree.

rule                   holds if, among the columns compared,
"equal"                all values are the same, bytes to the byte
("within", d)          every two values are at most d apart
("ratio", low, high)   the last value over each earlier one lies in [low, high]
"at most"              no later value is above the first, which is the bound
"at least"             no later value is below the first, which is the bound
"true"                 every value is True
None                   nothing is claimed; the row informs

A claim about time that fails on a machine which was busy with other things is judged later: it
neither holds nor fails. Nothing else is excused.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.judged import Judged
from tiledask.plan.units import format_bytes, format_percent, format_seconds
from tiledask.plan.whole import is_whole

if TYPE_CHECKING:
    from tiledask.distributed.cluster.load import Load

__all__ = ["COLUMNS", "MISSING", "Claim", "Value", "exact", "format_value"]

COLUMNS = ("predicted", "simulated", "measured")
MISSING = "—"

_TIMED = ("seconds", "percent")
"""Units of what a busy machine changes."""
_ROUND_OFF = 1e-9
"""Relative slack of a limit: 0.28 - 0.25 is a little above 0.03 in floating point."""

Value = int | float | str | bool | tuple | None
"""What a column holds; None where that way of knowing was not used."""


@dataclass(frozen=True)
class Claim:
    """One row of a comparison. Bytes and seconds as such; a percentage as a share of 1.

    >>> from dataclasses import replace
    >>> bytes_moved = Claim("bytes moved", 4096, None, 4096, unit="bytes", rule="equal")
    >>> str(bytes_moved.verdict), bytes_moved.shown
    ('✓ equal to the byte', ('4.096 kB', '—', '4.096 kB'))
    >>> idle = Claim("idle", 0.27, 0.28, 0.34, unit="percent", rule=("within", 0.03))
    >>> str(idle.verdict)
    '✗ 7 points apart, 3 allowed'
    >>> from tiledask.distributed.cluster.load import Load
    >>> str(replace(idle, load=Load(12.3, others=1.9, cores=2)).verdict)
    'load 12.3 on 2 cores: judged later (7 points apart, 3 allowed)'
    """

    quantity: str
    predicted: Value = None
    simulated: Value = None
    measured: Value = None
    unit: str = ""
    """"bytes", "seconds", "percent" (values are shares of 1), "count", or a unit to print."""
    rule: str | tuple | None = None
    note: str = ""
    compare: tuple[str, ...] = COLUMNS
    """The columns that the rule compares, in this order."""
    load: "Load | None" = None
    """What else the machine did while seconds or idle shares were measured, as a run says it."""

    def __post_init__(self) -> None:
        for column in COLUMNS:
            object.__setattr__(self, column, _plain(self.quantity, getattr(self, column)))
        rule = (self.rule,) if isinstance(self.rule, str) else self.rule
        object.__setattr__(self, "rule", rule if rule is None else tuple(rule))
        object.__setattr__(self, "compare", tuple(self.compare))
        _check(self)

    @property
    def values(self) -> tuple[Value, Value, Value]:
        return self.predicted, self.simulated, self.measured

    @property
    def compared(self) -> tuple[Value, ...]:
        """The values that the rule compares: those of its columns that are there."""
        values = (getattr(self, column) for column in self.compare)
        return tuple(value for value in values if value is not None)

    @property
    def shown(self) -> tuple[str, str, str]:
        """The three values as people read them."""
        return tuple(format_value(value, self.unit) for value in self.values)

    @property
    def verdict(self) -> Judged:
        """Whether the claim holds, and why. One whose values are missing does not hold."""
        if self.rule is None:
            return Judged("", None)
        name, *limits = self.rule
        if len(self.compared) < (1 if name == "true" else 2):
            return Judged("", False, "nothing to compare")
        holds, reason = _RULES[name][0](self.compared, self.unit, *limits)
        late = self.load is not None and self.load.is_high and self.unit in _TIMED
        if late and not holds and name in _DISTANCES:
            return Judged("", None, f"{self.load}: judged later ({reason})")
        return Judged("", holds, reason)


def format_value(value: Value, unit: str = "") -> str:
    """``value`` as people read it, in ``unit``.

    >>> format_value(3.2e12, "bytes"), format_value(0.275, "percent"), format_value(1771, "count")
    ('3.2 TB', '27.5 %', '1,771')
    >>> format_value(None), format_value(True), format_value((6, 6)), format_value(21.33, "FLOP/B")
    ('—', 'yes', '6, 6', '21.33 FLOP/B')
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return ", ".join(format_value(v, unit) for v in value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    if unit == "percent":
        return format_percent(value)
    return _number(value) if unit in ("", "count") else f"{_number(value)} {unit}"


def exact(value: Value, unit: str) -> str:
    """Every digit of a whole number of bytes; empty for anything else.

    >>> exact(134217728, "bytes")
    '134,217,728 B'
    """
    whole = is_whole(value) and unit == "bytes"
    return f"{value:,} B" if whole else ""


def _number(value: float) -> str:
    if is_whole(value):
        return f"{value:,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _plain(quantity: str, value: object) -> Value:
    """``value`` without NumPy's types, so that it prints and travels as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        return tuple(_plain(quantity, v) for v in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"{quantity!r}: a claim compares numbers, text, True or False, or a tuple of them; got "
        f"{type(value).__name__}; pass the number or text to be shown"
    )


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(claim: Claim) -> None:
    unknown = [column for column in claim.compare if column not in COLUMNS]
    if unknown:
        raise ConfigError(
            f"{claim.quantity!r}: there is no column {unknown[0]!r}; compare= takes some of "
            f"{', '.join(COLUMNS)}"
        )
    if claim.rule is None:
        return
    name, *limits = claim.rule
    if name not in _RULES:
        raise ConfigError(
            f"{claim.quantity!r}: there is no rule {name!r}; rules are {', '.join(_RULES)}"
        )
    takes = _RULES[name][1]
    ascend = all(map(_is_number, limits)) and all(a <= b for a, b in pairwise((0, *limits)))
    if len(limits) != takes or not ascend:
        raise ConfigError(
            f"{claim.quantity!r}: the rule {name!r} takes {takes} numbers of 0 or more that "
            f"ascend, got {limits}"
        )
    right = {"equal": lambda v: True, "true": lambda v: isinstance(v, bool)}.get(name, _is_number)
    if wrong := [v for v in claim.compared if not right(v)]:
        kind = "True or False" if name == "true" else "numbers"
        raise ConfigError(
            f"{claim.quantity!r}: the rule {name!r} compares {kind}, got {wrong[0]!r}; use another"
        )


def _apart(values: tuple) -> float:
    """The largest distance between two of ``values``; nan if one of them is."""
    gaps = [abs(a - b) for a, b in combinations(values, 2)]
    return math.nan if any(math.isnan(gap) for gap in gaps) else max(gaps)


def _gap(distance: float, unit: str) -> str:
    if unit == "percent":
        return f"{100 * distance:.3g} points"
    return format_value(distance, unit)


def _equal(values: tuple, unit: str) -> tuple[bool, str]:
    if all(
        isinstance(a, bool) == isinstance(b, bool) and a == b for a, b in combinations(values, 2)
    ):
        return True, "equal to the byte" if unit == "bytes" else "equal"
    if all(_is_number(v) for v in values):
        gap = _apart(values)
        return False, f"differ by {exact(gap, unit) or _gap(gap, unit)}"
    return False, "differ"


def _within(values: tuple, unit: str, allowed: float) -> tuple[bool, str]:
    gap = _apart(values)
    limit = f"{100 * allowed:.3g}" if unit == "percent" else format_value(allowed, unit)
    return gap <= allowed * (1 + _ROUND_OFF), f"{_gap(gap, unit)} apart, {limit} allowed"


def _ratio(values: tuple, unit: str, low: float, high: float) -> tuple[bool, str]:
    *earlier, last = values
    ratios = [last / value if value else (1.0 if last == 0 else math.inf) for value in earlier]
    text = " and ".join(f"{r:.3g}" for r in ratios)
    lowest, highest = low * (1 - _ROUND_OFF), high * (1 + _ROUND_OFF)
    holds = all(lowest <= r <= highest for r in ratios)
    return holds, f"{text} times, {low:g} to {high:g} allowed"


def _of_bound(value: float, bound: float) -> str:
    return f"{100 * value / bound:.3g} % of the bound" if bound > 0 else "within the bound"


def _at_most(values: tuple, unit: str) -> tuple[bool, str]:
    bound, *later = values
    if all(value <= bound for value in later):
        return True, _of_bound(max(later), bound)
    return False, f"above the bound by {_gap(max(later) - bound, unit)}"


def _at_least(values: tuple, unit: str) -> tuple[bool, str]:
    bound, *later = values
    if all(value >= bound for value in later):
        return True, _of_bound(min(later), bound)
    return False, f"below the bound by {_gap(bound - min(later), unit)}"


def _true(values: tuple, unit: str) -> tuple[bool, str]:
    return all(values), "true" if all(values) else "not true"


_RULES: dict[str, tuple[Callable[..., tuple[bool, str]], int]] = {
    "equal": (_equal, 0),
    "within": (_within, 1),
    "ratio": (_ratio, 2),
    "at most": (_at_most, 0),
    "at least": (_at_least, 0),
    "true": (_true, 0),
}
"""What judges, and how many limits it takes."""
_DISTANCES = ("within", "ratio", "at most", "at least")
"""Rules that compare numbers and allow for some distance; the others are no matter of time."""
