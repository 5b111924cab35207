"""Numbers as people type them, with a unit, and as they are shown.

read_number("2 x 4 MB", "B")       8000000.0
show_number(12_000_000, "B")       "12,000,000 B"
parts("21 s 15 s, ...")            the words of an answer, one for each thing asked
"""

import ast
import math
import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiledask.errors import ConfigError, short
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["UNITS", "Unit", "parts", "read_number", "show_number"]


class Unit(NamedTuple):
    """What may stand behind a number."""

    what: str
    """In a message: "a number of seconds"."""
    example: str
    sizes: Mapping[str, float]
    """Word behind the number -> what 1 of it is; "" for none."""
    many: Mapping[str, float] = {}
    """Words that multiply, with or without one of those sizes behind them."""


MANY = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15}
MANY |= {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_BYTES = {f"{p}b": 1e3**n for n, p in enumerate(["", *"kmgtp"])}
_BYTES |= {f"{p}ib": 2.0 ** (10 * n) for n, p in enumerate("kmgtp", 1)} | {"byte": 1, "bytes": 1}
_SECONDS = {"": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9}
_SECONDS |= dict.fromkeys(("h", "hour", "hours"), 3600.0)
_SECONDS |= dict.fromkeys(("min", "minute", "minutes"), 60.0)
_PLAIN = [of + s for of in ("", "device-", "worker-") for s in ("s", "sec", "second", "seconds")]
_SECONDS |= dict.fromkeys(_PLAIN, 1.0)
_COUNTED = [f"{what}{s}" for what in ("activation", "microbatch", "micro-batch") for s in ("", "s")]
_COUNTED += ["microbatches", "micro-batches"]
_RATES = {"mb/s": 1e6, "gb/s": 1e9, "tb/s": 1e12, "Mb/s": 125e3, "Gb/s": 125e6, "Tb/s": 125e9}
UNITS = {
    "B": Unit("a number of bytes", "12 MB, 12,000,000 or 1.5 GiB", {"": 1.0} | _BYTES, MANY),
    "s": Unit("a number of seconds", "6 s or 6", _SECONDS),
    "%": Unit("a number of percent", "27 %", {"": 1.0, "%": 1.0}),
    "share": Unit("a share", "27.3 %, 3/11 or 0.273", {"": 1.0, "%": 0.01, "percent": 0.01}),
    "count": Unit("a whole number", "8", dict.fromkeys(("", *_COUNTED), 1.0)),
    "B/s": Unit("a number of bytes a second", "25 GB/s or 200 Gb/s", {"": 1.0} | _RATES),
    "billions": Unit("a number of billions", "7 or 7B", {"": 1.0, "m": 1e-3, "b": 1.0, "t": 1e3}),
    "": Unit("a number", "12e6, 12 million, 3/4, 2*4*8 or 75 %", {"": 1.0, "%": 0.01}, MANY),
}
"""Of a "share" a number above 1 without a unit is in percent; only "Gb/s" are bits."""

_NUMBER = re.compile(
    r"(?:[A-Za-z]\w*\s*=\s*)?"
    r"((?:[-+−\d.,*×·^/()\s]|[xX](?=\s*[\d.])|(?<=[\d.])[eE](?=[-+−]?\d))*)(.*?)\.?",
    re.DOTALL,
)
_GROUPS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d,])")
_SUMS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def read_number(given: Any, unit: str = "", what: str = "a prediction") -> float:
    """The number that ``given``, text or a number, means in ``unit``: one of `UNITS` or another.

    Groups of three digits may be set apart by commas or spaces; there are sums, products, powers
    and fractions, and the unit's multiples. A number without a unit is taken to be in ``unit``;
    where there is none, what is counted may be named. Raises ConfigError, which names ``what``, for
    what is no number, and for another unit.

    >>> read_number("12 MB", "B"), read_number("2 x 4 x 8 kB", "B"), read_number("1.5 GiB", "B")
    (12000000.0, 64000.0, 1610612736.0)
    >>> read_number("3/4"), read_number("75 %"), read_number("2^30"), read_number("27 %", "%")
    (0.75, 0.75, 1073741824.0, 27.0)
    >>> read_number("1.8 B"), read_number("4x"), read_number("50 GPUs"), read_number("m = 8")
    (1800000000.0, 4.0, 50.0, 8.0)
    >>> [read_number(word, "share") for word in ("27.5 %", "3/12", "0.5", "50")]
    [0.275, 0.25, 0.5, 0.5]
    """
    known = UNITS.get(unit) or Unit(f"a number in {unit}", "12e6", {"": 1.0, unit.lower(): 1}, MANY)
    wrong = f"{what} is {known.what}, as in {known.example}; got {short(given)}"
    text = str(given).strip()
    figures, named = _NUMBER.fullmatch(text).groups()  # type: ignore[union-attr]
    value = math.inf
    if named.strip() and re.search(r"\d *[-+−]", re.sub(r"\(.*\)", "0", figures)):
        raise ConfigError("a unit stands behind a sum in brackets, as in (3 + 4) MB")
    try:
        if not isinstance(given, bool) and len(text) <= 100:
            value = _sum(figures) * _size(named.strip(), unit, known)
    except ArithmeticError:  # too large, or over 0
        pass
    except (SyntaxError, LookupError, TypeError, ValueError, RecursionError, MemoryError):
        words = f"; units that can be read: {', '.join(filter(None, known.sizes))}"
        raise ConfigError(wrong + words * (len(known.sizes) > 1)) from None
    if unit == "share" and value > 1 and not named:
        value *= 0.01
    if not math.isfinite(value) or (unit == "count" and value != round(value)):
        raise ConfigError(wrong)
    return value


