"""Part after part, each in a process of its own; what befalls a measurement costs that one only.

Where a part's process dies in the middle of a measurement, or the measurement takes longer than it
said, that is noted as failed, and the part goes on behind it in a new process.

    python -m tiledask.lab.gpu.runner PART JOURNAL UNTIL ARRAYS        the process of a part
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tiledask.lab.gpu.part import GpuPart, Notes, read_journal

__all__ = ["MODULES", "find_parts", "run_part"]

MODULES = tuple(
    f"tiledask.lab.gpu.parts.{name}"
    for name in ("kernels", "speed", "product", "fit", "train", "tests")
)
"""In the order of what is learnt per minute."""
_POLL = 0.2
_AGAIN = 5.0
"""Seconds of its time that a part must have left to go on in another process."""


def find_parts(modules: Sequence[str] = MODULES) -> dict[str, GpuPart]:
    """Every part by its name."""
    return {part.name: part for module in modules for part in import_module(module).PARTS}


def run_part(
    part: GpuPart,
    journal: Path,
    seconds: float,
    arrays: str,
    say: Callable[[str], None],
    modules: Sequence[str] = MODULES,
) -> dict[str, Any]:
    """How the part ended: its state, why, and the seconds it took; its rows are in ``journal``."""
    needs = [name for name in part.needs if arrays == "cupy" or name not in ("cupy", "dask_cuda")]
    if missing := [name for name in needs if find_spec(name) is None]:
        return _ended(part, "left out", f"not installed: {', '.join(missing)}", 0.0)
    say(f"{part.name}, {seconds:.0f} s at most: {part.title}")
    begun = time.time()
    until = begun + seconds
    while True:
        command = [sys.executable, "-m", __name__, part.name, str(journal), str(until), arrays]
        child = subprocess.Popen([*command, *modules], start_new_session=True)
        try:
            why, key = _watch(child, part.name, journal, until)
        finally:
            _end(child)
        if not key or time.time() > until - _AGAIN:
            break
        say(f"{part.name}: {key}: {why}")
    took = time.time() - begun
    state = "done" if not why else "cut off" if took > seconds else "failed"
    return _ended(part, state, why, took)


def _ended(part: GpuPart, state: str, why: str, took: float) -> dict[str, Any]:
    return {"part": part.name, "state": state, "why": why, "took": round(took, 1)}


def _watch(
    child: subprocess.Popen, name: str, journal: Path, until: float
) -> tuple[str, str | None]:
    """(why the part is not done, the key that is to blame); the key is noted as failed."""
    while True:
        running = child.poll() is None
        lines = [line for line in read_journal(journal) if line["part"] == name]
        doing = _under_way(lines)
        late = doing and time.time() > doing["at"] + doing["seconds"]
        if not running or late or time.time() > until:
            break
        time.sleep(_POLL)
    if running and not late:
        return f"its time was over, {doing.get('begin', 'nothing')} was under way", None
    why = f"did not end within {doing['seconds']:g} s" if late else _said(child, lines)
    if not doing:
        return why, None
    why = why or "its part came to its end meanwhile"
    Notes(name, journal, until, Path()).add(doing["begin"], "failed", why=why, **doing["facts"])
    return why, doing["begin"]


def _under_way(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last line that begins a measurement, if that was not added since."""
    begun: dict[str, Any] = {}
    for line in lines:
        if "begin" in line:
            begun = line
        elif line.get("key") == begun.get("begin"):
            begun = {}
    return begun


def _said(child: subprocess.Popen, lines: Sequence[dict[str, Any]]) -> str:
    """Why a process that ended did so; empty where its part was done."""
    if lines and "end" in lines[-1]:
        return str(lines[-1]["end"])
    return f"its process {_cause(child.returncode)}"


def _cause(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    with suppress(ValueError):
        return f"died of {signal.Signals(-status).name}"
    return f"died of signal {-status}"


def _end(child: subprocess.Popen) -> None:
    """The child and the workers that it started are gone, unless a driver holds them."""
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(10.0)


def main(arguments: Sequence[str]) -> None:
    """Run a part and exit without an orderly end, which would wait for a device that hangs."""
    name, journal, until, arrays, *modules = arguments
    path = Path(journal)
    lines = [line for line in read_journal(path) if line["part"] == name and "key" in line]
    before = {line["key"]: line["state"] for line in lines}
    status = 1
    with TemporaryDirectory(prefix="tiledask-gpu-", ignore_cleanup_errors=True) as folder:
        notes = Notes(name, path, float(until), Path(folder), before)
        try:
            find_parts(modules)[name].run(notes, arrays)
            notes.end()
            status = 0
        except BaseException as error:  # SystemExit too
            traceback.print_exc()
            notes.end(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
