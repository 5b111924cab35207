"""Trainings that go wrong: one of five faults that people make, or workers that are killed.

a mean of means          each copy divides by its own rows, not by those of all
the last micro-batch     gradients are replaced where they should be added up
g sums twice             the backward of g sums dy over the tensor ranks; it should copy it
f left out               the backward of f leaves each rank its own part of dx
copies not summed        each copy of the model steps by its own gradients

step  0 ... 12 ... 17 x             killed at step 17, saved after 12: five steps are done again
            12 ... 17 ... 40
"""

import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.training import Trained, train
from tiledask.errors import ConfigError
from tiledask.plan.program.making.layers import TensorLayers
from tiledask.plan.program.making.zero import UnitStates
from tiledask.plan.whole import whole_number
from tiledask.tile.layers.by_name import KERNELS

__all__ = ["InterruptedRun", "train_with_failures", "train_with_fault"]

# -- faults ----------------------------------------------------------------------------------------

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


# -- killed workers -------------------------------------------------------------------------------


class InterruptedRun(NamedTuple):
    """What a training came to whose workers were killed."""

    save_every: int
    """Steps from one save to the next."""
    seconds: float
    """Of all of it, with the first connections and the end."""
    resumed: tuple[int, ...]
    """The step from which it went on, for each failure."""
    redone: int
    """Steps that were done twice."""
    losses: np.ndarray
    """[steps], as the training had them at its end."""


class _Fatal:
    """Text whose batch of certain steps ends the process that draws it first, by SIGKILL."""

    def __init__(self, text: Any, at: Sequence[int], folder: str) -> None:
        self.text, self.at, self.folder = text, at, folder
        self.vocabulary = text.vocabulary

    def batch(self, seed: int, step: int, *which: Any) -> Any:
        if step in self.at:
            with suppress(FileExistsError):  # not a second time
                (Path(self.folder) / str(step)).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return self.text.batch(seed, step, *which)


def train_with_failures(
    cluster: Cluster, at: Sequence[int] = (), save_every: int = 10, steps: int = 100
) -> InterruptedRun:
    """A small GPT, trained on two ranks of ``cluster`` on this machine; at the beginning of each
    step in ``at``, when it is first reached, a worker is killed, and another one takes its slot.

    ``save_every``: steps from one checkpoint to the next; 0: there is none. They are saved into a
    folder in this machine's memory, where there is one, and gone when this returns.
    """
    steps = whole_number("steps", steps, 1)
    at = sorted({whole_number("a step of a failure", each, 0, steps - 1) for each in at})
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=32, layers=2, heads=2, sequence=16)
    save_every = whole_number("save_every", save_every, 0)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tiledask-failures-", dir=memory) as folder:
        run = Path(folder) / "run"
        saved: dict[str, Any] = {"folder": run, "save_every": save_every} if save_every else {}
        begun = perf_counter()
        mesh, fatal = td.Mesh(cluster, (2, 1, 1)), _Fatal(text, at, folder)
        trained = td.train(model, fatal, mesh, steps=steps, batch=8, progress=False, **saved)
        seconds = perf_counter() - begun
    redone = sum(step - back for step, back in zip(at, trained.resumed, strict=True))
    return InterruptedRun(save_every, seconds, trained.resumed, redone, trained.losses)