def _sum(figures: str) -> float:
    """What a sum of numbers comes to."""
    bare = _GROUPS.sub(lambda group: re.sub("[, ]", "", group[0]), figures.strip())
    for mark, sign in {"−": "-", "×": "*", "·": "*", "x": "*", "X": "*", "^": "**"}.items():
        bare = bare.replace(mark, sign)
    return _value(ast.parse(bare, mode="eval").body)


def _value(node: ast.AST) -> float:
    """Of a sum of numbers; KeyError or TypeError for anything else."""
    if isinstance(node, ast.BinOp):
        return float(_SUMS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.UnaryOp):
        return float(_SUMS[type(node.op)](_value(node.operand)))
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    raise TypeError


def _size(named: str, unit: str, known: Unit) -> float:
    """What one ``named`` is; KeyError for what is no such unit."""
    if named in known.sizes:
        return known.sizes[named]
    lower, times = named.lower(), 1.0
    first, _, rest = lower.partition(" ")
    if lower not in known.sizes and first in known.many:
        times, lower = known.many[first], rest
    # a plain number may say what is counted, but not in which unit
    counted = not unit and lower not in _BYTES | _SECONDS and re.fullmatch("[a-z -]*", lower)
    return times * (1.0 if counted else known.sizes[lower])


def show_number(value: float, unit: str = "") -> str:
    """``value`` with its unit as it stands in a row: whole numbers in full.

    >>> show_number(12_000_000, "B"), show_number(3_200_000_000_000, "B"), show_number(0.0015, "s")
    ('12,000,000 B', '3.2 TB', '1.5 ms')
    >>> show_number(217.5, "s"), show_number(0.27273), show_number(27.3, "%"), show_number(4)
    ('217.5 s', '0.2727', '27.3 %', '4')
    """
    if unit == "s":
        return f"{value:.4g} s" if abs(value) >= 1 else format_seconds(value)
    if unit == "B" and (abs(value) >= 1e9 or value != round(value)):
        return format_bytes(value)
    whole = value == round(value) and abs(value) < 1e15
    shown = f"{round(value):,}" if whole else f"{value:.4g}"
    return f"{shown} {unit}".rstrip()


# -- answers of several words ----------------------------------------------------------------------

_BEHIND = sorted({*_SECONDS, *UNITS["share"].sizes, *_COUNTED} - {""}, key=len, reverse=True)
_BEFORE_UNIT = re.compile(rf"(?i)(?<=\d)\s+(?=(?:{'|'.join(map(re.escape, _BEHIND))})\.?(?:\s|$))")


def parts(text: str) -> list[str]:
    """The words of an answer: between commas, semicolons or lines, or else between spaces. A unit
    stays with its number.

    >>> parts("21 s 3 / 11"), parts("21 s, 27.3 %")
    (['21s', '3/11'], ['21 s', '27.3 %'])
    """
    if len(text) > 10_000:
        raise ConfigError(f"an answer has at most 10,000 letters; got {len(text):,}")
    text = text.strip().strip(",;")
    if re.search(r"[,;\n]", text):
        return [word.strip() for word in re.split(r"[,;\n]", text)]
    text = re.sub(r"\s*([/:=])\s*", r"\1", text)
    return _BEFORE_UNIT.sub("", text).split() or [""]
