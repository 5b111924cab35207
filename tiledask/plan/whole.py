"""What a whole number is: the one check of every count, extent, step and seed that is given.

whole_number    the value as an int, or an error with the rule, the value and a way out
is_whole        whether a value is one, where a message is about more than the number
whole_rule      the words of the rule

Python's and NumPy's integers are whole numbers. True is none, 2.0 is none, and neither is "4".
"""

import operator
from contextlib import suppress
from typing import Any, TypeGuard

from tiledask.errors import ConfigError, short

__all__ = ["MOST_COUNT", "is_whole", "whole_number", "whole_rule"]

MOST_COUNT = 10**12
"""Nobody counts further; a number of thousands of digits could not even be printed."""


def whole_number(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    *,
    of: str = "",
    way_out: str = "",
    error: type[Exception] = ConfigError,
) -> int:
    """``value`` as an int; ``error`` for what is no whole number from ``least`` to ``most``.

    ``of``: what is counted. ``way_out``: what to do where there are more than ``most``.

    >>> whole_number("steps", 4, 0)
    4
    >>> whole_number("steps", 2.5, 0)
    Traceback (most recent call last):
        ...
    tiledask.errors.ConfigError: steps must be a whole number of 0 or more, got 2.5
    >>> whole_number("dp", "4", 1)
    Traceback (most recent call last):
        ...
    tiledask.errors.ConfigError: dp must be a whole number of 1 or more, got '4'; write 4
    """
    if is_whole(value, least, most):
        return operator.index(value)
    rule = whole_rule(least)
    if most is not None and is_whole(value, least):
        rule = f"at most {most:,}"
    else:
        way_out = ""
        with suppress(ValueError, OverflowError):  # a float or a text that is one but for its type
            number = int(float(value)) if isinstance(value, str | float) else None
            meant = is_whole(number, least, most) and number == float(value) < 2**53
            way_out = f"write {number}" * meant
    rule, got = f"{rule} {of}".rstrip(), f"{short(value)}; {way_out}".rstrip("; ")
    raise error(f"{name} must be {rule}, got {got}")


def is_whole(value: Any, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Whether ``value`` is a whole number from ``least`` to ``most``; a boolean is none."""
    try:
        number = operator.index(value)
    except TypeError:
        return False
    inside = (least is None or number >= least) and (most is None or number <= most)
    return inside and not isinstance(value, bool)


def whole_rule(least: int | None = None) -> str:
    """The rule in words: 'a whole number', or 'a whole number of 1 or more'."""
    return "a whole number" + (f" of {least} or more" if least is not None else "")
