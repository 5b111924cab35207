"""What people type, read as they mean it: "27.3 %", "3/11", "6 s"; commas, spaces or lines between.

parts("21 s 15 s, ...")            the words of an answer, one for each thing asked
read_number("27.3 %", SHARE)       0.273
labelled(["worker 1: 6 s", ...])   the same words, without labels and in the labels' order
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledask.errors import ConfigError, short

__all__ = ["COUNT", "SECONDS", "SHARE", "Unit", "from_0", "labelled", "parts", "read_number"]


@dataclass(frozen=True)
class Unit:
    """What may stand behind a number."""

    what: str
    """In a message: "a number of seconds"."""
    example: str
    sizes: Mapping[str, float]
    """Word behind the number -> what 1 of it is; "" for none."""
    whole: bool = False
    most: float = math.inf
    """A number without a word above this is in percent."""


_PLAIN = ("s", "sec", "secs", "second", "seconds")
_SECONDS = [f"{of}{s}" for of in ("", "device-", "worker-") for s in _PLAIN]
_COUNTED = ["microbatch", "microbatches", "micro-batch", "micro-batches"]
_COUNTED += ["activation", "activations"]
_MINUTES = {"min": 60.0, "minute": 60.0, "minutes": 60.0}
SECONDS = Unit(
    "a number of seconds",
    "6 s or 6",
    {"": 1.0, "ms": 1e-3, "h": 3600.0} | _MINUTES | dict.fromkeys(_SECONDS, 1.0),
)
SHARE = Unit("a share", "27.3 %, 3/11 or 0.273", {"": 1.0, "%": 0.01, "percent": 0.01}, most=1.0)
COUNT = Unit(
    "a whole number",
    "8",
    dict.fromkeys(("", "activation", "activations", *_COUNTED), 1.0),
    whole=True,
)

_DIGITS = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBER = re.compile(rf"(?:\w+\s*=\s*)?({_DIGITS})(?:\s*/\s*({_DIGITS}))?\s*([^\W\d_][\w-]*|%|)\.?")
_UNITS = sorted({w for u in (SECONDS, SHARE, COUNT) for w in u.sizes if w}, key=len, reverse=True)
_BEFORE_UNIT = re.compile(
    rf"(?<=\d)\s+(?=(?:{'|'.join(map(re.escape, _UNITS))})\.?(?:\s|$))", re.IGNORECASE
)


def parts(answer: Any) -> list[Any]:
    """The words of an answer: between commas, semicolons or lines, or else between spaces.

    A unit stays with its number. A dict gives "key: value" for each; a list its items.

    >>> parts("21 s 3 / 11"), parts("21 s, 27.3 %")
    (['21s', '3/11'], ['21 s', '27.3 %'])
    """
    if isinstance(answer, Mapping):
        return [f"{key}: {value}" for key, value in answer.items()]
    if not isinstance(answer, str):
        return list(answer) if isinstance(answer, Iterable) else [answer]
    if len(answer) > 10_000:
        raise ConfigError(f"an answer has at most 10,000 letters; got {len(answer):,}")
    text = answer.strip().strip(",;")
    if re.search(r"[,;\n]", text):
        return [word.strip() for word in re.split(r"[,;\n]", text)]
    text = re.sub(r"\s*([/:=])\s*", r"\1", text)
    return _BEFORE_UNIT.sub("", text).split() or [""]


def labelled(words: Sequence[Any], labels: Sequence[str], what: str) -> list[Any]:
    """``words`` without their labels, in the order of ``labels``; as they are if they have none.

    ConfigError for other labels than these; it says so where workers were counted from 0.

    >>> labelled(["worker 2: 15 s", "worker 1: 21 s"], ["1", "2"], "worker")
    ['21 s', '15 s']
    """
    digits = all(label.isdigit() for label in labels)
    label = r"(\d+)\s*[:=)]\s*" if digits else r"([A-Za-z])(?:\s*[:=)]\s*|\s+(?=[A-Za-z]{2}))"
    found = [re.fullmatch(rf"(?:(?i:{what})\s*)?{label}(\S.*)", str(word)) for word in words]
    if not any(found) or len(words) != len(labels):
        return list(words)
    named = [match[1].upper() if match else "" for match in found]
    if sorted(named) == sorted(labels):
        return [next(m[2] for m in found if m and m[1].upper() == label) for label in labels]
    if all(n.isdigit() for n in named) and sorted(str(int(n) + 1) for n in named) == sorted(labels):
        raise ConfigError(from_0(what))
    raise ConfigError(f"label each with its {what}, {', '.join(labels)}, or none; got {named}")


def from_0(what: str) -> str:
    """What to say to whoever counted from 0 where people count from 1."""
    return f"you counted {what}s from 0; here they count from 1"


def read_number(word: Any, unit: Unit, what: str = "the answer") -> float:
    """The value of one word, in seconds, as a share of 1, or as a count.

    ConfigError for anything else; it names ``what`` and gives an example.

    >>> [read_number(w, SHARE) for w in ("27.5 %", "3/12", "0.5", "50")]
    [0.275, 0.25, 0.5, 0.5]
    >>> read_number("250 ms", SECONDS), read_number("m = 8", COUNT)
    (0.25, 8.0)
    """
    wrong = ConfigError(f"{what} is {unit.what}, as in {unit.example}; got {short(word)}")
    match = _NUMBER.fullmatch(word.strip()) if isinstance(word, str) else None
    size = match[3].lower() if match else ""
    if isinstance(word, bool) or (isinstance(word, str) and not match) or size not in unit.sizes:
        raise wrong
    try:
        value = float(match[1]) / float(match[2] or 1) if match else float(word)
    except (TypeError, ValueError, ArithmeticError):
        raise wrong from None
    value *= 0.01 if not size and value > unit.most else unit.sizes[size]
    if not math.isfinite(value):
        raise ConfigError(f"{what} is a finite number; got {short(word)}")
    if unit.whole and value != round(value):
        raise wrong
    return value
