"""Numbers as people type them, and as they are shown to them."""

import math
import re

from tiledask.errors import ConfigError, short
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["read_number", "show_number"]

_THOUSANDS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_WORDS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_BYTES = {f"{prefix}B": size for prefix, size in _THOUSANDS.items()} | {
    f"{prefix}iB": 2.0 ** (10 * i) for i, prefix in enumerate("KMGTP", 1)
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_UNITS = {"B": _BYTES, "s": _SECONDS}
"""As they are written; read in small letters too."""
_ALSO = {"us": "µs", "byte": "B", "bytes": "B", "second": "s", "seconds": "s", "minute": "min"}
_ALSO |= {"minutes": "min", "hour": "h", "hours": "h"}

_GROUPS = "|".join(
    rf"\d{{1,3}}(?:{mark}\d{{3}})+(?!\d)" for mark in (",", "_", "'", r"[ \u2009\u202f]")
)
_TERM = (
    rf"(?:(?:{_GROUPS}|\d+)(?:\.\d*)?|\.\d+)"
    r"(?:\s*e\s*[-+−]?\d+|\s*(?:\*\*|\^)\s*[-+−]?\d+)?"
)
_NUMBER = re.compile(
    rf"(?P<sign>[-+−]?)\s*(?P<product>{_TERM}(?:\s*[*x×·]\s*{_TERM})*)"
    r"(?:\s*/\s*(?P<below>\d+(?:\.\d*)?))?\s*(?P<unit>[^\d\s.,_'].*)?",
    re.IGNORECASE,
)


def read_number(text: str, unit: str = "", question: str = "") -> float:
    """The number that ``text`` means, in ``unit``.

    Groups of three digits may be set apart by commas, spaces, underscores or apostrophes; there
    are powers, products, fractions, percent, words from thousand to trillion, and for bytes (B)
    and seconds (s) their multiples.
    A number without a unit is taken to be in ``unit``; without one what is counted may be named as
    in the ``question``. Raises ConfigError for what is no number, and for another unit.

    >>> read_number("12 MB", "B"), read_number("12,000,000", "B"), read_number("12e6")
    (12000000.0, 12000000.0, 12000000.0)
    >>> read_number("3/4"), read_number("75 %"), read_number("2^30"), read_number("1.5 GiB", "B")
    (0.75, 0.75, 1073741824.0, 1610612736.0)
    >>> read_number("12*32768"), read_number("2 x 4 x 8 kB", "B"), read_number("2 minutes", "s")
    (393216.0, 64000.0, 120.0)
    >>> read_number("1.8 B"), read_number("4x"), read_number("50 GPUs", question="GPUs that fit")
    (1800000000.0, 4.0, 50.0)
    >>> read_number("27", "%"), read_number("27 %", "%"), read_number("0.4 ms", "s")
    (27.0, 27.0, 0.0004)
    """
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= 100 else None
    if not match:
        how = "write it as 12 MB, 12e6, 3/4, 2*4*8 or 75 %"
        if re.fullmatch(r"[^,.]*\d,\d[^,.]*", text):
            how = f"a decimal has a point: {text.strip().replace(',', '.')}?"
        elif re.search(r"\d[,_']\d", text):
            how = "commas stand between groups of three digits: 12,000,000"
        raise ConfigError(f"a prediction is a number, got {short(text)}; {how}")
    value = -1.0 if match["sign"] in {"-", "−"} else 1.0
    try:
        for term in re.split(r"(?<!\*)\*(?!\*)|[x×·]", match["product"].lower()):
            number, sign, power = re.fullmatch(r"([^e*^]+)(e|\*\*|\^|)(.*)", term).groups()
            number = float(re.sub(r"[^\d.]", "", number))
            if sign == "e":
                value *= number * 10.0 ** _whole(power)
            else:
                value *= number ** _whole(power or "1")
        value /= float(match["below"] or 1)
        value *= _factor((match["unit"] or "").strip(), unit, text, question)
    except ArithmeticError:  # too large, or over 0
        value = math.inf
    if not math.isfinite(value):
        raise ConfigError(f"a prediction is a finite number, got {short(text)}; write another")
    return value


def _whole(digits: str) -> int:
    return max(-400, min(400, int(digits.replace("−", "-").replace(" ", ""))))


def _factor(typed: str, unit: str, text: str, question: str) -> float:
    """What one ``typed`` is in ``unit``."""
    if not typed or typed == unit:
        return 1.0
    if typed == "%":
        return 0.01
    known = {name.lower(): size for name, size in _UNITS.get(unit, {}).items()}
    word, _, rest = typed.lower().partition(" ")
    if word in _WORDS and _ALSO.get(rest, rest) in {"", unit, unit.lower()}:
        return _WORDS[word]
    name = _ALSO.get(typed.lower(), typed).lower()
    if name in known:
        return known[name]
    thousands = {prefix.lower(): size for prefix, size in _THOUSANDS.items()}
    if not unit:
        asked = {each.removesuffix("s") for each in re.findall(r"\w{2,}", question.lower())}
        if typed.lower() in {"x", "times"} or typed.lower().removesuffix("s") in asked:
            return 1.0
        thousands["b"] = 1e9
    prefix = typed.removesuffix(unit).strip().lower()
    if unit != "s" and prefix in thousands:  # "5 m" of seconds are no million
        return thousands[prefix]
    allowed = ", ".join(_UNITS.get(unit, ())) or unit or "none, k, M, B (billion), T, x or %"
    wanted = f"number in {unit}" if unit else "plain number"
    raise ConfigError(
        f"asked for a {wanted}, got {short(typed)} in {short(text)}; "
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
