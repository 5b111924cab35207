"""Numbers as people type them, and as they are shown to them: a sum in figures, and a unit."""

import ast
import math
import operator
import re
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["read_number", "show_number"]

_LETTERS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15}
_WORDS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_BYTES = {"b": 1.0, "byte": 1.0, "bytes": 1.0}
for _at, _prefix in enumerate("kmgtp", 1):
    _BYTES |= {f"{_prefix}b": 10.0 ** (3 * _at), f"{_prefix}ib": 2.0 ** (10 * _at)}
_SECONDS = dict.fromkeys(("s", "second", "seconds"), 1.0) | {"ms": 1e-3, "µs": 1e-6, "us": 1e-6}
_SECONDS |= {"ns": 1e-9} | dict.fromkeys(("min", "minute", "minutes"), 60.0)
_SECONDS |= dict.fromkeys(("h", "hour", "hours"), 3600.0)
_UNITS = {"B": _BYTES, "s": _SECONDS}
_NUMBER = re.compile(
    r"((?:[-+−\d.,*×·^/()\s]|[xX](?=\s*[\d.])|(?<=[\d.])[eE](?=[-+−]?\d))*)(.*)", re.DOTALL
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


def read_number(text: str, unit: str = "") -> float:
    """The number that ``text`` means, in ``unit``.

    Groups of three digits may be set apart by commas or spaces; there are sums, products, powers,
    fractions, percent, words from thousand to trillion, and for bytes (B) and seconds (s) their
    multiples. A number without a unit is taken to be in ``unit``; where there is none, what is
    counted may be named. Raises ConfigError for what is no number, and for another unit.

    >>> read_number("12 MB", "B"), read_number("12,000,000", "B"), read_number("12e6")
    (12000000.0, 12000000.0, 12000000.0)
    >>> read_number("3/4"), read_number("75 %"), read_number("2^30"), read_number("1.5 GiB", "B")
    (0.75, 0.75, 1073741824.0, 1610612736.0)
    >>> read_number("2 x 4 x 8 kB", "B"), read_number("2 minutes", "s"), read_number("27 %", "%")
    (64000.0, 120.0, 27.0)
    >>> read_number("1.8 B"), read_number("4x"), read_number("50 GPUs")
    (1800000000.0, 4.0, 50.0)
    """
    written, named = _NUMBER.fullmatch(text.strip()).groups()  # type: ignore[union-attr]
    bare = _GROUPS.sub(lambda group: re.sub("[, ]", "", group[0]), written.strip())
    for mark, sign in {"−": "-", "×": "*", "·": "*", "x": "*", "X": "*", "^": "**"}.items():
        bare = bare.replace(mark, sign)
    value = math.inf
    try:
        if len(text) <= 100:
            value = _value(ast.parse(bare, mode="eval").body)
    except ArithmeticError:  # too large, or over 0
        pass
    except (SyntaxError, KeyError, TypeError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            f"a prediction is a number, got {short(text)}; write it as 12 MB, 12,000,000, 1.5, "
            f"12e6, 3/4, 2*4*8 or 75 %"
        ) from None
    value *= _factor(named.strip().lower(), unit, text)
    if not math.isfinite(value):
        raise ConfigError(f"a prediction is a finite number, got {short(text)}; write another")
    return value


def _value(node: ast.AST) -> float:
    """Of a sum of numbers; KeyError or TypeError for anything else."""
    if isinstance(node, ast.BinOp):
        return float(_SUMS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.UnaryOp):
        return float(_SUMS[type(node.op)](_value(node.operand)))
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    raise TypeError


def _factor(typed: str, unit: str, text: str) -> float:
    """What one ``typed`` is in ``unit``."""
    known = {"": 1.0, "%": 0.01, unit.lower(): 1.0} | _UNITS.get(unit, {})
    many = _WORDS if unit == "s" else _LETTERS | _WORDS  # "5 m" of seconds are no million
    times, (first, _, rest) = 1.0, typed.partition(" ")
    if typed not in known and first in many:
        times, typed = many[first], rest
    # a plain number may say what is counted, but not in which unit
    named = not unit and typed not in _BYTES | _SECONDS and not re.search(r"[^a-z -]", typed)
    if typed in known or named:
        return times * known.get(typed, 1.0)
    wanted = f"number in {unit}" if unit else "plain number"
    units = ", ".join(_UNITS.get(unit, ())) or unit or "none, k, M, B (billion), T, x or %"
    raise ConfigError(f"asked for a {wanted}, got {short(text)}; units that can be read: {units}")


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
