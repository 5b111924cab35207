"""Who is frozen, as the kernel says it; a file that runs by itself, beside a worker, too.

Only the kernel knows: a task that keeps the interpreter's lock for seconds is as silent as a
stopped process, and must not be killed. So it is asked for the process's state, and frozen is who
was stopped whenever it was looked at, while what started it was not: Ctrl-Z stops both. Who looks
may have been stopped too: it then comes late, and forgets what it saw before.

    worker, under a nanny                     its nanny starts another
      '-- python frozen.py PID REGISTER       looks at it, and ends it; it ends with the worker
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Collection
from time import monotonic
from typing import NamedTuple

import psutil

__all__ = ["KILLED", "LOOK", "NOBODY", "Frozen", "end", "process_state", "watcher"]

LOOK = 0.25
"""Seconds between two looks."""
PATIENCE = 3.0
"""Seconds for which a process is stopped before it is taken for frozen."""
NOBODY = b"!"
"""The last byte of a register (poison.py) whose worker was ended by no fault of a task's."""
KILLED = 3
"""What a process that watches a worker returns when it has ended it."""


class ProcessState(NamedTuple):
    """What the kernel says of a process."""

    status: str
    """psutil's: "stopped", which is not "tracing-stop" of a debugger, "running", "sleeping", ..."""
    started: float
    """When, in seconds since 1970: another process of the number differs."""
    parent: int
    """The number of the process that started it."""


def process_state(pid: int) -> ProcessState | None:
    """The state of a process; None where there is no such process."""
    try:
        process = psutil.Process(pid)
        return ProcessState(process.status(), process.create_time(), process.ppid())
    except psutil.Error:
        return None


class Frozen:
    """Finds those of some processes that were stopped at every look for 3 s."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[float, float]] = {}  # pid: (it started, stopped since)
        self._last = 0.0

    def late(self, now: float) -> bool:
        """Whether so much time went by since the last look that this process was away itself."""
        away, self._last = now - self._last > 4 * LOOK, now
        if away:
            self._since.clear()
        return away

    def among(self, pids: Collection[int], now: float) -> dict[int, float]:
        """Process -> for how many seconds it has been stopped, of those that are frozen."""
        found = {}
        for pid in self._since.keys() - set(pids):
            del self._since[pid]
        for pid in pids:
            state = process_state(pid)
            if state is None or state.status != psutil.STATUS_STOPPED or _is_stopped(state.parent):
                self._since.pop(pid, None)
                continue
            started, since = self._since.setdefault(pid, (state.started, now))
            if started != state.started:
                self._since[pid] = state.started, now
            elif now - since >= PATIENCE:
                del self._since[pid]
                found[pid] = now - since
        return found


def _is_stopped(pid: int) -> bool:
    state = process_state(pid)
    return state is not None and state.status == psutil.STATUS_STOPPED


def end(pid: int, register: str) -> None:
    """None; the frozen worker is ended, and what ran there is not to blame."""
    with contextlib.suppress(OSError), open(register, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(NOBODY)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def watcher(pid: int, register: str) -> "subprocess.Popen[bytes]":
    """A process that watches ``pid``, until its standard input is closed, and ends it if it is
    frozen."""
    home = os.path.dirname(os.path.dirname(psutil.__file__))
    code = (
        f"import sys; sys.path.append({home!r}); import runpy; "
        f"runpy.run_path({__file__!r}, run_name='__main__')"
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, str(pid), register],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # no Ctrl-C or Ctrl-Z of a terminal reaches it
    )


def _watch(pid: int, register: str) -> int:
    frozen, begun = Frozen(), process_state(pid)
    while not select.select([0], [], [], LOOK)[0]:
        now, state = monotonic(), process_state(pid)
        if begun is None or state is None or state.started != begun.started:
            break  # and a process that it forked keeps the pipe open
        frozen.late(now)
        for seconds in frozen.among([pid], now).values():
            end(pid, register)
            words = f"worker process {pid} was stopped for {seconds:.0f} s: it is ended"
            print(f"tiledask: {words}, and its nanny starts another", file=sys.stderr)
            return KILLED
    return 0


if __name__ == "__main__":
    sys.exit(_watch(int(sys.argv[1]), sys.argv[2]))
