"""Clipping by the norm of all gradients together, of one device's or of everybody's.

    square_sum of each device's shard  -- sum over devices -->  sqrt  -->  the norm
    clip_factor(norm, limit)           the same number everywhere

A device that takes its own norm instead clips otherwise than its neighbours, and their copies
part. What several devices hold counts once: only one of them may add it up.
"""

import math
from collections.abc import Mapping

import numpy as np

from tiledask.errors import ConfigError
from tiledask.tile.backend import Array

__all__ = ["clip", "clip_factor", "global_norm", "square_sum"]

Arrays = Mapping[str, Array]


def square_sum(grads: Arrays) -> float:
    """The sum of squares of all numbers, in float64: halves overflow from 256 on.

    >>> square_sum({"w": np.full(3, 60000, np.float16)}) == 3 * float(np.float16(60000)) ** 2
    True
    """
    return float(sum((g.astype(np.float64) ** 2).sum() for g in grads.values()))


def global_norm(grads: Arrays) -> float:
    """The root of `square_sum`: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.

    >>> global_norm({"w": np.array([3.0]), "b": np.array([4.0])})
    5.0
    """
    return math.sqrt(square_sum(grads))


def clip_factor(norm: float, limit: float) -> float:
    """What gradients of this norm are multiplied with: limit / norm, and 1 below the limit.

    >>> clip_factor(4.0, 1.0), clip_factor(0.5, 1.0)
    (0.25, 1.0)
    """
    if not limit > 0:
        raise ConfigError(f"gradients are clipped to a norm above 0, got {limit}; 1.0 is usual")
    return limit / norm if norm > limit else 1.0


def clip(grads: Arrays, limit: float, norm: float | None = None) -> tuple[dict[str, Array], float]:
    """(gradients of a norm of at most ``limit``, the norm that they had).

    ``norm``: that of everybody's gradients, where these are a shard. Gradients that are not finite
    have no norm to be clipped to: they come back as they are.
    """
    norm = global_norm(grads) if norm is None else norm
    factor = clip_factor(norm, limit) if math.isfinite(norm) else 1.0
    return {name: g * g.dtype.type(factor) for name, g in grads.items()}, norm
