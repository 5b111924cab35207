"""The faults, what is promised of each, and on what each is tried."""

from collections.abc import Callable
from typing import NamedTuple

from tiledask.lab.faults.apart import full_disk, interrupted, scheduler_killed
from tiledask.lab.faults.contents import (
    BAD_BLOCKS,
    FORMS,
    bad_block,
    damaged_file,
    flipped_in_memory,
    too_little,
)
from tiledask.lab.faults.running import (
    at_start,
    during,
    frozen_with_timeout,
)
from tiledask.lab.faults.trying import Tried
from tiledask.lab.faults.workloads import WORKLOADS, Workbench

__all__ = ["FAULTS", "ON_GPUS", "Promised"]

ALL = tuple(WORKLOADS)
RIGHT, SAID = ("right",), ("said",)
EITHER = ("right", "said")


class Promised(NamedTuple):
    """A row: a fault and its promise."""

    name: str
    promise: str
    """In words."""
    seconds: float
    """Within which it is kept, on a machine that is not busy with other things."""
    ends: tuple[str, ...]
    """How a try may end: see `Tried`."""
    attempt: Callable[[Workbench, str], Tried]
    of: tuple[str, ...]
    """Workloads, or kinds of the fault."""
    tries: int
    """Of each, in `make faults`."""
    few: tuple[str, ...] = ()
    """Those that `make test` tries once."""

    def keeps(self, found: Tried, what: str) -> bool:
        """Whether the promise was kept, its time aside."""
        # a claim is a measurement: it is not made again without being asked for
        return found.end in self.ends or (what == "claim" and found.end in EITHER)


FAULTS = (
    Promised("worker killed", "the same bits, <= 3 s and what is computed again", 3,
          RIGHT, during("killed"), ALL, 10, ("blocks", "loop")),
    Promised("killed before the call", "the same bits, <= 3 s", 3,
          RIGHT, at_start, ALL, 3),
    Promised("killed twice", "the same bits, <= 5 s", 5,
          RIGHT, during("killed twice"), ALL, 3, ("training",)),
    Promised("all workers killed", "the same bits, <= 5 s", 5,
          RIGHT, during("all killed"), ALL, 3, ("tasks",)),
    Promised("frozen, with timeout=", "DeadlineError <= 1 s after it, naming the slot", 1,
          SAID, frozen_with_timeout, tuple(n for n in ALL if n != "lazy"), 1, ("claim",)),
    Promised("too little memory", "refused before any task, or peak <= bound", 5,
          EITHER, too_little, ("blocks", "files", "claim"), 60, ("blocks", "files")),
    Promised("disk full", "the file named <= 5 s, old data as it was, right with room", 5,
          EITHER, full_disk, ("spool", "checkpoint", "files", "spilled"), 1,
          ("spool", "files")),
    Promised("scheduler killed", "ClusterLostError <= 2 s; a training resumes", 2,
          EITHER, scheduler_killed, tuple(n for n in ALL if n != "lazy"), 1, ("training",)),
    Promised("notebook interrupted", "<= 1 s, no task left, right again", 1,
          RIGHT, interrupted, ("blocks", "tasks", "loop", "training"), 1),
    Promised("bad block", "refused and named, or the same bits", 5,
          EITHER, bad_block, tuple(BAD_BLOCKS), 1, ("nan", "of another shape", "a list")),
    Promised("bit flipped in memory", "seen, the same bits", 5,
          RIGHT, flipped_in_memory, ("A", "B", "C"), 8, ("A", "C")),
    Promised("bit flipped on disk", "refused and named, or the same bits", 5,
          EITHER, damaged_file(("flipped",)), (*FORMS, "spool"), 20, ("zarr", "spool")),
    Promised("damaged file", "refused and named, or the same bits", 5,
          EITHER, damaged_file(), (*FORMS, "spool"), 125, (*FORMS,)),
)  # fmt: skip
"""In the order in which they are tried."""

ON_GPUS = (
    "bit flipped in memory",
    "too little memory",
    "bad block",
    "worker killed",
    "killed before the call",
    "killed twice",
    "all workers killed",
    "frozen, with timeout=",
)
"""Those that are others where workers compute on GPUs."""
