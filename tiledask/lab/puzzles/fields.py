"""Readers of a puzzle's inputs: each takes what JSON holds and gives back the value, or refuses.

Lists may be written in full, or as text with repeats: "2, 22 x 1, 4" is 2, 22 ones and 4.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from tiledask.errors import ConfigError
from tiledask.plan.units import parse_bytes
from tiledask.plan.whole import is_whole, whole_rule

__all__ = [
    "LONGEST",
    "Reader",
    "choice",
    "counts",
    "either",
    "flag",
    "number",
    "numbers",
    "size",
    "sizes",
    "text",
    "texts",
    "whole",
]

Reader = Callable[[Any], Any]
"""What JSON holds -> the value. Raises ValueError with the rule, as in "must be ... "."""

LONGEST = 1000
"""Items in a list: more than anyone reads."""
_HUGE = 1e18


def whole(least: int, most: int) -> Reader:
    """A whole number from ``least`` to ``most``."""

    def read(value: Any) -> int:
        if not is_whole(value, least, most):
            raise ValueError(f"must be {whole_rule(least, most)}")
        return int(value)

    return read


def number(least: float = 0.0, above: bool = False) -> Reader:
    """A finite number of at least ``least`` (or above it)."""

    def read(value: Any) -> float:
        rule = f"must be a finite number {'above' if above else 'of at least'} {least:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(rule)
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(rule) from None
        if not math.isfinite(value) or value > _HUGE or value < least or (above and value == least):
            raise ValueError(f"{rule} and at most {_HUGE:g}")
        return value

    return read


def numbers(one: Reader | None = None) -> Reader:
    """A list of numbers, written in full or as text with repeats.

    >>> numbers()("2, 3 x 1, 4.5")
    [2.0, 1.0, 1.0, 1.0, 4.5]
    """
    return _many(one or number(), float)


def sizes() -> Reader:
    """A list of bytes: numbers, or text such as "4 GB, 22 x 1 GB".

    >>> sizes()("4 GB, 2 x 512 MB")
    [4000000000, 512000000, 512000000]
    """
    return _many(size, parse_bytes)


def counts(value: Any) -> list[int]:
    """A list of whole numbers from 1 on."""
    return _many(whole(1, 10_000), int)(value)


def size(value: Any) -> int:
    """A number of bytes, or text such as "8 GB"."""
    try:
        value = parse_bytes(value)
    except (ConfigError, OverflowError, ValueError, AttributeError, TypeError):
        raise ValueError("must be a number of bytes, or text such as '8 GB'") from None
    if value > _HUGE:
        raise ValueError(f"must be at most {_HUGE:g} bytes")
    return value


def _many(one: Reader, of_word: Callable[[str], Any]) -> Reader:
    def read(value: Any) -> list:
        if isinstance(value, str):
            value = _words(value, of_word)
        if not isinstance(value, list) or not 1 <= len(value) <= LONGEST:
            raise ValueError(
                f"must be a list of 1 to {LONGEST} numbers, in full or as text with repeats, "
                f"as in '2, 22 x 1, 4'"
            )
        try:
            return [one(item) for item in value]
        except ValueError as error:
            raise ValueError(f"every item {error}") from None

    return read


def _words(text: str, of_word: Callable[[str], Any]) -> list:
    items: list = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(?:(\d{1,4})\s*x\s*)?(\S.*?)\s*", word)
        try:
            times, value = int(match[1] or 1), of_word(match[2])
        except (TypeError, ConfigError, ValueError):
            raise ValueError(f"has {word.strip()!r}, which is no number or repeat of one") from None
        items += [value] * times
    return items


def either(*readers: Reader) -> Reader:
    """What the first of ``readers`` takes that takes it."""

    def read(value: Any) -> Any:
        rules = []
        for reader in readers:
            try:
                return reader(value)
            except ValueError as error:
                rules.append(str(error))
        raise ValueError("; or ".join(rules))

    return read


def choice(words: Sequence[str]) -> Reader:
    """One of ``words``."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return value

    return read


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def text(value: Any) -> str:
    """Words, or lines; a list of lines is joined."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    if not isinstance(value, str) or not value.strip() or len(value) > 100_000:
        raise ValueError("must be text of 1 to 100000 characters, or a list of lines")
    return value


def texts(value: Any) -> list[str]:
    """One to five texts; a single one may stand alone."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not 1 <= len(items) <= 5:
        raise ValueError("must be a list of 1 to 5 texts")
    return [text(item) for item in items]
