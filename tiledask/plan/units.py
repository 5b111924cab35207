"""Units, only where people read or type: inside the package everything is bytes and seconds."""

import re
from math import isqrt
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.whole import is_whole

__all__ = ["divisors", "format_bytes", "format_count", "format_percent", "format_seconds"]
__all__ += ["format_up", "parse_bytes", "parse_count"]

_SIZES: dict[str, float] = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", 1):
    _SIZES |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_MOST_BYTES = 10**24


def format_bytes(n: float) -> str:
    """``n`` bytes as text with a decimal unit: GB is 1e9 bytes.

    >>> format_bytes(3_200_000_000_000), format_bytes(512), format_bytes(-2.5e9)
    ('3.2 TB', '512 B', '-2.5 GB')
    """
    sign, n = ("-" if n < 0 else ""), abs(n)
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{sign}{n / size:.4g} {unit}"
    return f"{sign}{n:.4g} B"


def format_up(n: int) -> str:
    """``n`` bytes as `format_bytes` has them, rounded up: what is read from it is no less.

    >>> format_bytes(8_389_001), format_up(8_389_001)
    ('8.389 MB', '8.39 MB')
    """
    last = 10 ** max(0, len(str(n)) - 4)
    return format_bytes(-(-n // last) * last)


def format_seconds(s: float) -> str:
    """``s`` seconds as text in s, ms or µs: format_seconds(0.0015) is '1.5 ms'."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(s) >= 0.9995 * size:  # what would round to 1000 of the smaller unit
            return f"{s / size:.3g} {unit}"
    return f"{s:.3g} s"


def format_percent(share: float) -> str:
    """``share`` of 1 in percent: to 0.1 %, two figures of less than that."""
    form = ".2g" if 0 < abs(share) < 0.001 else ",.1f"
    return f"{100 * share:{form}} %"


_NUMBER = re.compile(r"\s*((?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:e[0-9]+)?)\s*([a-z]*)\s*")


def _parse(text: str, units: dict[str, float], rule: str) -> float:
    match = _NUMBER.fullmatch(text.lower())
    if not match or match[2] not in units or float(match[1]) > 1e30:
        raise ConfigError(f"cannot read {short(text)} as {rule}")
    return float(match[1]) * units[match[2]]


def parse_bytes(text: str | int | float) -> int:
    """Bytes from a number or from text such as "40GB" (1e9) or "40 GiB" (2**30).

    >>> parse_bytes("40GB"), parse_bytes("1 MiB"), parse_bytes(17)
    (40000000000, 1048576, 17)
    """
    size: Any = text
    if isinstance(text, str):
        rule = "a size; write a number and a unit: '40GB' (1e9 bytes each), '40GiB' (2**30 each)"
        size = _parse(text, _SIZES, rule)
    if not (isinstance(size, float) or is_whole(size)) or not 0 <= size <= _MOST_BYTES:
        raise ConfigError(f"a size is 0 to {_MOST_BYTES:.0e} bytes, got {short(text)}")
    return round(size) if isinstance(text, str) else int(size)


def parse_count(text: str) -> float:
    """A number of tokens or parameters as people write it: "15T", "300B", "1.5e12"."""
    rule = "a number of 0 or more; write 15T, 300B, 1.5e12 or 2,000"
    plain = text.replace(",", "").replace("_", "")
    return _parse(plain, {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}, rule)


def format_count(n: float) -> str:
    """``n`` in three digits, with T, B, M for 1e12, 1e9, 1e6.

    >>> format_count(15e12), format_count(10_430_000), format_count(48_600), format_count(26.49)
    ('15T', '10.4M', '48,600', '26.5')
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if n >= 0.9995 * size:
            return f"{n / size:.3g}{unit}"
    return f"{float(f'{n:.3g}'):,.0f}" if n >= 1000 else f"{n:.3g}"


def divisors(n: int, most: int | None = None) -> list[int]:
    """Whole numbers up to ``most`` that divide ``n``, in order.

    >>> divisors(12), divisors(12, most=4)
    ([1, 2, 3, 4, 6, 12], [1, 2, 3, 4])
    """
    small = [k for k in range(1, isqrt(n) + 1) if n % k == 0]
    return [k for k in sorted({*small, *(n // k for k in small)}) if most is None or k <= most]
