"""A rank's state, kept every few steps in a file of its own host, and taken up from there.

    rank 0   step  step  step  keep  step  step  step  keep  x
    rank 1   step  step  step  keep  step  step  step  x            the newest that both have: this
                               ----

On several hosts a rank of another one, its neighbour, keeps a copy: a host that is lost takes its
own files with it. Copies go as the run's messages do.

Ranks meet in every step, so none is more than one keep ahead: the last two are there (`KeptFiles`).
"""

import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.recovering.kept_files import COPIES, KeptFile, KeptFiles, sealed, unsealed
from tiledask.errors import CheckpointError
from tiledask.plan.timing.checkpointing import checkpoint_interval
from tiledask.tile.backend import to_numpy

__all__ = ["NEVER", "Keeper", "Keeping", "StateKept", "neighbours", "steps_between"]

LEAST, MOST = 0.005, 0.01
"""Shares of the time that keeping takes: not less, for what is lost takes time too."""
_SECOND = 10
"""Steps to the second keep, at most: what only the first one took says little."""
NEVER = 2**62
"""Steps that nobody takes."""


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
    holder: int | None = None
    """The rank that has it, if this one's host does not."""
    gives: tuple[tuple[int, KeptFile], ...] = ()
    """Ranks to which this one gives the copies that they go on from."""
    neighbour: int | None = None
    """The rank on another host that keeps a copy."""
    copies: tuple[tuple[int, KeptFile | None], ...] = ()
    """Ranks of which this one keeps a copy, and what they go on from."""
    key: bytes = b""
    """Of the run: by it a rank knows that what was kept is its own."""


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


