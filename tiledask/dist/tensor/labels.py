"""Labels for what a group moves in a layer."""

from contextlib import AbstractContextManager

from tiledask.dist.ranks.group import Group

__all__ = ["labelled"]


def labelled(group: Group, *names: str) -> AbstractContextManager[None]:
    """Collectives inside the block carry the names, joined by "/", behind the labels of now."""
    return group.label("/".join(names))
