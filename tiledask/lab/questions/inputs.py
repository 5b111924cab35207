"""Inputs of a question: numbers as people type them, 3B, 40GB, 25GB/s, 50%, 2k, by their unit.

"24"  "2k"  "3B"          a number            "0.1"  "100ms"           seconds
"40GB"  "40GiB"           bytes               "25GB/s"  "200Gb/s"      bytes/s
"13"  "13B"  "1.5T"       billions            "24"  "24%"              percent
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.puzzles.fields import Reader, size
from tiledask.plan.units import format_bytes, format_count, parse_bytes, parse_count

__all__ = ["Input"]

UNITS: dict[str, dict[str, str]] = {
    "billions": {"": "1", "m": "1e-3", "b": "1", "t": "1e3"},
    "bytes/s": {"": "1", "MB/s": "1e6", "GB/s": "1e9", "TB/s": "1e12", "Mb/s": "125e3"}
    | {"Gb/s": "125e6", "Tb/s": "125e9"},
    "seconds": {"": "1", "s": "1", "ms": "1e-3", "us": "1e-6"},
    "percent": {"": "1", "%": "1"},
    "": {"": "1", "k": "1e3", "m": "1e6", "b": "1e9", "g": "1e9", "t": "1e12", "%": "0.01"},
}
"""Unit -> what may stand behind a number, and what it is worth. An input's unit is the first that
its meaning names."""
_NUMBER = r"(?<![\w.])((?:\d{1,30}\.?\d{0,30}|\.\d{1,30})(?:e[+-]?\d{1,2})?)\s*"


@dataclass(frozen=True)
class Input:
    """One of a question's numbers or words."""

    default: Any
    read: Reader
    """What JSON holds -> the value; raises ValueError with the rule, as in "must be ..."."""
    meaning: str
    """What it is, with its unit."""

    @property
    def unit(self) -> str:
        """One of UNITS, or "bytes"."""
        is_size = self.read is size
        return "bytes" if is_size else next(unit for unit in UNITS if unit in self.meaning)

    def value(self, name: str, *given: Any) -> Any:
        """What is ``given``, or the default, as the question takes it: a value, or text as it is
        typed in a command.

        >>> from tiledask.lab.puzzles.fields import numbers, size, whole
        >>> Input(24, whole(1, 5000), "layers").value("layers", "2k")
        2000
        >>> Input([1], numbers(), "costs").value("costs", "1, 2 x 3")
        [1.0, 3.0, 3.0]
        >>> Input(24 * 10**9, size, "memory").value("memory", "40GB")
        40000000000
        """
        typed = given[0] if given else self.default
        value = list(typed) if isinstance(typed, tuple) else typed
        if isinstance(typed, str):
            value = _in_unit(typed, self.unit)
            with suppress(ValueError):
                value = json.loads(value)
        for tried in (value, typed):
            try:
                return self.read(tried)
            except ValueError as error:
                rule = str(error)
        raise ConfigError(f"{name} {rule}; got {short(typed)}. It is: {self.meaning}")

    def shown(self, value: Any) -> str:
        """A value as people read it: "40 GB", "0.3, 0.1".

        >>> from tiledask.lab.puzzles.fields import number, size
        >>> rate = Input(25e9, number(), "bytes/s between nodes")
        >>> rate.shown(25e9), rate.typed(25e9), Input(0, size, "memory").typed(4 * 10**10)
        ('25 GB/s', '25GB/s', '40GB')
        """
        if isinstance(value, list):
            return ", ".join(map(self.shown, value))
        if self.unit == "bytes" and parse_bytes(format_bytes(value)) == value:
            return format_bytes(value)
        if self.unit == "bytes/s" and parse_bytes(format_bytes(value)) == value:
            return f"{format_bytes(value)}/s"
        if not isinstance(value, float):
            return str(value)
        big = value >= 1e6 and parse_count(format_count(value)) == value
        return format_count(value) if big else f"{value:.12g}"

    def typed(self, value: Any) -> str:
        """The same as it can be typed behind --set: "40GB", "0.3,0.1"."""
        return self.shown(value) if isinstance(value, str) else self.shown(value).replace(" ", "")


def _in_unit(text: str, unit: str) -> str:
    """``text`` with every number of it as a plain one: "2k" as "2000"."""
    if unit == "bytes":
        return text
    worth = UNITS[unit]
    endings = "|".join(map(re.escape, sorted(worth, key=len, reverse=True)))

    def plain(found: re.Match) -> str:
        ending = found[2] if found[2] in worth else found[2].lower()
        if ending not in worth:  # gb/s: of bytes and of bits the one that the input is in
            ending = next(each for each in worth if each.lower() == ending)
        number = Fraction(found[1]) * Fraction(worth[ending])
        return str(number.numerator) if number.denominator == 1 else repr(float(number))

    return re.sub(rf"{_NUMBER}({endings})(?![\w/%.])", plain, text, flags=re.IGNORECASE)
