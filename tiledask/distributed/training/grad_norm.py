"""What a step is checked for before it is taken: the norm of all gradients, over all ranks.

    each rank      squares of the numbers that no rank before it has
    all_reduce     8 bytes: the same norm everywhere
    not finite     the step is left out on every rank, and the loss scale falls
    above clip     every gradient times clip / norm

What several ranks hold (a norm's weights on tensor ranks, a kv head that is shared, a tied table
on two stages) is counted once; `tiledask.tile.optimizers` has the rules.
"""

import math
from typing import Any

import numpy as np

from tiledask.tile.optimizers import LossScale, clip_factor

__all__ = ["Guard", "squares"]


class Guard:
    """Decides, alike on all ranks, by what gradients are multiplied and whether a step is taken."""

    def __init__(self, scale: LossScale | None, clip: float | None) -> None:
        self.scale, self.clip = scale, clip
        self.norms: list[float] = []
        """The norm in every step so far: of the loss's own gradients, before they are clipped."""

    @property
    def loss_scale(self) -> float:
        """The factor of the next loss."""
        return 1.0 if self.scale is None else self.scale.scale

    def factor(self, squares: float) -> float | None:
        """What gradients are multiplied with; None if there is no step to take.

        ``squares``: the sum of all gradients', in float64, scaled as the loss is.
        """
        norm = math.sqrt(squares) / self.loss_scale
        self.norms.append(norm)
        finite = math.isfinite(norm)
        if self.scale is not None:
            self.scale = self.scale.after(finite)
            if not finite:
                return None
        return clip_factor(norm, self.clip) if self.clip is not None and finite else 1.0


def squares(flat: Any, mine: Any) -> float:
    """The sum of squares, in float64, of the numbers of ``flat`` where ``mine`` is true.

    ``mine`` None: of all. What is not finite counts wherever it is: a replica that overflows alone
    would be stepped alone.

    >>> squares(np.full(3, 300, np.float16), np.array([True, False, True]))
    180000.0
    >>> squares(np.array([1, np.inf]), np.array([True, False]))
    inf
    """
    wide = flat.astype(np.float64)
    total = wide @ wide
    if mine is not None and math.isfinite(total):
        wide = wide[mine]
        total = wide @ wide
    return float(total)
