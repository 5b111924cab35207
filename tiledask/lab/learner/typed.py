"""Numbers as people type them, and as they are shown to them: a sum in figures, and a unit."""

import ast
import math
import operator
import re
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["read_number", "show_number"]

_PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_WORDS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_UNITS = {
    "B": {"B": 1.0}
    | {f"{prefix}B": size for prefix, size in _PREFIXES.items()}
    | {f"{prefix}iB": 2.0 ** (10 * i) for i, prefix in enumerate("KMGTP", 1)},
    "s": {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
}
"""As they are written; read in small letters too."""
_ALSO = {"us": "µs", "byte": "b", "bytes": "b", "second": "s", "seconds": "s"}
_ALSO |= {"minute": "min", "minutes": "min", "hour": "h", "hours": "h"}
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


def read_number(text: str, unit: str = "", question: str = "") -> float:
    """The number that ``text`` means, in ``unit``.

    Groups of three digits may be set apart by commas or spaces; there are sums, products, powers,
    fractions, percent, words from thousand to trillion, and for bytes (B) and seconds (s) their
    multiples. A number without a unit is taken to be in ``unit``; without one what is counted may
    be named as in the ``question``. Raises ConfigError for what is no number, and for another unit.

    >>> read_number("12 MB", "B"), read_number("12,000,000", "B"), read_number("12e6")
    (12000000.0, 12000000.0, 12000000.0)
    >>> read_number("3/4"), read_number("75 %"), read_number("2^30"), read_number("1.5 GiB", "B")
    (0.75, 0.75, 1073741824.0, 1610612736.0)
    >>> read_number("2 x 4 x 8 kB", "B"), read_number("2 minutes", "s"), read_number("27 %", "%")
    (64000.0, 120.0, 27.0)
    >>> read_number("1.8 B"), read_number("4x"), read_number("50 GPUs", question="GPUs that fit")
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
        how = "write it as 12 MB, 12e6, 3/4, 2*4*8 or 75 %"
        if re.fullmatch(r"[^,.]*\d,\d[^,.]*", text):
            how = f"a decimal has a point: {text.strip().replace(',', '.')}?"
        elif re.search(r"\d,\d", text):
            how = "commas stand between groups of three digits: 12,000,000"
        raise ConfigError(f"a prediction is a number, got {short(text)}; {how}") from None
    value *= _factor(named.strip(), unit, text, question)
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


def _factor(typed: str, unit: str, text: str, question: str) -> float:
    """What one ``typed`` is in ``unit``."""
    if typed in ("", unit):
        return 1.0
    known = {"%": 0.01} | _WORDS | {name.lower(): 1.0 for name in [unit] if name}
    if unit != "s":  # "5 m" of seconds are no million
        known |= {prefix.lower(): size for prefix, size in _PREFIXES.items()}
    known |= {name.lower(): size for name, size in _UNITS.get(unit, {}).items()}
    name = _ALSO.get(typed.lower(), typed.lower())
    if not unit:
        words = re.findall(r"\w{2,}", question.lower())
        known |= {"b": 1e9, "x": 1.0, "times": 1.0}
        known |= {word: 1.0 for each in words for word in (each, each.removesuffix("s"))}
        known |= {f"{word}s": 1.0 for word in words}
        name = typed.lower()
    first, _, rest = name.partition(" ")
    if first in _WORDS and _ALSO.get(rest, rest) == unit.lower():
        name = first
    if name in known:
        return known[name]
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
