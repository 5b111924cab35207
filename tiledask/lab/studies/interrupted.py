"""A training whose workers are killed at chosen steps, and what was done twice for it.

step  0 ... 12 ... 17 x             fails at step 17, saved after 12: five steps are done again
            12 ... 17 ... 40
"""

import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.spool import MEMORY
from tiledask.plan.whole import whole_number

__all__ = ["InterruptedRun", "train_with_failures"]


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
    cost: float
    """Seconds of a save, on the slowest rank."""
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
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tiledask-failures-", dir=memory) as folder:
        run = Path(folder) / "run"
        saved: dict[str, Any] = {"folder": run, "save_every": save_every} if save_every else {}
        begun = perf_counter()
        mesh, fatal = td.Mesh(cluster, (2, 1, 1)), _Fatal(text, at, folder)
        trained = td.train(model, fatal, mesh, steps=steps, batch=8, progress=False, **saved)
        seconds = perf_counter() - begun
    assert trained.kept is not None
    resumed = trained.kept.resumed
    redone = sum(step - back for step, back in zip(at, resumed, strict=True))
    cost = trained.kept.seconds / max(1, trained.kept.times)
    return InterruptedRun(save_every, seconds, resumed, redone, cost, trained.losses)
