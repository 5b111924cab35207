"""Readers of a puzzle's inputs: each takes what JSON holds and gives back the value, or refuses.

Lists may be written in full, or as text with repeats: "2, 22 x 1, 4" is 2, 22 ones and 4.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from tiledask.errors import ConfigError
from tiledask.plan.units import parse_bytes
from tiledask.plan.whole import is_whole, whole_rule

__all__ = [
    "LONGEST",
    "Reader",
    "choice",
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


def _reader(rule: str, holds: Callable[[Any], bool], of: Callable[[Any], Any]) -> Reader:
    """``of`` what ``holds``."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise ValueError(f"must be {rule}")
        return of(value)

    return read


def whole(least: int, most: int) -> Reader:
    """A whole number from ``least`` to ``most``."""
    return _reader(whole_rule(least, most), lambda value: is_whole(value, least, most), int)


def number(least: float = 0.0, above: bool = False) -> Reader:
    """A finite number of at least ``least`` (or above it)."""

    def holds(value: Any) -> bool:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        return real and least <= value <= _HUGE and not (above and value == least)

    words = f"{'above' if above else 'of at least'} {least:g} and at most {_HUGE:g}"
    return _reader(f"a finite number {words}", holds, float)


def numbers(one: Reader | None = None, of_word: Callable[[str], Any] = float) -> Reader:
    """A list of numbers, written in full or as text with repeats; ``of_word``: what a word is.

    >>> numbers()("2, 3 x 1, 4.5")
    [2.0, 1.0, 1.0, 1.0, 4.5]
    """
    one = one or number()

    def read(value: Any) -> list[Any]:
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


def _words(text: str, of_word: Callable[[str], Any]) -> list[Any]:
    items: list[Any] = []
    for word in text.split(","):
        repeated = re.fullmatch(r"\s*(?:(\d{1,4})\s*x\s*)?(\S.*?)\s*", word)
        try:
            times, value = repeated.groups() if repeated else ("", word)
            items += [of_word(value)] * int(times or 1)
        except (ConfigError, ValueError):
            raise ValueError(f"has {word.strip()!r}, which is no number or repeat of one") from None
    return items


def size(value: Any) -> int:
    """A number of bytes, or text such as "8 GB"."""
    try:
        read = parse_bytes(value)
    except (ConfigError, OverflowError, ValueError, AttributeError, TypeError):
        raise ValueError("must be a number of bytes, or text such as '8 GB'") from None
    if read > _HUGE:
        raise ValueError(f"must be at most {_HUGE:g} bytes")
    return read


def sizes() -> Reader:
    """A list of bytes: numbers, or text such as "4 GB, 22 x 1 GB".

    >>> sizes()("4 GB, 2 x 512 MB")
    [4000000000, 512000000, 512000000]
    """
    return numbers(size, parse_bytes)


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


def choice(words: Iterable[str]) -> Reader:
    """One of ``words``."""
    known = tuple(words)
    return _reader(f"one of {', '.join(known)}", lambda value: value in known, str)


flag = _reader("true or false", lambda value: isinstance(value, bool), bool)
"""True or false."""


def text(value: Any) -> str:
    """Words, or lines; a list of lines is joined."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    if not isinstance(value, str) or not value.strip() or len(value) > 100_000:
        raise ValueError("must be text of 1 to 100000 characters, or a list of lines")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """One to five texts; a single one may stand alone."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not 1 <= len(items) <= 5:
        raise ValueError("must be a list of 1 to 5 texts")
    return tuple(map(text, items))
