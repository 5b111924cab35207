"""A text of small sums told as tales, drawn from a grammar whose entropy is known.

    Ida has 7 apples. She gives 2 of them to Otto. Now Ida has 5 apples.

Who, what and how many are drawn; she or he, one apple or two apples, and what is left follow. So
the best loss there is can be said beforehand: -log p of all that was drawn, per character. No
model gets below it on tales that it has not seen.
"""

import math
from collections.abc import Sequence
from typing import Any

from tiledask.tile.layers.rng import key, positions, uniforms

__all__ = ["tales"]

SHE = ("Ida", "Mia", "Anna", "Clara", "Ruth", "Nora")
HE = ("Otto", "Ben", "Paul", "Emil", "Karl", "Tom")
THINGS = ("apple", "book", "stone", "lamp", "coin", "ribbon", "button", "kite")
PLACES = ("in a box", "on the table", "under the bed", "by the door", "in the garden")
DRAWS = 8
"""Numbers set aside for each tale."""


class _Dice:
    """Choices, and how improbable they were."""

    def __init__(self, seed: int, tale: int) -> None:
        self.numbers = iter(uniforms(key(seed, "tales", tale), positions((DRAWS,))).tolist())
        self.nats = 0.0

    def one_of(self, choices: Sequence[Any]) -> Any:
        self.nats += math.log(len(choices))
        return choices[int(next(self.numbers) * len(choices))]


def tales(count: int, seed: int = 0) -> tuple[str, float]:
    """(text, nats): ``count`` tales, a line each, and -log of their probability.

    >>> text, nats = tales(2)
    >>> print(text, end="")
    Clara finds 2 kites in the garden and 4 more by the door. Now Clara has 6 kites.
    Ida has a stone, Paul has an apple. They swap. Now Ida has an apple and Paul has a stone.
    >>> round(nats / len(text), 3)  # log(3 12 8 8 5 7 4) + log(3 12 11 8 7)
    0.133
    """
    lines, nats = [], 0.0
    for i in range(count):
        dice = _Dice(seed, i)
        lines.append(dice.one_of((_gift, _find, _swap))(dice))
        nats += dice.nats
    return "".join(f"{line}\n" for line in lines), nats


def _gift(dice: _Dice) -> str:
    who, what, n = dice.one_of(SHE + HE), dice.one_of(THINGS), dice.one_of(range(2, 10))
    other = dice.one_of([name for name in SHE + HE if name != who])
    given, pronoun = dice.one_of(range(1, n)), "She" if who in SHE else "He"
    return (
        f"{who} has {_many(n, what)}. {pronoun} gives {given} of them to {other}. "
        f"Now {who} has {_many(n - given, what)}."
    )


def _find(dice: _Dice) -> str:
    who, what, n = dice.one_of(SHE + HE), dice.one_of(THINGS), dice.one_of(range(1, 9))
    where = dice.one_of(PLACES)
    more, there = dice.one_of(range(1, 10 - n)), dice.one_of([p for p in PLACES if p != where])
    return (
        f"{who} finds {_many(n, what)} {where} and {more} more {there}. "
        f"Now {who} has {_many(n + more, what)}."
    )


def _swap(dice: _Dice) -> str:
    who = dice.one_of(SHE + HE)
    other = dice.one_of([name for name in SHE + HE if name != who])
    mine = dice.one_of(THINGS)
    theirs = dice.one_of([thing for thing in THINGS if thing != mine])
    return (
        f"{who} has {_a(mine)}, {other} has {_a(theirs)}. They swap. "
        f"Now {who} has {_a(theirs)} and {other} has {_a(mine)}."
    )


def _many(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def _a(thing: str) -> str:
    return f"an {thing}" if thing[0] in "aeiou" else f"a {thing}"
