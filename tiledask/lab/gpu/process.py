"""One process of a part, from its start until nothing of it is left.

It ends by itself, or is ended: at the part's limit, or where a measurement takes longer than it
said. A process that is ended says first where it is, by SIGABRT and Python's faulthandler.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import environ, killpg
from pathlib import Path
from threading import Thread
from typing import IO, Any

from tiledask.lab.gpu import leftover
from tiledask.lab.store import Lines

__all__ = ["End", "guard", "run_process"]

_QUIET = {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning"}
"""A part leaves without an orderly end, and its semaphores with it: nobody need be told."""
_POLL = 0.05
_LAST_WORDS = 3.0
"""Seconds that a process has to say where it is before it is killed."""
_MOST_LINES = 3000
"""That are printed of one process; one that goes wrong may never stop talking."""
_LONGEST = 400


@dataclass(frozen=True)
class End:
    """How a process ended."""

    state: str
    """done, cut off, died, or failed, where it said itself what was wrong."""
    why: str = ""
    how: str = ""
    """hung, died or raised, where a measurement was under way: it is what failed."""
    row: dict[str, Any] | None = None
    """That measurement: its key, and what was known of it."""


def run_process(
    module: str,
    part: str,
    given: dict[str, Any],
    journal: Lines,
    mark: str,
    take: Callable[[list[dict[str, Any]]], None],
    say: Callable[[str], None],
) -> End:
    """Run ``part`` of ``module`` until it ends or is ended; ``take`` gets lines of its notes.

    Nothing that carries ``mark`` is left when this returns or raises.
    """
    folder = Path(tempfile.mkdtemp(prefix="tiledask-gpu-"))
    given = {**given, "journal": str(journal.path.resolve()), "folder": str(folder)}
    (folder / "given.json").write_text(json.dumps(given))  # more keys than an argument holds
    child = subprocess.Popen(
        [sys.executable, "-m", "tiledask.lab.gpu.child", module, part, str(folder / "given.json")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**environ, **_QUIET, leftover.MARK: mark, "TMPDIR": str(folder)},
    )
    printer = Thread(target=_print, args=(part, child.stdout, say), daemon=True)
    printer.start()
    heard = _Heard(journal, take)
    try:
        cut = _watch(child, given["until"], heard)
    finally:
        _end(child, mark, say)
        printer.join(1.0)
        shutil.rmtree(folder, ignore_errors=True)
        heard.listen()  # what it wrote last
        half = "; half a line of its notes is left out" if journal.half() else ""
    return cut or heard.end(child.returncode, half)


class _Heard:
    """What a process has noted: rows go to ``take``, the rest says where it is."""

    def __init__(self, journal: Lines, take: Callable[[list[dict[str, Any]]], None]) -> None:
        self.journal, self.take = journal, take
        self.row: dict[str, Any] | None = None
        """The measurement under way."""
        self.until = float("inf")
        """When it has had its seconds, by time.monotonic()."""
        self.said: str | None = None
        """How the part ended: empty, or what it raised."""

    def listen(self) -> None:
        rows = []
        for line in self.journal.read():
            if "key" in line:
                rows.append(line)
                if self.row and self.row["key"] == line["key"]:
                    self.row, self.until = None, float("inf")
            elif "begin" in line:
                self.until = time.monotonic() + float(line.get("seconds", 60))
                self.row = {"key": line.pop("begin"), **line}
            elif "end" in line:
                self.said = line["end"]
        if rows:
            self.take(rows)

    def end(self, status: int, half: str) -> End:
        """How a process that was not ended from outside did end."""
        if self.said == "":
            return End("done", half.removeprefix("; "))
        how = "died" if self.said is None else "raised"
        why = self.said or f"its process {_cause(status)} before the part was done"
        state = {"died": "died", "raised": "failed"}[how]
        return End(state, why + half, how if self.row else "", self.row)


def _watch(child: subprocess.Popen, until: float, heard: _Heard) -> End | None:
    """None once the process has ended, or why it must be."""
    begun = time.time()
    while child.poll() is None:
        heard.listen()
        if time.time() > until:
            doing = f", while {heard.row['key']} was under way" if heard.row else ""
            return End("cut off", f"after {time.time() - begun:.0f} s{doing}")
        if time.monotonic() > heard.until:
            seconds = heard.row.get("seconds", 0)
            return End("cut off", f"did not end within {seconds:g} s", "hung", heard.row)
        time.sleep(_POLL)
    return None


def _cause(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    with suppress(ValueError):
        return f"died of {signal.Signals(-status).name}"
    return f"died of signal {-status}"


def _end(child: subprocess.Popen, mark: str, say: Callable[[str], None]) -> None:
    """Nothing of the child or of what it started is left, unless a driver does not let it go."""
    if child.poll() is None:
        child.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_LAST_WORDS)
    with suppress(OSError):
        killpg(child.pid, signal.SIGKILL)
    if stuck := leftover.end(mark):
        say(f"processes {stuck} do not end, the driver holds them: what follows may suffer")
    with suppress(subprocess.TimeoutExpired):
        child.wait(1.0)


def _print(name: str, stream: IO[bytes], say: Callable[[str], None]) -> None:
    """Each line of ``stream`` with the part's name in front, as far as it can be printed."""
    printed, begins = 0, True
    while line := stream.readline(_LONGEST):
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line.decode("utf-8", "replace")).rstrip()
        text = "".join(c if c.isprintable() else "?" for c in text.expandtabs())
        if begins and text and printed < _MOST_LINES:
            printed += 1
            say(f"{name} | {text}")
            if printed == _MOST_LINES:
                say(f"{name} | ... and more, which is not printed")
        begins = line.endswith(b"\n")  # what else there is of a long line is left out


@contextmanager
def guard(mark: str) -> Iterator[None]:
    """A process that ends all that carries ``mark`` once this one is gone, whatever ended it."""
    waiting = subprocess.Popen(
        [sys.executable, "-I", "-S", leftover.__file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        waiting.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            waiting.wait(15)
