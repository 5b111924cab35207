"""A rank's state, kept every few steps in a file of its own host, and taken up from there.

    rank 0   step  step  step  keep  step  step  step  keep  x
    rank 1   step  step  step  keep  step  step  step  x            the newest that both have: this
                               ----

    0-40-0      rank 0 after 40 steps, of attempt 0: arrays, and what else a step leaves to the next
    0-0.log     what only grows: losses, records

A file is written beside and renamed: one that was interrupted does not exist. Ranks meet in every
step, so none is more than one file ahead: the last two are kept, and the older is written over.
"""

import os
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.errors import CheckpointError
from tiledask.plan.timing.checkpointing import checkpoint_interval
from tiledask.tile.backend import to_numpy

__all__ = ["NEVER", "Keeper", "Keeping", "KeptFile", "StateKept", "steps_between"]

LEAST, MOST = 0.005, 0.01
"""Shares of the time that keeping takes: not less, for what is lost takes time too."""
_SECOND = 10
"""Steps to the second keep, at most: what only the first one took says little."""
NEVER = 2**62
"""Steps that nobody takes."""


class KeptFile(NamedTuple):
    """What its name says of a file."""

    rank: int
    step: int
    """How many steps were done."""
    attempt: int

    @classmethod
    def named(cls, name: str) -> "KeptFile | None":
        """None for the name of something else."""
        parts = name.split("-")
        if len(parts) != 3 or not all(part.isdigit() for part in parts):
            return None
        return cls(*map(int, parts))

    @property
    def name(self) -> str:
        return "-".join(map(str, self))


@dataclass(frozen=True)
class Keeping:
    """What a rank is told of it."""

    folder: str
    """On its host; "" to keep nothing."""
    attempt: int = 0
    """How often the run was begun before."""
    every: int | None = None
    """Steps from one keep to the next; None: by `steps_between`."""
    mtbf: float = 3600.0
    """Seconds between two losses of a worker."""
    found: KeptFile | None = None
    """What it goes on from."""


class StateKept(NamedTuple):
    """What keeping came to."""

    times: int
    """How often each rank kept its state, since the last attempt began."""
    seconds: float
    """That it took, on the slowest rank."""
    resumed: tuple[int, ...] = ()
    """The step from which the run went on, each time that a worker had been lost."""


def steps_between(cost: float, step: float, mtbf: float) -> int:
    """Steps from one keep to the next, if one takes ``cost`` seconds and a step ``step``.

    As `checkpoint_interval` says, within half a percent and one of the time.

    >>> steps_between(cost=0.5, step=0.1, mtbf=3600.0)  # 60 s
    600
    >>> steps_between(cost=0.0005, step=0.01, mtbf=3600.0)  # 1.9 s, by the formula alone
    10
    """
    seconds = max(cost / MOST, min(cost / LEAST, checkpoint_interval(cost, mtbf)))
    return max(1, round(seconds / step)) if step > 0 else 1


