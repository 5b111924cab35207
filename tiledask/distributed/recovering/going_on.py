"""What a lost worker ended is tried again by the client, which alone decides, until time is over.

attempt 0  ....x  worker lost
                  slots have workers again; what did every rank keep?
attempt 1         ............ done
"""

import os
import secrets
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, TypeVar

from distributed import KilledWorker

from tiledask.distributed.cluster.cluster import Cluster, slot_on
from tiledask.distributed.cluster.spool import open_spool
from tiledask.distributed.recovering.kept_files import COPIES, KeptFile
from tiledask.distributed.recovering.kept_folder import folder_here, forget, place_for
from tiledask.distributed.recovering.kept_state import Keeping, neighbours
from tiledask.errors import ClusterLostError, DeadlineError

__all__ = ["Found", "KeptStates", "until_done"]

T = TypeVar("T")
_ALIKE = 3
"""How often a run is lost, and no worker, until it is said."""
_ABOUT = 0.1
"""Seconds that are no difference; on a busy machine the same work may take twice as long, too."""
_DEATHS = 4
"""How often in a row the same work ends the same workers until it is said; Dask's number."""


def until_done(
    cluster: Cluster,
    slots: Sequence[int],
    seconds: float,
    attempt: Callable[[int, float], T],
    kept: Callable[[], Any] = tuple,
) -> T:
    """What ``attempt(number, seconds left)`` returns, made again when a worker was lost in it.

    Raises what it raises otherwise: ClusterLostError where the cluster is closed, a task is named
    that ends its worker each time, a host cannot be reached, no time is left, or the workers are
    those that were there before; and where the same slots have lost theirs after about as long,
    four times in a row, from the same ``kept`` state.
    """
    deadline, alike = time.monotonic() + seconds, 0
    before = _addresses(cluster, slots, seconds)
    ended: tuple[set[int], Any] = set(), None
    times: list[float] = []
    for number in count():
        begun = time.monotonic()
        left = max(1e-3, deadline - begun) if number else seconds
        try:
            return attempt(number, left)
        except ClusterLostError as lost:
            took = time.monotonic() - begun
            cluster.check_alive()
            if isinstance(lost.__cause__, KilledWorker):  # whose task that was is known
                raise
            try:
                now = _addresses(cluster, slots, max(0.0, deadline - time.monotonic()))
            except DeadlineError:
                raise lost from None
            gone = {slot for slot, a, b in zip(slots, before, now, strict=True) if a != b}
            # a connection may break and every worker live; not again and again
            alike, before = alike + 1 if now == before else 0, now
            last, ended = ended, (gone, kept())
            times = [*(times if ended == last else []), took][-_DEATHS:]
            if gone and len(times) == _DEATHS and max(times) <= 2 * min(times) + _ABOUT:
                raise ClusterLostError(
                    f"the work of slots {sorted(gone)} ended their workers {_DEATHS} times in a "
                    f"row, {times[-1]:.1f} s after it was begun: it needs more memory than there "
                    f"is, or native code that it calls crashes. Look at the workers' output, give "
                    f"it less at a time, or call its functions by themselves"
                ) from lost
            if alike == _ALIKE or time.monotonic() >= deadline:
                raise
    raise AssertionError


def _addresses(cluster: Cluster, slots: Sequence[int], seconds: float) -> list[str]:
    workers = cluster.wait_for_slots(slots, seconds)
    return [workers[slot]["address"] for slot in slots]


class Found(NamedTuple):
    """What ranks have kept."""

    newest: dict[int, KeptFile]
    """Rank -> of the newest step that all have, here or as a copy; {} if there is none."""
    holders: dict[int, int]
    """Rank -> the one that has a copy of it, where its own host has nothing."""
    gone: tuple[int, ...]
    """Ranks whose part is missing, though it was kept once."""


