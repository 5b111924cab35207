"""A training with one of five faults that people make, each planted for as long as it runs.

a mean of means          each copy divides by its own rows, not by those of all
the last micro-batch     gradients are replaced where they should be added up
g sums twice             the backward of g sums dy over the tensor ranks; it should copy it
f left out               the backward of f leaves each rank its own part of dx
copies not summed        each copy of the model steps by its own gradients
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np

from tiledask.distributed.training import Trained, train
from tiledask.errors import ConfigError
from tiledask.plan.program.making.layers import TensorLayers
from tiledask.plan.program.making.unit_states import UnitStates
from tiledask.tile.layers.by_name import KERNELS

__all__ = ["train_with_fault"]

enter, leave = TensorLayers.enter, TensorLayers.leave
Planted = AbstractContextManager[Any]


def _mean_of_means(copies: int) -> Planted:
    def planted(honest: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*x: Any, count: int, **told: Any) -> Any:
            return honest(*x, count=copies * x[1].size, **told)

        return kernel

    names = ("loss", "logits_grad")
    return patch.dict(KERNELS, {name: planted(KERNELS[name]) for name in names})


def _last_alone(copies: int) -> Planted:
    def accumulate(total: np.ndarray, gradient: np.ndarray) -> None:
        total[...] = gradient

    return patch.dict(KERNELS, accumulate=accumulate)


def _g_sums_twice(copies: int) -> Planted:
    def entered(self: TensorLayers, x: Any, label: str) -> Any:
        x = enter(self, x, label)
        return leave(self, x, label) if label.endswith("/backward") else x

    return patch.object(TensorLayers, "enter", entered)


def _f_left_out(copies: int) -> Planted:
    def left(self: TensorLayers, y: Any, label: str) -> Any:
        return y if label.endswith("/backward") else leave(self, y, label)

    return patch.object(TensorLayers, "leave", left)


def _not_summed(copies: int) -> Planted:
    return patch.object(UnitStates, "_added_up", lambda self, unit, g: g)


FAULTS: dict[str, Callable[[int], Planted]] = {
    "a mean of means": _mean_of_means,
    "the last micro-batch": _last_alone,
    "g sums twice": _g_sums_twice,
    "f left out": _f_left_out,
    "copies not summed": _not_summed,
}


def train_with_fault(
    fault: str, model: Any, text: Any, shape: tuple[int, int, int], **options: Any
) -> Trained:
    """``td.train(model, text, shape, **options)`` on ranks that are threads, with one ``fault``: "a
    mean of means", "the last micro-batch", "g sums twice", "f left out" or "copies not summed".

    The package is sound again when it returns, or raises: PlacementError if copies of one weight
    came out different. One at a time, and no other training beside it.
    """
    if fault not in FAULTS:
        raise ConfigError(f"faults are {', '.join(map(repr, FAULTS))}; got {fault!r}")
    if not isinstance(shape, tuple):
        raise ConfigError(
            f"a fault is planted in this process alone: give the shape of a mesh of threads, for "
            f"example (1, 2, 1); got {type(shape).__name__}"
        )
    with FAULTS[fault](shape[0]):
        return train(model, text, shape, **options)
