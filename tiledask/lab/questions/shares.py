"""Shares of what does not divide, and counts, in words: 2 or 3 of 10 columns each; 1 GPU."""

from collections.abc import Sequence

from tiledask.plan.ledger import Ledger
from tiledask.plan.units import format_bytes

__all__ = ["count", "each", "held", "listed", "some"]


def each(shares: Sequence[int]) -> str:
    """How much each has.

    >>> each([3, 3, 2, 2]), each([16, 16]), each((2, 1, 4))
    ('2 or 3', '16', '1 to 4')
    """
    least, most = min(shares), max(shares)
    return str(most) if least == most else f"{least} {'or' if most == least + 1 else 'to'} {most}"


def listed(shares: Sequence[int]) -> str:
    """All of them, where they differ and are few.

    >>> listed([3, 3, 2, 2]), listed([16] * 4), listed([3] * 8 + [2] * 8)
    ('3, 3, 2, 2', '16 each', '2 or 3 each')
    """
    few = len({*shares}) > 1 and len(shares) <= 8
    return ", ".join(map(str, shares)) if few else f"{each(shares)} each"


def count(n: int, what: str) -> str:
    """``n`` of them.

    >>> count(1, "GPU"), count(5952380, "column")
    ('1 GPU', '5,952,380 columns')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"


def some(names: Sequence[str], between: str = ", ", most: int = 6) -> str:
    """All of them, or the first and the last of many.

    >>> some(["a", "b"]), some([str(n) for n in range(1, 10)])
    ('a, b', '1, 2, 3, ..., 9')
    """
    return between.join(names if len(names) <= most else [*names[:3], "...", names[-1]])


def held(ledger: Ledger) -> str:
    """What the fullest place holds, the largest first."""
    place, moment, _ = ledger.binding
    found = sorted(ledger.by_tensor(place, moment).items(), key=lambda row: -row[1])
    words = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in found if nbytes)
    return words.replace("runtime", "runtime (8 MiB + 2 %)")
