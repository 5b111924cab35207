"""Numbers as people type them, and as they are shown to them."""

import math
import re

from tiledask.errors import ConfigError
from tiledask.plan.data import short
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["read_number", "show_number"]

_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_WORDS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_BYTES = {f"{prefix}b": size for prefix, size in _THOUSANDS.items()} | {
    f"{prefix}ib": 2.0 ** (10 * i) for i, prefix in enumerate("kmgtp", 1)
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_UNITS = {"B": _BYTES | {"bytes": 1.0, "byte": 1.0}, "s": _SECONDS}

_NUMBER = re.compile(
    r"(?P<sign>[-+−]?)\s*(?P<number>\d[\d,_ \u2009\u202f']*\.?\d*|\.\d+)"
    r"(?:\s*(?:e\s*(?P<e>[-+−]?\d+)|(?:\*\*|\^)\s*(?P<power>[-+−]?\d+)|/\s*(?P<below>\d+\.?\d*)))?"
    r"\s*(?P<unit>[^\d\s].*)?",
    re.IGNORECASE,
)


def read_number(text: str, unit: str = "") -> float:
    """The number that ``text`` means, in ``unit``.

    Thousands may be set apart by commas, spaces or underscores; there are powers, fractions,
    percent, words from thousand to trillion, and for bytes (B) and seconds (s) their multiples.
    A number without a unit is taken to be in ``unit``. Raises ConfigError for what is no number,
    and for another unit.

    >>> read_number("12 MB", "B"), read_number("12,000,000", "B"), read_number("12e6")
    (12000000.0, 12000000.0, 12000000.0)
    >>> read_number("3/4"), read_number("75 %"), read_number("2^30"), read_number("1.5 GiB", "B")
    (0.75, 0.75, 1073741824.0, 1610612736.0)
    >>> read_number("27", "%"), read_number("27 %", "%"), read_number("0.4 ms", "s")
    (27.0, 27.0, 0.0004)
    """
    match = _NUMBER.fullmatch(text.strip())
    number = match and re.sub(r"[^\d.]", "", match["number"])
    if not match or not number or len(text) > 100:
        raise ConfigError(
            f"a prediction is a number, got {short(text)}; write it as 12 MB, 12e6, 3/4 or 75 %"
        )
    value = float(number) * (-1 if match["sign"] in {"-", "−"} else 1)
    try:
        if match["e"]:
            value *= 10.0 ** _whole(match["e"])
        elif match["power"]:
            value **= _whole(match["power"])
        elif match["below"]:
            value /= float(match["below"])
        value *= _factor((match["unit"] or "").strip(), unit, text)
    except ArithmeticError:  # too large, or over 0
        value = math.inf
    if not math.isfinite(value):
        raise ConfigError(f"a prediction is a finite number, got {short(text)}; write another")
    return value


def _whole(digits: str) -> int:
    return max(-400, min(400, int(digits.replace("−", "-"))))


def _factor(typed: str, unit: str, text: str) -> float:
    """What one ``typed`` is in ``unit``."""
    if not typed or typed == unit:
        return 1.0
    if typed == "%":
        return 0.01
    known = _UNITS.get(unit, {})
    word, _, rest = typed.partition(" ")
    if word.lower() in _WORDS and rest in {"", unit}:
        return _WORDS[word.lower()]
    if typed.lower() in known:
        return known[typed.lower()]
    if typed.removesuffix(unit).strip().lower() in _THOUSANDS:
        return _THOUSANDS[typed.removesuffix(unit).strip().lower()]
    allowed = ", ".join(known) or unit or "none, k, M, G, T or %"
    raise ConfigError(
        f"asked for a number in {unit or 'no unit'}, got {short(typed)} in {short(text)}; "
        f"units that can be read: {allowed}"
    )


def show_number(value: float, unit: str = "") -> str:
    """``value`` with its unit as it stands in a row: whole numbers in full.

    >>> show_number(12_000_000, "B"), show_number(3_200_000_000_000, "B"), show_number(0.0015, "s")
    ('12,000,000 B', '3.2 TB', '1.5 ms')
    >>> show_number(217.5, "s")
    '217.5 s'
    >>> show_number(0.27273), show_number(27.3, "%"), show_number(4)
    ('0.2727', '27.3 %', '4')
    """
    if unit == "s":
        return f"{value:.4g} s" if abs(value) >= 1 else format_seconds(value)
    if unit == "B" and (abs(value) >= 1e9 or value != round(value)):
        return format_bytes(value)
    whole = value == round(value) and abs(value) < 1e15
    shown = f"{round(value):,}" if whole else f"{value:.4g}"
    return f"{shown} {unit}".rstrip()
