"""Where values enter and leave the ranks' own work.

            takes       gives       forward            backward
f           Replicate   Replicate   -                  all_reduce dx
g           Partial     Replicate   all_reduce y       -

Every rank uses the same x, each for its own columns, so dx is the sum of what they find: f's
backward must add. The y that each rank contributes to a sum moves the loss as much as the sum
does, so dy goes back unchanged: g's backward must not add. Where it does, every rank gets t dy,
and its dW is exactly t times too large. (Shoeybi et al., arXiv:1909.08053, section 3.) The layers
do f and g themselves; g is here for partial sums of one's own.
"""

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed, replicate
from tiledask.distributed.tensor.propagate import need
from tiledask.plan.products.placement import Partial

__all__ = ["g"]

TWICE = (
    "it is the same on every rank, so its sum is {0} times too large; leave the all_reduce out. "
    "If it is this rank's partial sum, say so: partial(x)"
)


def g(group: Group, y: Placed) -> Placed:
    """The sum over the ranks of the Partial ``y``, Replicate. Refuses what is no partial sum.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import partial
    >>> run_threads(lambda rank: g(rank.group(), partial(np.ones(1))).local.tolist(), 4).results
    [[4.0], [4.0], [4.0], [4.0]]
    """
    need("g (all_reduce)", "y", y, (Partial,), TWICE.format(group.size))
    return replicate(group.all_reduce(y.local) if group.size > 1 else y.local)
