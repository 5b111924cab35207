"""Which task ended its worker: a register of what runs, in memory that outlives the process.

    worker of slot 3   |  3  | solve-1f0c-3 |              |   a line for each task that runs
    its next one       reads what the last one left, and says it when it joins
    scheduler          counts deaths for whom it names, and for nobody else of that slot

Dask counts a death for every task that a worker was given, those that wait too, and after four
gives all of them up. A worker that was ended because it was frozen leaves a register that names
nobody. Of one that ended while nothing ran nobody knows why: somebody may have killed it, or a task
that crashes when it is read; four such deaths count as one.
"""

import hashlib
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from dask.context import thread_state
from distributed import SchedulerPlugin, WorkerPlugin

from tiledask.distributed.cluster.spool import MEMORY
from tiledask.distributed.recovering.frozen import NOBODY

__all__ = [
    "JOINING",
    "LAZY",
    "Death",
    "Deaths",
    "Register",
    "close_register",
    "in_slot",
    "name_of",
    "open_register",
    "registered",
    "runs",
    "stopped",
]

_LINE, _LINES = 256, 8
_SIZE = _LINE * _LINES + 1
_SLOT = slice(0, 16)
_END = ".running"
_UNKNOWN = 4
"""Deaths of which nobody knows why that count as one."""
LAZY = "tiledask_matmul"
"""How names of tasks begin that are in no slot, and in the register."""
JOINING = "tiledask-death"
"""Dask's name of what a worker says of the one before it when it joins."""


class Death(NamedTuple):
    """What a worker's register says of its end."""

    slot: int
    ran: tuple[str, ...] | None
    """Keys of the tasks that ran; of nobody, if it was ended by no fault of theirs; None if nothing
    ran, and what ended it is not known."""


# -- on a worker -----------------------------------------------------------------------------------

_register: Any = bytearray(_SIZE)
_path = ""
_free = list(range(_LINE, _LINE * _LINES, _LINE))


def runs() -> int:
    """Where this thread's task stands in the register from now on, for `stopped`."""
    try:
        at = _free.pop()
    except IndexError:  # more than ever run at once
        return 0
    line = str(getattr(thread_state, "key", "")).encode()[: _LINE - 1] + b"\0"
    _register[at : at + len(line)] = line
    return at


def stopped(at: int) -> None:
    """None; the task that stood ``at`` does not run any more."""
    if at:
        _register[at] = 0
        _free.append(at)


