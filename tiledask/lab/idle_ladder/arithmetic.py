"""Sums as people write them: "3 + 5 + 2 = 10"."""

from collections.abc import Iterable, Sequence

__all__ = ["listed", "num", "plus", "total"]


def num(value: float) -> str:
    """A number with as many digits as it needs, six at most.

    >>> num(3.0), num(0.25), num(2 / 3)
    ('3', '0.25', '0.666667')
    """
    return f"{value:.6g}"


def plus(values: Iterable[float]) -> str:
    """The sum, written out.

    >>> plus([3, 5, 2])
    '3 + 5 + 2'
    """
    return " + ".join(map(num, values))


def total(values: Sequence[float]) -> str:
    """The sum and what it makes.

    >>> total([3, 5, 2]), total([3])
    ('3 + 5 + 2 = 10', '3')
    """
    return f"{plus(values)} = {num(sum(values))}" if len(values) > 1 else plus(values) or "0"


def listed(values: Iterable[object]) -> str:
    """Values in a sentence.

    >>> listed([3, 5, 2])
    '3, 5 and 2'
    """
    words = [num(v) if isinstance(v, int | float) else str(v) for v in values]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