class Keeper:
    """Keeps the state of one rank of a run.

    ``arrays``: that are changed in place; ``growing``: lists that are only added to.
    """

    def __init__(
        self, rank: Any, keeping: Keeping, arrays: Sequence[Any], growing: Sequence[list[Any]]
    ) -> None:
        self.rank, self.keeping, self.arrays, self.growing = rank, keeping, arrays, growing
        self.every = keeping.every or 0
        """Steps from one keep to the next; 0 while that is not known."""
        self.costs: deque[float] = deque(maxlen=3)
        """Seconds of the last keeps; the least of them is the machine's at its quietest."""
        self.count, self.seconds = 0, 0.0
        """How often the state was kept, and what all of that took."""
        self._folder = Path(keeping.folder) if keeping.folder else None
        self._files = [keeping.found] if keeping.found else []
        self._logged: list[tuple[str, int]] = []
        """Name and bytes of the logs, in order."""
        self._saw = [0] * len(growing)
        """How much of what grows is in them."""
        self._next, self._from, self._since = 0, 0, 0.0
        """The step of the next keep; the step, and when, that the last one ended."""
        if self._folder is not None and not self._files:
            self._remove_others(self._folder)

    def _remove_others(self, folder: Path) -> None:
        """None; what this rank kept is gone, but for what can be taken up."""
        needed = {*(each.name for each in self._files), *(name for name, _ in self._logged)}
        for path in folder.glob(f"{self.rank.index}-*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    # -- taken up ---------------------------------------------------------------------------------

    def take_up(self) -> Any:
        """What was said along (`kept`); arrays, lists and counts are as they were then."""
        assert self._folder is not None
        assert self.keeping.found is not None
        with open(self._folder / self.keeping.found.name, "rb") as file:
            about, self.rank.barriers, counts, self._logged = pickle.load(file)
            for array in self.arrays:
                host = (
                    array if isinstance(array, np.ndarray) else np.empty(array.shape, array.dtype)
                )
                if file.readinto(_bytes(host)) != host.nbytes:
                    raise CheckpointError(
                        f"{file.name} has less than the {host.nbytes:,} bytes of an array: it was "
                        f"damaged; start the training again"
                    )
                if host is not array:
                    array[...] = self.rank.on_device(host)
        for name, size in self._logged:
            with open(self._folder / name, "rb") as log:
                while log.tell() < size:
                    for grown, more in zip(self.growing, pickle.load(log), strict=True):
                        grown.extend(more)
        self._saw = [len(each) for each in self.growing]
        for members, stream, came, messages in counts:
            port = self.rank.transport.port(members, stream)
            port.counts.came[:], port.counts.messages[:] = came, messages
        self._remove_others(self._folder)
        return about

    # -- kept -------------------------------------------------------------------------------------

    def stepped(self, done: int, about: Callable[[], Any], saved: bool = False) -> None:
        """After each step, all ranks: ``done`` of them are. Where it is time, or a checkpoint was
        ``saved``, the state is kept."""
        if self.every:
            if done % self.every == 0 or saved:
                self._keep(done, about())
            return
        now = perf_counter()
        if not self._next:  # the first step makes what later ones use again
            self._next, self._from, self._since = done + 1, done, now
        elif done == self._next:
            step = (now - self._since) / (done - self._from)
            self._keep(done, about())
            between = self._agreed(step)
            if self.count == 1:
                between = min(between, _SECOND)
            self._next = done + between
            self._from, self._since = done, perf_counter()
        elif saved:
            self._keep(done, about())

    def _keep(self, done: int, about: Any) -> None:
        if self._folder is None:
            return
        begun = perf_counter()
        try:
            self._write(self._folder, KeptFile(self.rank.index, done, self.keeping.attempt), about)
        except OSError:  # no room: the training is worth more than what is kept of it
            with suppress(OSError):
                self._remove_others(self._folder)
            self._folder = None
            return
        self.costs.append(perf_counter() - begun)
        self.count, self.seconds = self.count + 1, self.seconds + self.costs[-1]

    def _write(self, folder: Path, made: KeptFile, about: Any) -> None:
        log = folder / f"{made.rank}-{made.attempt}.log"
        more = [each[saw:] for each, saw in zip(self.growing, self._saw, strict=True)]
        with open(log, "ab") as file:
            file.write(pickle.dumps(more))
            size = file.tell()
        self._saw = [len(each) for each in self.growing]
        before = [each for each in self._logged if each[0] != log.name]
        self._logged = [*before, (log.name, size)]
        counts = [
            (port.members, port.counts.stream, port.counts.came, port.counts.messages)
            for port in list(self.rank.transport.ports.values())
        ]
        new = folder / f"{made.rank}-{made.attempt}.new"
        if len(self._files) == 2:
            os.rename(folder / self._files.pop(0).name, new)  # its pages are there already
        with open(os.open(new, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            file.write(pickle.dumps((about, self.rank.barriers, counts, self._logged)))
            for array in self.arrays:
                file.write(_bytes(to_numpy(array)))
            file.truncate()
        os.rename(new, folder / made.name)
        self._files.append(made)

    def _agreed(self, step: float) -> int:
        """Steps until the next keep: the same on all ranks, by the slowest of them.

        What they tell each other counts as no traffic of the run.
        """
        mine = (min(self.costs) if self._folder is not None else float("inf")), step
        members = tuple(range(self.rank.ranks))
        port = self.rank.transport.port(members, "kept")
        begun = port.enter(("keep", "state"))
        call = CollectiveCall(self.rank.index, "keep", members, 0, "state", ())
        if self.rank.index:
            port.signal(0, call._replace(about=mine))
            between: int = port.hear(0).call.about
        else:
            told = [mine, *(port.hear(other).call.about for other in members[1:])]
            cost, step = (max(each) for each in zip(*told, strict=True))
            between = steps_between(cost, step, self.keeping.mtbf) if cost < NEVER else NEVER
            for other in members[1:]:
                port.signal(other, call._replace(about=between))
        port.leave(begun)
        return between


def _bytes(array: Any) -> memoryview:
    """Its memory, to be read or written."""
    return memoryview(array.reshape(-1).view(np.uint8))