def registered(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, of a task in no slot, whose task stands in the register while it runs."""

    @wraps(function)
    def stands(*args: Any) -> Any:
        at = runs()
        try:
            return function(*args)
        finally:
            stopped(at)

    return stands


def in_slot(slot: int) -> None:
    """None; the register says which slot this worker is in."""
    _register[_SLOT] = str(slot).encode().ljust(16, b"\0")


def name_of(nanny: Any, parent: int) -> str:
    """The path of the register of the worker of ``nanny``, started by process ``parent``."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    known = hashlib.sha256(str(nanny).encode()).hexdigest()[:16]
    return str(place / f"tiledask-{parent}-{known}{_END}")


def open_register(nanny: Any) -> Death | None:
    """What the last worker of ``nanny`` left, None if it says nothing; this one writes from now on.
    No other follows a worker that has None.

    A file of 2 kB of this user's, which goes with the worker, or when the next one on this host
    begins and who started its worker is gone.
    """
    global _register, _path
    if nanny is None:
        return None
    path, before = name_of(nanny, os.getppid()), b""
    _sweep(Path(path).parent)
    with suppress(OSError):  # another's, or no room: then nobody is named
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(number, "r+b", buffering=0) as file:
            if os.fstat(number).st_uid == os.geteuid():
                before = file.read(_SIZE)
                file.seek(0)
                # the slot stays: this worker may end before it is in one. A full disk says so here
                file.write(before[_SLOT].ljust(_SIZE, b"\0"))
                _register, _path = mmap.mmap(number, _SIZE), path
    return _read(before)


def close_register() -> None:
    """None; the register is gone, and nobody reads what is written from now on."""
    global _register, _path
    _register = bytearray(_SIZE)
    if _path:
        with suppress(OSError):
            os.unlink(_path)
    _path = ""


class Register(WorkerPlugin):
    """Has the register go with its worker, when that ends in order."""

    name = "tiledask-register"

    def teardown(self, worker: Any) -> None:
        close_register()


def _read(register: bytes) -> Death | None:
    slot = register[_SLOT].rstrip(b"\0")
    if len(register) != _SIZE or not slot.isdigit():
        return None
    lines = [register[at : at + _LINE] for at in range(_LINE, _LINE * _LINES, _LINE)]
    ran = tuple(line.split(b"\0")[0].decode(errors="replace") for line in lines if line[0])
    if register[-1:] == NOBODY:
        return Death(int(slot), ())
    return Death(int(slot), ran or None)


def _sweep(place: Path) -> None:
    for file in place.glob(f"tiledask-*{_END}"):
        parent = file.name.split("-")[1]
        with suppress(OSError):
            if parent.isdigit() and not psutil.pid_exists(int(parent)):
                file.unlink()


# -- on the scheduler ------------------------------------------------------------------------------


class Deaths(SchedulerPlugin):
    """How many workers each task has ended, as their registers say."""

    name = "tiledask-deaths"

    def __init__(self) -> None:
        self._ran, self._unknown = Counter[str](), Counter[str]()
        self._tasks: dict[Any, Any] = {}
        self._slots: dict[str, Any] = {}
        """Address of a worker -> its slot."""
        self._given: dict[Any, set[Any]] = {}
        """Slot -> keys of the tasks that its last worker had when it ended."""

    def log_event(self, topic: str, msg: Any) -> None:
        """Dask says what a worker had that is gone. What may run anywhere is given to the next at
        once, which may go too before anybody joins and says why: it is counted only then."""
        if topic == "all" and msg.get("action") == "remove-worker":
            slot = self._slots.pop(msg["worker"], None)
            self._given[slot] = given = {*msg["processing-tasks"]}
            for key in given:
                if (task := self._tasks.get(key)) is not None and _is_registered(task):
                    task.suspicious = self._suspicion(_named(key))

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """A worker has joined, and says in which way the one before it ended."""
        self._tasks, joined = scheduler.tasks, scheduler.workers[worker]
        self._slots[worker] = joined.name
        if (told := joined.extra.get(JOINING)) is not None:
            self.count(scheduler, Death(*told))
        elif joined.name in self._given:
            self.count(scheduler, Death(joined.name, None))

    def count(self, scheduler: Any, death: Death) -> None:
        """None; tasks of that slot are as suspicious as often as a worker ended while they ran, and
        once for every four times that it ended while nothing did."""
        tasks = {_named(key): task for key, task in scheduler.tasks.items()}
        self._ran.update(death.ran or ())
        for known in (self._ran, self._unknown):
            for gone in known.keys() - tasks.keys():
                del known[gone]
        own = {f"slot{death.slot}", f"beside{death.slot}"}
        given = self._given.pop(death.slot, ())
        for key, task in tasks.items():
            there = task.key in given and _is_registered(task)
            ours = task.suspicious and not own.isdisjoint(task.resource_restrictions or ())
            if there or ours:
                if death.ran is None and (there or task.suspicious > self._suspicion(key)):
                    self._unknown[key] += 1
                task.suspicious = self._suspicion(key)

    def _suspicion(self, key: str) -> int:
        return self._ran[key] + self._unknown[key] // _UNKNOWN


def _named(key: Any) -> str:
    """What a register has of a task's key."""
    return str(key)[: _LINE - 1]


def _is_registered(task: Any) -> bool:
    return bool(task.prefix.name.startswith(LAZY))
