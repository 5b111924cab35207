"""Ranks onto hosts: along which axis of a mesh neighbours share one, and what then goes between.

    mesh (dp=1, tp=2, pp=2)         in order, 0 1 2 3      tp within a host, 0 2 1 3
    hosts A A B B                   pp  A0 A1              pp  A0 B2
                                    tp  B2 B3                  A1 B3

The heaviest axis is put within hosts first, then the next; where a host has no room for a whole
group, what is left on several makes one.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod

import numpy as np

__all__ = ["arranged", "crossings", "heaviest_first"]

HEAVY = {"tp": 0, "": 1, "pp": 2, "dp": 3}
"""Axes of a training, the one that moves most first, and between them those of other names."""


def heaviest_first(axes: int, names: Sequence[str] = ()) -> tuple[int, ...]:
    """The axes in the order in which they are put within hosts: tensor before pipeline before data;
    others come between, the last of a mesh first, as in row-major order.

    >>> heaviest_first(3, ("dp", "tp", "pp")), heaviest_first(2)
    ((1, 2, 0), (1, 0))
    """
    named = [*names, *[""] * (axes - len(names))]
    return tuple(sorted(range(axes), key=lambda axis: (HEAVY.get(named[axis], HEAVY[""]), -axis)))


def arranged(hosts: Sequence[str], shape: Sequence[int], within: Sequence[int]) -> tuple[int, ...]:
    """The slot of each rank of a mesh, row-major: along axis ``within[0]`` neighbours share a host
    wherever there are as many slots, then along ``within[1]``, and so on.

    ``hosts``: of each slot, at least as many as there are ranks. In order, slot r for rank r, where
    nothing else crosses hosts less often, axis by axis.

    >>> arranged("AABB", (1, 2, 2), (1, 2, 0)), arranged("ABBBBCCC", (2, 4), (1, 0))
    ((0, 2, 1, 3), (1, 2, 3, 4, 0, 5, 6, 7))
    """
    units = [([slot], host) for slot, host in enumerate(hosts)]
    for axis in within:
        n, whole, rest = shape[axis], [], []
        for host in dict.fromkeys(hosts):
            mine = [slots for slots, its in units if its == host]
            cut = len(mine) - len(mine) % n
            whole += [([*chain(*mine[i : i + n])], host) for i in range(0, cut, n)]
            rest += mine[cut:]
        rest += [slots for slots, host in units if not host]
        units = whole + [([*chain(*rest[i : i + n])], "") for i in range(0, len(rest) - n + 1, n)]
    outward = [*reversed(within)]
    slots = np.reshape(units[0][0], [shape[axis] for axis in outward])
    found = tuple(slots.transpose(np.argsort(outward)).ravel().tolist())

    def crossed(at: Sequence[int]) -> list[int]:
        by_axis = crossings([hosts[slot] for slot in at], shape)
        return [by_axis[axis] for axis in within]

    return min(tuple(range(prod(shape))), found, key=crossed)


def crossings(hosts: Sequence[str], shape: Sequence[int]) -> tuple[int, ...]:
    """Along each axis of a mesh, how often the next rank, of the last one the first, is on another
    host; ``hosts`` by rank.

    >>> crossings("AABB", (2, 2)), crossings("ABBA", (4,))
    ((4, 0), (2,))
    """
    at = np.reshape(np.unique([*hosts], return_inverse=True)[1], shape)
    return tuple(int((at != np.roll(at, 1, axis)).sum()) for axis in range(len(shape)))
