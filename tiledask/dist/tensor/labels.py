"""Labels for what a group moves, and groups of only some of its ranks.

A layer is given a group, not the rank that owns it; these two things need the rank.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from tiledask.dist.ranks.group import Group

__all__ = ["among", "labelled"]


def labelled(group: Group, *names: str) -> AbstractContextManager[None]:
    """Collectives inside the block carry the names, joined by "/", behind the labels of now."""
    return group._owner.label("/".join(names))


def among(group: Group, numbers: Sequence[int]) -> Group:
    """The group of these of its ranks, this one included; the group itself for all of them.

    >>> from tiledask.dist.ranks.threads import run_threads
    >>> def odd_or_even(rank):
    ...     mine = among(rank.group(), [r for r in range(5) if r % 2 == rank.index % 2])
    ...     return mine.all_reduce(rank.index).item()
    >>> run_threads(odd_or_even, 5).results
    [6, 4, 6, 4, 6]
    """
    members = tuple(group.members[i] for i in numbers)
    return group if members == group.members else Group(group._owner, group.axes, members)