class KeptStates:
    """What the ranks of one run keep; a context manager, after which nothing of it is left.

    ``at``: the slot of each rank; ``nbytes``: of each rank's state. ``every`` 0 keeps nothing.
    """

    def __init__(
        self,
        cluster: Cluster,
        at: Sequence[int],
        nbytes: Sequence[int],
        every: int | None,
        mtbf: float,
    ) -> None:
        self.cluster, self.at, self.every, self.mtbf = cluster, at, every, mtbf
        self._need = [2 * each for each in nbytes]
        self._run, self._key = uuid.uuid4().hex[:12], secrets.token_bytes(32)
        self._near: frozenset[int] = frozenset()
        self._here = ""
        self._remove: Callable[[], None] | None = None
        self._folders: dict[int, str] = {}  # by slot

    def __enter__(self) -> "KeptStates":
        if self.every == 0:
            return self
        self._near = self.cluster.near()
        near = sum(
            need for slot, need in zip(self.at, self._need, strict=True) if slot in self._near
        )
        if near and not set(self.at) <= self._near:
            near = sum(self._need)  # and copies of others'
        if near and (place := place_for(near)) is not None:
            folder, self._remove = open_spool(self, place)
            self._here = str(folder)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._remove is not None:
            self._remove()
        if not set(self.at) <= self._near and self.every != 0:
            with suppress(Exception):  # of a cluster that is gone
                self.cluster.run(forget, self._run, timeout=10.0)

    def told(self, attempt: int, found: Found | None, timeout: float) -> list[Keeping]:
        """What each rank is told."""
        if self.every != 0 and found is None:
            self._find_folders(timeout)
        newest, holders, _ = found or Found({}, {}, ())
        hosts = self.cluster.hosts
        near = neighbours([hosts[slot] for slot in self.at]) if self.every != 0 else []
        ranks = range(len(self.at))
        return [
            Keeping(
                self._folders.get(slot, ""),
                attempt,
                self.every,
                self.mtbf,
                newest.get(rank),
                holders.get(rank),
                tuple((to, newest[to]) for to, holder in holders.items() if holder == rank),
                near[rank] if near else None,
                tuple((each, newest.get(each)) for each in ranks if near and near[each] == rank),
                self._key,
            )
            for rank, slot in enumerate(self.at)
        ]

    def _find_folders(self, timeout: float) -> None:
        """Again in every attempt: a slot may have come to another host."""
        if set(self.at) <= self._near:
            self._folders = dict.fromkeys(self.at, self._here)
            return
        # as many ranks may share that host
        need = sum(self._need)
        there = self.cluster.run(_folder, self._here, self._near, self._run, need, timeout=timeout)
        self._folders = {slot: there[slot] for slot in self.at}

    def found(self, timeout: float) -> Found:
        """What is there now, on the hosts of the slots."""
        if self.every != 0:
            self._find_folders(timeout)
        if not any(self._folders.values()):
            return Found({}, {}, ())
        if set(self.at) <= self._near:
            listed = [_names(self._here)] * len(self.at)
        else:
            there = self.cluster.run(_listed, self._folders, timeout=timeout)
            listed = [there[slot] for slot in self.at]
        steps = [dict[int, tuple[KeptFile, int | None]]() for _ in self.at]
        for holder, names in enumerate(listed):
            for file, copied in _files(names):
                if copied and file.rank != holder:
                    steps[file.rank].setdefault(file.step, (file, holder))
        for rank, names in enumerate(listed):
            own = sorted(file for file, copied in _files(names) if file.rank == rank and not copied)
            steps[rank] |= {file.step: (file, None) for file in own}
        common = set.intersection(*(set(each) for each in steps))
        if common:
            chosen = [each[max(common)] for each in steps]
            files = {rank: file for rank, (file, _) in enumerate(chosen)}
            held = {rank: by for rank, (_, by) in enumerate(chosen) if by is not None}
            return Found(files, held, ())
        if not any(len(each) > 1 for each in steps):
            return Found({}, {}, ())  # the first keep was under way
        ((most, _),) = Counter(step for each in steps for step in each).most_common(1)
        return Found({}, {}, tuple(rank for rank, each in enumerate(steps) if most not in each))


def _folder(given: str, near: frozenset[int], run: str, nbytes: int, dask_worker: Any) -> str:
    return folder_here(given if slot_on(dask_worker) in near else "", run, nbytes)


def _listed(folders: dict[int, str], dask_worker: Any) -> list[str]:
    return _names(folders.get(slot_on(dask_worker), ""))


def _names(folder: str) -> list[str]:
    names = []
    for below in ("", COPIES):
        with suppress(OSError):
            inside = os.listdir(os.path.join(folder, below)) if folder else []
            names += [os.path.join(below, name) for name in inside]
    return names


def _files(names: Iterable[str]) -> Iterator[tuple[KeptFile, bool]]:
    """Each of these that is a rank's state, and whether it is a copy."""
    for name in names:
        if (file := KeptFile.named(os.path.basename(name))) is not None:
            yield file, os.path.dirname(name) == COPIES
