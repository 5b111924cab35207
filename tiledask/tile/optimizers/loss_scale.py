"""The loss scale, with which gradients in fp16 are neither 0 nor infinite.

    2^-24    2^-14                                       65504
      |--------|------------------------------------------|        what fp16 can hold
  [gradients of a loss]  -- times scale -->  [gradients]           moved to the right, all alike

A dynamic scale grows until something overflows, skips that step, and comes back by half: it stays
just below what overflows. Micikevicius et al. 2018, arXiv:1710.03740, sections 3.2 and 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from numpy.typing import DTypeLike

from tiledask.errors import ConfigError, DivergedError
from tiledask.plan.whole import is_whole
from tiledask.tile.backend import Array, accumulator

__all__ = ["LossScale", "unscaled"]

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class LossScale:
    """The scale of the next step's loss; `after` each step comes the next one.

    The numbers are those of torch.amp.GradScaler; ``interval=None`` makes the scale static.

    >>> scale = LossScale(1024.0, interval=2)
    >>> scale = scale.after(finite=False)
    >>> scale.scale, scale.skipped
    (512.0, 1)
    >>> scale.after(finite=True).after(finite=True).scale
    1024.0
    """

    scale: float = 2.0**16
    growth: float = 2.0
    """Times the scale, after ``interval`` steps in a row without an overflow."""
    backoff: float = 0.5
    """Times the scale, after an overflow."""
    interval: int | None = 2000
    """None: the scale stays, and steps that overflow are skipped all the same."""
    floor: float = 1.0
    """The scale goes no lower."""
    ceiling: float = 2.0**127
    """Nor higher: the largest power of two in single precision."""
    patience: int = 20
    """Overflows in a row at the floor after which the run has diverged."""
    good: int = 0
    """Steps in a row without an overflow, since the scale last changed."""
    stuck: int = 0
    """Overflows in a row that could not lower the scale."""
    skipped: int = 0
    """Steps that overflowed."""

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.scale <= self.ceiling:
            raise ConfigError(
                f"a loss scale lies between its floor, {self.floor:g}, above 0, and its ceiling, "
                f"{self.ceiling:g}; got {self.scale:g}: 65536 is usual"
            )
        whole = self.interval is None or is_whole(self.interval, 1)
        if not (self.growth > 1 and 0 < self.backoff < 1 and whole):
            raise ConfigError(
                f"a scale grows by a factor above 1 after 1 step or more and backs off by one "
                f"between 0 and 1; got growth={self.growth:g}, interval={self.interval} and "
                f"backoff={self.backoff:g}: 2, 2000 and 0.5 are usual"
            )

    @classmethod
    def static(cls, scale: float, patience: int = 20) -> "LossScale":
        """A scale that stays. 1 is no scaling: overflowing steps are skipped all the same."""
        return cls(scale, interval=None, floor=scale, ceiling=scale, patience=patience)

    def after(self, finite: bool) -> "LossScale":
        """The scale after a step whose gradients were ``finite``, on all devices, or not.

        Raises DivergedError after ``patience`` overflows in a row that could not lower the scale.
        """
        if finite:
            good = self.good + 1
            if self.interval is None or good < self.interval:
                return replace(self, good=good, stuck=0)
            return replace(self, scale=min(self.scale * self.growth, self.ceiling), good=0, stuck=0)
        lower = self.scale if self.interval is None else max(self.scale * self.backoff, self.floor)
        stuck = self.stuck + 1 if lower == self.scale else 0
        if stuck >= self.patience:
            kind = "static scale" if self.interval is None else "scale's floor"
            raise DivergedError(
                f"{stuck} steps in a row overflowed at the {kind}, {lower:g}; patience is "
                f"{self.patience}: the weights or the data are no longer finite, or the rate is "
                f"too high. Go back to a checkpoint with a lower rate, or compute in bfloat16"
            )
        return replace(self, scale=lower, good=0, stuck=stuck, skipped=self.skipped + 1)


def unscaled(grads: Arrays, scale: float, dtype: DTypeLike | None = None) -> dict[str, Array]:
    """Gradients of the loss itself, in ``dtype``; left out, halves become float32.

    Widened first and divided then: the other way round what was saved is lost again.

    >>> import numpy as np
    >>> g = (np.float32(1e-8) * np.float32(2**16)).astype(np.float16)
    >>> f"{unscaled({'w': g.reshape(1)}, 2**16)['w'][0]:.4g}"
    '9.997e-09'
    """
    made = {}
    for name, g in grads.items():
        wide = g.astype(accumulator(g.dtype) if dtype is None else dtype)
        made[name] = wide if scale == 1 else wide / wide.dtype.type(scale)
    return made
