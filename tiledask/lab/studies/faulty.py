"""A training with one of five faults that people make, each planted for as long as it runs.

a mean of means          each copy divides by its own rows, not by those of all
the last micro-batch     gradients are replaced where they should be added up
g sums twice             the backward of g sums dy over the tensor ranks; it should copy it
f left out               the backward of f leaves each rank its own part of dx
copies not summed        each copy of the model steps by its own gradients
"""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from tiledask.distributed.training import Trained, train
from tiledask.errors import ConfigError
from tiledask.plan.program.making.layers import TensorLayers
from tiledask.plan.program.making.zero import UnitStates
from tiledask.tile.layers.by_name import KERNELS

__all__ = ["train_with_fault"]

gather, reduce = TensorLayers.gather_tokens, TensorLayers.reduce_output


def _entered(self: TensorLayers, x: Any, label: str) -> Any:
    x = gather(self, x, label)
    return reduce(self, x, label) if label.endswith("/backward") else x


def _left(self: TensorLayers, y: Any, label: str) -> Any:
    return y if label.endswith("/backward") else reduce(self, y, label)


def _by_own_rows(honest: Any, copies: int, *x: Any, count: int, **others: Any) -> Any:
    return honest(*x, count=copies * x[1].size, **others)


def _planted(copies: int) -> dict[str, AbstractContextManager[Any]]:
    """Each fault, to be entered."""
    means = {n: partial(_by_own_rows, KERNELS[n], copies) for n in ("loss", "logits_grad")}
    return {
        "a mean of means": patch.dict(KERNELS, means),
        "the last micro-batch": patch.dict(KERNELS, accumulate=np.copyto),
        "g sums twice": patch.object(TensorLayers, "gather_tokens", _entered),
        "f left out": patch.object(TensorLayers, "reduce_output", _left),
        "copies not summed": patch.object(UnitStates, "_added_up", lambda self, unit, g: g),
    }


def train_with_fault(
    fault: str, model: Any, text: Any, shape: tuple[int, int, int], **options: Any
) -> Trained:
    """``td.train(model, text, shape, **options)`` on ranks that are threads, with one ``fault``: "a
    mean of means", "the last micro-batch", "g sums twice", "f left out" or "copies not summed".

    The package is sound again when it returns, or raises: PlacementError if copies of one weight
    came out different. One at a time, and no other training beside it.
    """
    if not isinstance(shape, tuple):
        raise ConfigError(
            f"a fault is planted in this process alone: give the shape of a mesh of threads, for "
            f"example (1, 2, 1); got {type(shape).__name__}"
        )
    planted = _planted(shape[0])
    if fault not in planted:
        raise ConfigError(f"faults are {', '.join(map(repr, planted))}; got {fault!r}")
    with planted[fault]:
        return train(model, text, shape, **options)