def neighbours(hosts: Sequence[str]) -> list[int | None]:
    """By rank the one that keeps a copy of its state: as far along on the next host as it is on its
    own; None where there is one host. ``hosts``: of each rank.

    >>> neighbours("AABB"), neighbours("ABCC"), neighbours("AA")
    ([2, 3, 0, 1], [1, 2, 0, 0], [None, None])
    """
    on = {host: [r for r, its in enumerate(hosts) if its == host] for host in dict.fromkeys(hosts)}
    after = dict(zip(on, [*on][1:] + [*on][:1], strict=True))

    def one(rank: int) -> int:
        there = on[after[hosts[rank]]]
        return there[on[hosts[rank]].index(rank) % len(there)]

    return [one(rank) if len(on) > 1 else None for rank in range(len(hosts))]


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
        self._own = KeptFiles(self._folder, rank.index, keeping.found)
        copies = self._folder and self._folder / COPIES
        if copies and keeping.copies:
            with suppress(OSError):
                copies.mkdir(mode=0o700, exist_ok=True)
        self._copies = {each: KeptFiles(copies, each, found) for each, found in keeping.copies}
        self._lacks_copies = keeping.attempt > 0 and keeping.neighbour is not None
        """Whether a host that was lost may have had some; the same on all ranks."""
        self._logged = 0
        """Bytes of this attempt's log."""
        self._saw = [0] * len(growing)
        """How much of what grows is in it."""
        self._next, self._from, self._since = 0, 0, 0.0
        """The step of the next keep; the step, and when, that the last one ended."""
        self._everyone = tuple(range(rank.ranks))

    # -- taken up ---------------------------------------------------------------------------------

    def take_up(self) -> Any:
        """What was said along (`kept`); arrays, lists and counts are as they were then."""
        found, key = self.keeping.found, self.keeping.key
        assert found is not None
        with ExitStack() as closing:
            file, log = map(closing.enter_context, self._brought(found))
            about, self.rank.barriers, counts, size = unsealed(key, file, found.name)
            for array in self.arrays:
                host = (
                    array if isinstance(array, np.ndarray) else np.empty(array.shape, array.dtype)
                )
                if file.readinto(_bytes(host)) != host.nbytes:
                    raise CheckpointError(
                        f"{found.name} has less than the {host.nbytes:,} bytes of an array: it was "
                        f"damaged; start the training again"
                    )
                if host is not array:
                    array[...] = self.rank.on_device(host)
            while log.tell() < size:
                for grown, more in zip(self.growing, unsealed(key, log, found.log), strict=True):
                    grown.extend(more)
        for members, stream, came, messages in counts:
            port = self.rank.transport.port(members, stream)
            port.counts.came[:], port.counts.messages[:] = came, messages
        return about

    def _brought(self, found: KeptFile) -> tuple[Any, Any]:
        """The file and the log that this rank goes on from; others are given theirs."""
        keeping, brought = self.keeping, list[Any]()
        if keeping.gives or keeping.holder is not None:
            port, call = self._port()
            begun = port.enter(("bring", "state"))
            for to, copy in keeping.gives:
                for path in self._copies_of(copy):
                    port.signal(to, call, [np.fromfile(path, np.uint8)])
            if keeping.holder is not None:
                came = [port.hear(keeping.holder).parts[0] for _ in range(2)]
                brought = [io.BytesIO(part.data) for part in came]
            port.leave(begun)
        if brought:
            file, log = brought
            return file, log
        assert self._folder is not None
        return open(self._folder / found.name, "rb"), open(self._folder / found.log, "rb")

    def _copies_of(self, found: KeptFile) -> list[Path]:
        assert self._folder is not None
        return [self._folder / COPIES / name for name in (found.name, found.log)]

    # -- kept -------------------------------------------------------------------------------------

    def stepped(self, done: int, about: Callable[[], Any], saved: bool = False) -> None:
        """After each step, all ranks: ``done`` of them are. Where it is time, or a checkpoint was
        ``saved``, the state is kept."""
        if self.every:
            if done % self.every == 0 or saved or self._lacks_copies:
                self._keep(done, about())
                self._lacks_copies = False
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
        copied = self.keeping.neighbour is not None or self._copies
        if self._own.folder is None and not copied:
            return
        begun = perf_counter()
        made = KeptFile(self.rank.index, done, self.keeping.attempt)
        more = [each[saw:] for each, saw in zip(self.growing, self._saw, strict=True)]
        self._saw = [len(each) for each in self.growing]
        log = sealed(self.keeping.key, more)
        self._logged += len(log)
        counts = [
            (port.members, port.counts.stream, port.counts.came, port.counts.messages)
            for port in list(self.rank.transport.ports.values())
        ]
        told = about, self.rank.barriers, counts, self._logged
        parts = [log, sealed(self.keeping.key, told), *self.arrays]
        self._own.write(made, map(_bytes, parts))
        if copied:
            self._copy(made, parts)
        if self._own.folder is None:
            return
        self.costs.append(perf_counter() - begun)
        self.count, self.seconds = self.count + 1, self.seconds + self.costs[-1]

    def _copy(self, made: KeptFile, parts: Sequence[Any]) -> None:
        """None, once the neighbour has them, and this rank what it keeps of others: one part goes
        while one comes."""
        port, call = self._port()
        begun = port.enter(("keep", "state"))
        sending = self._sent(port, call, parts)

        def coming(source: int) -> Iterator[Any]:
            for number in count(1):
                next(sending, None)
                part, of = (message := port.hear(source)).parts[0], message.call.about
                yield part
                if number == of:
                    return

        for source, files in self._copies.items():
            arriving = coming(source)
            files.write(made._replace(rank=source), arriving)
            for _ in arriving:  # that there was no room for
                pass
        for _ in sending:
            pass
        port.leave(begun)

    def _sent(self, port: Any, call: CollectiveCall, parts: Sequence[Any]) -> Iterator[None]:
        for part in parts if self.keeping.neighbour is not None else ():
            told = call._replace(about=len(parts))
            port.signal(self.keeping.neighbour, told, [_bytes(part)])
            yield

    def _port(self) -> tuple[Any, CollectiveCall]:
        """What ranks tell each other of this counts as no traffic of the run."""
        call = CollectiveCall(self.rank.index, "keep", self._everyone, 0, "state", ())
        return self.rank.transport.port(self._everyone, "kept"), call

    def _agreed(self, step: float) -> int:
        """Steps until the next keep: the same on all ranks, by the slowest of them."""
        kept = self._own.folder is not None
        mine = (min(self.costs) if kept else float("inf")), step
        port, call = self._port()
        begun = port.enter(("keep", "state"))
        if self.rank.index:
            port.signal(0, call._replace(about=mine))
            between: int = port.hear(0).call.about
        else:
            told = [mine, *(port.hear(other).call.about for other in self._everyone[1:])]
            cost, step = (max(each) for each in zip(*told, strict=True))
            between = steps_between(cost, step, self.keeping.mtbf) if cost < NEVER else NEVER
            for other in self._everyone[1:]:
                port.signal(other, call._replace(about=between))
        port.leave(begun)
        return between


def _bytes(part: Any) -> np.ndarray:
    """Those of an array, to be read or written; of one on a GPU, a copy."""
    if isinstance(part, bytes):
        return np.frombuffer(part, np.uint8)
    return to_numpy(part).reshape(-1).view(np.uint8)
