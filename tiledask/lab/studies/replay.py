"""Memory, simulated: allocations one after the other under a cap."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Replay", "replay"]


class Replay(NamedTuple):
    """How far a sequence of allocations came."""

    peak: int
    """Bytes held at the fullest moment."""
    failed: int | None
    """Index of the allocation that did not fit; None if all did."""


def replay(allocations: Iterable[int], cap: int, workspace: int = 0) -> Replay:
    """The Replay of ``allocations`` (bytes, in order, all kept) on a device of ``cap`` bytes.

    ``workspace`` bytes come beside each allocation and go when it is filled.

    >>> replay([15, 15, 15], cap=40, workspace=4)
    Replay(peak=34, failed=2)
    """
    held = peak = 0
    for i, nbytes in enumerate(allocations):
        if held + nbytes + workspace > cap:
            return Replay(peak, i)
        held += nbytes
        peak = max(peak, held + workspace)
    return Replay(peak, None)
