"""Clipping by the norm of all gradients together, of one device's or of everybody's.

    squares of each device's shard     -- sum over devices -->  sqrt  -->  the norm
    clip_factor(norm, limit)           the same number everywhere

A device that takes its own norm instead clips otherwise than its neighbours, and their copies
part. What several devices hold counts once: only one of them may add it up. Pascanu et al. 2013,
arXiv:1211.5063, algorithm 1.
"""

from tiledask.errors import ConfigError

__all__ = ["clip_factor"]


def clip_factor(norm: float, limit: float) -> float:
    """What gradients of this norm are multiplied with: limit / norm, and 1 below the limit.

    >>> clip_factor(4.0, 1.0), clip_factor(0.5, 1.0)
    (0.25, 1.0)
    """
    if not limit > 0:
        raise ConfigError(f"gradients are clipped to a norm above 0, got {limit}; 1.0 is usual")
    return limit / norm if norm > limit else 1.0
