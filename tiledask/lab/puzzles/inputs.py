"""A puzzle's inputs: what JSON holds is read by name, or refused in words.

Lists may be written in full, or as text with repeats: "2, 22 x 1, 4" is 2, 22 ones and 4.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tiledask.errors import ConfigError
from tiledask.plan.data import Fields, meant
from tiledask.plan.pipelines.schedules import schedules
from tiledask.plan.units import parse_bytes
from tiledask.plan.whole import is_whole, whole_rule

__all__ = ["INPUTS", "LONGEST", "TIMES", "Reader", "number", "read_values"]

Reader = Callable[[Any], Any]
"""What JSON holds -> the value. Raises ValueError with the rule, as in "must be ... "."""

LONGEST = 1000
"""Items in a list: more than anyone reads."""
_HUGE = 1e18


def number(value: Any) -> float:
    """A finite number of 0 or more."""
    try:
        read = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        read = -1.0
    if not 0 <= read <= _HUGE:
        raise ValueError(f"must be a finite number of at least 0 and at most {_HUGE:g}")
    return read


def _whole(least: int, most: int) -> Reader:
    def read(value: Any) -> int:
        written = isinstance(value, str) and re.fullmatch(r"\d{1,9}", value)
        value = int(value) if written else value
        if not is_whole(value, least, most):
            raise ValueError(f"must be {whole_rule(least, most)}")
        return int(value)

    return read


def _size(value: Any) -> int:
    """A number of bytes, or text such as "8 GB"."""
    try:
        read = parse_bytes(value)
    except (ConfigError, OverflowError, ValueError, AttributeError, TypeError):
        read = -1
    if not 0 <= read <= _HUGE:
        raise ValueError("must be a number of bytes, or text such as '8 GB'")
    return read


def _several(one: Reader) -> Reader:
    """A list of what ``one`` reads, written in full or as text with repeats.

    >>> _several(number)("2, 3 x 1, 4.5"), _several(_size)("4 GB, 2 x 512 MB")
    ([2.0, 1.0, 1.0, 1.0, 4.5], [4000000000, 512000000, 512000000])
    """

    def read(value: Any) -> list[Any]:
        if isinstance(value, str):
            repeats = [re.fullmatch(r"(\d{1,4})\s*x\s*(.+)", w.strip()) for w in value.split(",")]
            words = zip(value.split(","), repeats, strict=True)
            each = ([r[2]] * int(r[1]) if r else [word.strip()] for word, r in words)
            value = [item for items in each for item in items]
        if not isinstance(value, list) or not 1 <= len(value) <= LONGEST:
            example = "in full or as text with repeats, as in '2, 22 x 1, 4'"
            raise ValueError(f"must be a list of 1 to {LONGEST} numbers, {example}")
        try:
            return [one(item) for item in value]
        except ValueError as error:
            raise ValueError(f"every item {error}") from None

    return read


def _one_or_several(one: Reader) -> Reader:
    def read(value: Any) -> Any:
        try:
            return one(value)
        except ValueError as error:
            try:
                return _several(one)(value)
            except ValueError as other:
                raise ValueError(f"{error}; or {other}") from None

    return read


def _choice(words: Iterable[Any]) -> Reader:
    known = tuple(words)

    def read(value: Any) -> Any:
        if value not in known:
            raise ValueError(f"must be one of {', '.join(map(str, known))}")
        return value

    return read


def _text(value: Any) -> str:
    """Words, or lines; a list of lines is joined."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be text, or a list of lines")
    return value


def _open(value: Any) -> dict[str, Any]:
    """Names that are chosen -> a list of values, or a range of whole numbers."""
    if not isinstance(value, dict) or not value or not set(value) <= set(_CHOSEN):
        example = '{"microbatches": {"from": 1, "to": 64}}'
        raise ValueError(f"must be an object such as {example}, with some of {', '.join(_CHOSEN)}")
    found: dict[str, Any] = {}
    for name, values in value.items():
        ends = values if isinstance(values, dict) else {}
        try:
            read = {key: _CHOSEN[name](end) for key, end in ends.items()}
            found[name] = read or _several(_CHOSEN[name])(values)
        except ValueError as error:
            raise ValueError(f"has a {name} that {error}") from None
        if read and (set(read) != {"from", "to"} or read["from"] > read["to"]):
            raise ValueError(f"has a range of {name} {values}: give from and to, the larger last")
    return found


TIMES = ("forward", "backward", "backward_input", "backward_weight")

_CHOSEN: dict[str, Reader] = {
    "schedule": _choice(schedules),
    "devices": _whole(1, 128),
    "microbatches": _whole(1, LONGEST),
    "chunks": _whole(1, 16),
}
INPUTS: Mapping[str, Reader] = {
    **_CHOSEN,
    **dict.fromkeys((*TIMES, "latency", "communication"), _one_or_several(number)),
    **dict.fromkeys(("costs", "speeds"), _several(number)),
    **dict.fromkeys(("memory", "weights", "activations"), _several(_size)),
    "capacity": _one_or_several(_size),
    "memory_limit": _one_or_several(_whole(1, 10_000)),
    "open": _open,
    "place": lambda value: value if value == "free" else _several(_whole(0, 15))(value),
    "rival": _choice(schedules),
    "shown": _text,
    "split": _choice((True, False)),
    "stages": _whole(1, 16),
}
"""Name in a file -> who reads it, whatever the kind of puzzle."""


def read_values(
    fields: Fields, readers: Mapping[str, Reader], needed: Iterable[str] = ()
) -> dict[str, Any]:
    """The value of every key; ConfigError for one that is missing, unknown, or refused."""
    for key in needed:
        if key not in fields.values:
            raise fields.fail(key, "is missing; add it")
    found = {}
    for key, value in fields.values.items():
        if key not in readers:
            known = f"{meant(key, readers)}known: {', '.join(sorted(readers))}"
            raise fields.fail(key, f"is not known here; {known}")
        try:
            found[key] = readers[key](value)
        except ValueError as error:
            shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
            raise fields.fail(key, f"{error}; got {shown}") from None
    return found
