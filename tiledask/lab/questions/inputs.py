"""Inputs of a question: numbers as people type them, 3B, 40GB, 25GB/s, 50%, 2k, by their unit.

"24"  "2k"  "3B"          a number            "0.1"  "100ms"           seconds
"40GB"  "40GiB"           bytes               "25GB/s"  "200Gb/s"      bytes/s
"13"  "13B"  "1.5T"       billions            "24"  "24%"              percent
"1, 2 x 3"                a list of them
"""

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.units import format_bytes, format_count, parse_bytes, parse_count
from tiledask.plan.whole import is_whole, whole_rule

__all__ = ["Input"]

UNITS: dict[str, dict[str, str]] = {
    "billions": {"": "1", "m": "1e-3", "b": "1", "t": "1e3"},
    "bytes/s": {"": "1", "MB/s": "1e6", "GB/s": "1e9", "TB/s": "1e12", "Mb/s": "125e3"}
    | {"Gb/s": "125e6", "Tb/s": "125e9"},
    "bytes": {},
    "seconds": {"": "1", "s": "1", "ms": "1e-3", "us": "1e-6"},
    "percent": {"": "1", "%": "1"},
    "": {"": "1", "k": "1e3", "m": "1e6", "b": "1e9", "g": "1e9", "t": "1e12", "%": "0.01"},
}
"""Unit -> what may stand behind a number, and what it is worth. An input's unit is the first that
its meaning names; bytes have their own reader."""
MOST, LONGEST = 1e18, 1000
"""Of any number, and of the items of a list: more than anyone means."""
_NUMBER = r"(?<![\w.])((?:\d{1,30}\.?\d{0,30}|\.\d{1,30})(?:e[+-]?\d{1,2})?)\s*"


@dataclass(frozen=True)
class Input:
    """One of a question's numbers or words; its default's type says which."""

    meaning: str
    """What it is, with its unit."""
    least: float | None = None
    """Of a number; None: whole ones are 1 or more, others above 0."""
    most: float = 10**6
    """Of a whole number; others go up to MOST unless it is given."""
    run: float = math.inf
    """The most with which the question is run; the working takes more."""
    choices: tuple[Any, ...] = ()
    """The only values there are, where there are few."""
    check: Callable[[str], str] | None = None
    """A reader of words; raises ValueError with the rule, as in "must be ..."."""
    default: Any = None

    @property
    def unit(self) -> str:
        return next(unit for unit in UNITS if unit in self.meaning)

    def value(self, name: str, *given: Any) -> Any:
        """What is ``given``, or the default, as the question takes it: a value, or text as it is
        typed in a command.

        >>> Input("layers", default=24).value("layers", "2k")
        2000
        >>> Input("costs", default=[1.0]).value("costs", "1, 2 x 3")
        [1.0, 3.0, 3.0]
        >>> Input("bytes of memory", default=24 * 10**9).value("memory", "40GB")
        40000000000
        """
        typed = given[0] if given else self.default
        value = typed
        if isinstance(typed, str) and not isinstance(self.default, str) and self.unit != "bytes":
            value = _in_unit(typed, self.unit)
            with suppress(ValueError):
                value = json.loads(value)
        try:
            return self.read(value)
        except ValueError as error:
            raise ConfigError(
                f"{name} {error}; got {short(typed)}. It is: {self.meaning}"
            ) from None

    def read(self, value: Any) -> Any:
        """The value, checked; ValueError with the rule, as in "must be ..."."""
        if self.choices:
            if not any(value == each and type(value) is type(each) for each in self.choices):
                raise ValueError(f"must be one of {', '.join(map(str, self.choices))}")
            return value
        if isinstance(self.default, str):
            if not isinstance(value, str) or self.check is None:
                raise ValueError(f"must be text, such as {self.default}")
            return self.check(value)
        if isinstance(self.default, list | tuple):
            return self._many(value)
        return self._number(value)

    def _number(self, value: Any) -> float:
        if self.unit == "bytes":
            try:
                value = parse_bytes(value)
            except (ConfigError, OverflowError, ValueError, AttributeError, TypeError):
                raise ValueError("must be a number of bytes, or text such as '8 GB'") from None
            if value > MOST:
                raise ValueError(f"must be at most {MOST:g} bytes")
            return int(value)
        if isinstance(self.default, int):
            limits = 1 if self.least is None else int(self.least), int(self.most)
            if not is_whole(value, *limits):
                raise ValueError(f"must be {whole_rule(*limits)}")
            return int(value)
        least, above = self.least or 0.0, self.least is None
        most = MOST if self.most == Input.most else self.most
        rule = f"must be a finite number {'above' if above else 'of at least'} {least:g}"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (above and value == least):
            raise ValueError(f"{rule} and at most {most:g}")
        return float(value)

    def _many(self, value: Any) -> list[float]:
        """A list of numbers, in full or as text with repeats."""
        if isinstance(value, str):
            words = [re.fullmatch(r"\s*(?:(\d{1,4})\s*x\s*)?(\S+)\s*", w) for w in value.split(",")]
            with suppress(ValueError, TypeError):
                value = [float(w[2]) for w in words for _ in range(int(w[1] or 1))]  # type: ignore[index]
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = [value]
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= LONGEST:
            raise ValueError(
                f"must be a list of 1 to {LONGEST} numbers, in full or as text with repeats, as "
                f"in '2, 22 x 1, 4'"
            )
        one = Input(self.meaning, 0.0, default=0.0)
        return [one._number(item) for item in value]

    def shown(self, value: Any) -> str:
        """A value as people read it: "40 GB", "0.3, 0.1".

        >>> rate = Input("bytes/s between nodes", default=25e9)
        >>> rate.shown(25e9), rate.typed(25e9), Input("bytes", default=0).typed(4 * 10**10)
        ('25 GB/s', '25GB/s', '40GB')
        """
        if isinstance(value, list | tuple):
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
    worth = UNITS[unit]
    endings = "|".join(map(re.escape, sorted(worth, key=len, reverse=True)))

    def plain(found: re.Match[str]) -> str:
        ending = found[2] if found[2] in worth else found[2].lower()
        if ending not in worth:  # gb/s: of bytes and of bits the one that the input is in
            ending = next(each for each in worth if each.lower() == ending)
        number = Fraction(found[1]) * Fraction(worth[ending])
        return str(number.numerator) if number.denominator == 1 else repr(float(number))

    return re.sub(rf"{_NUMBER}({endings})(?![\w/%.])", plain, text, flags=re.IGNORECASE)
