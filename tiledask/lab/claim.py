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
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.judged import Judged
from tiledask.plan.units import format_bytes, format_percent, format_seconds
from tiledask.plan.whole import is_whole

if TYPE_CHECKING:
    from tiledask.distributed.cluster.load import Load

__all__ = ["COLUMNS", "Claim", "Value", "exact", "format_value"]

COLUMNS = ("predicted", "simulated", "measured")
TIMED = ("seconds", "percent")
"""Units of what a busy machine changes."""
SLACK = 1e-9
"""Of a limit: 0.28 - 0.25 is a little above 0.03 in floating point."""

Value = int | float | str | bool | tuple[Any, ...] | None
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
    rule: str | tuple[Any, ...] | None = None
    note: str = ""
    compare: tuple[str, ...] = COLUMNS
    """The columns that the rule compares, in this order."""
    load: "Load | None" = None
    """What else the machine did while seconds or idle shares were measured, as a run says it."""

    def __post_init__(self) -> None:
        try:
            for column in COLUMNS:
                object.__setattr__(self, column, _plain(getattr(self, column)))
            if self.rule is not None:
                rule = (self.rule,) if isinstance(self.rule, str) else tuple(self.rule)
                object.__setattr__(self, "rule", rule)
                _check(rule, self.compared)
            object.__setattr__(self, "compare", tuple(self.compare))
        except ConfigError as error:
            raise ConfigError(f"{self.quantity!r}: {error}") from None

    @property
    def values(self) -> tuple[Value, Value, Value]:
        return self.predicted, self.simulated, self.measured

    @property
    def compared(self) -> tuple[Any, ...]:
        """The values that the rule compares: those of its columns that are there."""
        values = (getattr(self, column) for column in self.compare)
        return tuple(value for value in values if value is not None)

    @property
    def shown(self) -> tuple[str, ...]:
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
        holds, reason = RULES[name][0](self.compared, self.unit, *limits)
        late = self.load is not None and self.load.is_high and self.unit in TIMED
        if late and not holds and name not in ("equal", "true"):
            return Judged("", None, f"{self.load}: judged later ({reason})")
        return Judged("", holds, reason)


def format_value(value: Value, unit: str = "") -> str:
    """``value`` as people read it, in ``unit``.

    >>> format_value(3.2e12, "bytes"), format_value(0.275, "percent"), format_value(1771, "count")
    ('3.2 TB', '27.5 %', '1,771')
    >>> format_value(None), format_value(True), format_value((6, 6)), format_value(21.33, "FLOP/B")
    ('—', 'yes', '6, 6', '21.33 FLOP/B')
    """
    if value is None or isinstance(value, bool):
        return {None: "—", True: "yes", False: "no"}[value]
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return ", ".join(format_value(v, unit) for v in value)
    known = {"bytes": format_bytes, "seconds": format_seconds, "percent": format_percent}
    if unit in known:
        return known[unit](value)
    form = "," if is_whole(value) else ",.0f" if 1000 <= abs(value) < 1e15 else ".4g"
    number = f"{value:{form}}"
    return number if unit in ("", "count") else f"{number} {unit}"


def exact(value: Value, unit: str) -> str:
    """Every digit of a whole number of bytes; empty for anything else.

    >>> exact(134217728, "bytes")
    '134,217,728 B'
    """
    return f"{value:,} B" if is_whole(value) and unit == "bytes" else ""


def _plain(value: Any) -> Value:
    """``value`` without NumPy's types, so that it prints and travels as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"a claim compares numbers, text, True or False, or a tuple of them; got "
        f"{type(value).__name__}; pass the number or text to be shown"
    )


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(rule: tuple[Any, ...], compared: tuple[Any, ...]) -> None:
    name, *limits = rule
    if name not in RULES:
        raise ConfigError(f"there is no rule {name!r}; rules are {', '.join(RULES)}")
    takes = RULES[name][1]
    ascend = all(map(_is_number, limits)) and all(a <= b for a, b in pairwise((0, *limits)))
    if len(limits) != takes or not ascend:
        raise ConfigError(
            f"the rule {name!r} takes {takes} numbers of 0 or more that ascend, got {limits}"
        )
    for value in compared if name != "equal" else ():
        if not (isinstance(value, bool) if name == "true" else _is_number(value)):
            kind = "True or False" if name == "true" else "numbers"
            raise ConfigError(f"the rule {name!r} compares {kind}, got {value!r}; use another")


def _apart(values: tuple[Any, ...]) -> float:
    """The largest distance between two of ``values``; nan if one of them is."""
    gaps = [abs(a - b) for a, b in combinations(values, 2)]
    return math.nan if any(math.isnan(gap) for gap in gaps) else max(gaps)


def _gap(distance: float, unit: str) -> str:
    return f"{100 * distance:.3g} points" if unit == "percent" else format_value(distance, unit)


def _equal(values: tuple[Any, ...], unit: str) -> tuple[bool, str]:
    pairs = list(combinations(values, 2))
    if all(isinstance(a, bool) == isinstance(b, bool) and a == b for a, b in pairs):
        return True, "equal to the byte" if unit == "bytes" else "equal"
    if all(map(_is_number, values)):
        gap = _apart(values)
        return False, f"differ by {exact(gap, unit) or _gap(gap, unit)}"
    return False, "differ"


def _within(values: tuple[Any, ...], unit: str, allowed: float) -> tuple[bool, str]:
    gap = _apart(values)
    limit = f"{100 * allowed:.3g}" if unit == "percent" else format_value(allowed, unit)
    return gap <= allowed * (1 + SLACK), f"{_gap(gap, unit)} apart, {limit} allowed"


def _ratio(values: tuple[Any, ...], unit: str, low: float, high: float) -> tuple[bool, str]:
    *earlier, last = values
    ratios = [last / value if value else (1.0 if last == 0 else math.inf) for value in earlier]
    holds = all(low * (1 - SLACK) <= r <= high * (1 + SLACK) for r in ratios)
    text = " and ".join(f"{r:.3g}" for r in ratios)
    return holds, f"{text} times, {low:g} to {high:g} allowed"


def _bounded(values: tuple[Any, ...], unit: str, sign: int) -> tuple[bool, str]:
    """By the first value: from above where ``sign`` is 1, from below where it is -1."""
    bound, *later = values
    farthest = max(later) if sign > 0 else min(later)
    if all(sign * value <= sign * bound for value in later):
        of = f"{100 * farthest / bound:.3g} % of the bound" if bound > 0 else "within the bound"
        return True, of
    side = "above" if sign > 0 else "below"
    return False, f"{side} the bound by {_gap(sign * (farthest - bound), unit)}"


def _true(values: tuple[Any, ...], unit: str) -> tuple[bool, str]:
    return all(values), "true" if all(values) else "not true"


RULES: dict[str, tuple[Callable[..., tuple[bool, str]], int]] = {
    "equal": (_equal, 0),
    "within": (_within, 1),
    "ratio": (_ratio, 2),
    "at most": (lambda values, unit: _bounded(values, unit, 1), 0),
    "at least": (lambda values, unit: _bounded(values, unit, -1), 0),
    "true": (_true, 0),
}
"""What judges, and how many limits it takes."""
