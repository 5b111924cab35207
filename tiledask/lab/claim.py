"""One claim: a quantity predicted, simulated and measured, and the rule by which they agree.

rule                   holds if, among the columns compared,
"equal"                all values are the same, bytes to the byte
("within", d)          every two values are at most d apart
("ratio", low, high)   the last value over each earlier one lies in [low, high]
"at most"              no later value is above the first, which is the bound
"true"                 every value is True
None                   nothing is claimed; the row informs

A claim about time that fails on a machine which was busy with other things is judged later: it
neither holds nor fails. Nothing else is excused.
"""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from tiledask.errors import ConfigError
from tiledask.plan.judged import Judged
from tiledask.plan.units import format_bytes, format_percent, format_seconds
from tiledask.plan.whole import is_whole

if TYPE_CHECKING:
    from tiledask.distributed.cluster.load import Load

__all__ = ["COLUMNS", "Claim", "Value", "exact", "format_value"]

COLUMNS = ("predicted", "simulated", "measured")
RULES = {"equal": 0, "within": 1, "ratio": 2, "at most": 0, "true": 0}
"""How many limits each takes."""
SLACK = 1e-9
"""Of a limit: 0.28 - 0.25 is a little above 0.03 in floating point."""
Value = int | float | str | bool | tuple[Any, ...] | None
"""What a column holds; None where that way of knowing was not used."""


@dataclass(frozen=True)
class Claim:
    """One row of a comparison. Bytes and seconds as such; a percentage as a share of 1.

    >>> str(Claim("bytes moved", 4096, None, 4096, unit="bytes", rule="equal").verdict)
    '✓ equal to the byte'
    >>> str(Claim("idle", 0.27, 0.28, 0.34, unit="percent", rule=("within", 0.03)).verdict)
    '✗ 7 points apart, 3 allowed'
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
        for column in COLUMNS:
            object.__setattr__(self, column, _plain(getattr(self, column), self.quantity))
        if self.rule is None:
            return
        rule = (self.rule,) if isinstance(self.rule, str) else tuple(self.rule)
        object.__setattr__(self, "rule", rule)
        if RULES.get(rule[0]) != len(rule) - 1:
            raise ConfigError(
                f"{self.quantity!r}: there is no rule {rule!r}; rules are {', '.join(RULES)}, "
                f"'within' with 1 limit and 'ratio' with 2"
            )
        for value in self.compared if rule[0] != "equal" else ():
            if not (isinstance(value, bool) if rule[0] == "true" else _is_number(value)):
                kind = "True or False" if rule[0] == "true" else "numbers"
                raise ConfigError(
                    f"{self.quantity!r}: the rule {rule[0]!r} compares {kind}, got {value!r}; use "
                    f"another"
                )

    @property
    def values(self) -> tuple[Value, Value, Value]:
        return self.predicted, self.simulated, self.measured

    @property
    def compared(self) -> tuple[Any, ...]:
        """The values that the rule compares: those of its columns that are there."""
        values = (getattr(self, column) for column in self.compare)
        return tuple(value for value in values if value is not None)

    @property
    def verdict(self) -> Judged:
        """Whether the claim holds, and why. One whose values are missing does not hold."""
        if self.rule is None:
            return Judged("", None)
        assert isinstance(self.rule, tuple)  # since it was made
        name, *limits = self.rule
        if len(self.compared) < (1 if name == "true" else 2):
            return Judged("", False, "nothing to compare")
        holds, reason = _judge(name, self.compared, self.unit, tuple(limits))
        timed = self.unit in ("seconds", "percent") and name not in ("equal", "true")
        if timed and not holds and self.load is not None and self.load.is_high:
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


def _plain(value: Any, quantity: str) -> Value:
    """``value`` without NumPy's types, so that it prints and travels as JSON."""
    value = value.item() if hasattr(value, "dtype") else value
    if isinstance(value, list | tuple):
        return tuple(_plain(each, quantity) for each in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"{quantity!r}: a claim compares numbers, text, True or False, or a tuple of them; got "
        f"{type(value).__name__}; pass the number or text to be shown"
    )


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _apart(values: tuple[Any, ...]) -> float:
    """The largest distance between two of ``values``; nan if one of them is."""
    gaps = [abs(a - b) for a, b in combinations(values, 2)]
    return math.nan if any(math.isnan(gap) for gap in gaps) else max(gaps)


def _gap(distance: float, unit: str) -> str:
    return f"{100 * distance:.3g} points" if unit == "percent" else format_value(distance, unit)


def _judge(
    name: str, values: tuple[Any, ...], unit: str, limits: tuple[float, ...]
) -> tuple[bool, str]:
    """Whether the rule of that name holds, and why."""
    if name == "true":
        return all(values), "true" if all(values) else "not true"
    if name == "within":
        gap, allowed = _apart(values), limits[0]
        limit = f"{100 * allowed:.3g}" if unit == "percent" else format_value(allowed, unit)
        return gap <= allowed * (1 + SLACK), f"{_gap(gap, unit)} apart, {limit} allowed"
    if name == "ratio":
        (low, high), (*earlier, last) = limits, values
        ratios = [last / value if value else (1.0 if last == 0 else math.inf) for value in earlier]
        holds = all(low * (1 - SLACK) <= r <= high * (1 + SLACK) for r in ratios)
        text = " and ".join(f"{r:.3g}" for r in ratios)
        return holds, f"{text} times, {low:g} to {high:g} allowed"
    if name == "at most":
        bound, *later = values
        if all(value <= bound for value in later):
            share = f"{100 * max(later) / bound:.3g} % of the bound" if bound > 0 else ""
            return True, share or "within the bound"
        return False, f"above the bound by {_gap(max(later) - bound, unit)}"
    pairs = list(combinations(values, 2))
    if all(isinstance(a, bool) == isinstance(b, bool) and a == b for a, b in pairs):
        return True, "equal to the byte" if unit == "bytes" else "equal"
    if not all(map(_is_number, values)):
        return False, "differ"
    gap = _apart(values)
    return False, f"differ by {exact(gap, unit) or _gap(gap, unit)}"
