"""What a rank measured before a checkpoint, for a training that goes on in the same call.

    step-00000040/             the checkpoint: weights and states, of whatever layout
    .records-5f1e.../40-0      rank 0: what it recorded since its last file
                     40-1      rank 1

Losses, records and counts are of this call alone: who opens the checkpoint later needs none, and
the client removes their folder when the call ends.
"""

import os
import pickle
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tiledask.distributed.checkpoints import steps_in
from tiledask.distributed.ranks.rank import Rank

__all__ = ["History", "new_folder", "newest_step"]

_PREFIX = ".records-"
WRITES = 1.0
"""Seconds that ranks which go on have to write theirs, when another one was lost."""


class History:
    """Of one rank. ``growing``: lists that are only added to; an empty ``folder`` keeps nothing."""

    def __init__(self, folder: str, rank: Rank, growing: Sequence[list[Any]]) -> None:
        self.folder, self.rank, self.growing = folder, rank, growing
        self._saw = [0] * len(growing)

    def save(self, step: int) -> None:
        """Write what came since the last file; called after the checkpoint of ``step``."""
        if not self.folder:
            return
        more = [each[saw:] for each, saw in zip(self.growing, self._saw, strict=True)]
        self._saw = [len(each) for each in self.growing]
        counts = [
            (port.members, port.counts.stream, port.counts.came, port.counts.messages)
            for port in list(self.rank.transport.ports.values())
        ]
        path = Path(self.folder) / _name(step, self.rank.index)
        new = path.with_suffix(".new")
        new.write_bytes(pickle.dumps((more, self.rank.barriers, counts)))
        os.replace(new, path)

    def load(self, step: int) -> None:
        """Add what was written up to ``step``."""
        if not self.folder:
            return
        for number, rank in sorted(_files(self.folder)):
            if rank != self.rank.index or number > step:
                continue
            path = Path(self.folder) / _name(number, rank)
            more, self.rank.barriers, counts = pickle.loads(path.read_bytes())
            for grown, each in zip(self.growing, more, strict=True):
                grown.extend(each)
            for members, stream, came, messages in counts:
                port = self.rank.transport.port(members, stream)
                port.counts.came[:], port.counts.messages[:] = came, messages
        self._saw = [len(each) for each in self.growing]


def new_folder(folder: str, run: str) -> str:
    """An empty folder beside the checkpoints in ``folder``; what killed clients left goes."""
    for old in Path(folder).glob(f"{_PREFIX}*"):
        shutil.rmtree(old, ignore_errors=True)
    made = Path(folder) / f"{_PREFIX}{run}"
    made.mkdir(mode=0o700)
    return str(made)


def newest_step(folder: str, history: str, ranks: int, first: int) -> int:
    """The step from which all ranks can go on: of the newest checkpoint after ``first`` of which
    each has written its history, or ``first``."""
    steps, deadline = steps_in(folder), monotonic() + WRITES
    while True:
        there = _files(history)
        able = [s for s in steps if all((s, rank) in there for rank in range(ranks))]
        found = max(able, default=first)
        if found >= max(steps, default=first) or monotonic() > deadline:
            return found
        sleep(0.05)


def _name(step: int, rank: int) -> str:
    return f"{step}-{rank}"


def _files(folder: str) -> set[tuple[int, int]]:
    """(step, rank) of each file that is whole."""
    found = (re.fullmatch(r"(\d+)-(\d+)", name) for name in os.listdir(folder))
    return {(int(match[1]), int(match[2])) for match in found if match}
