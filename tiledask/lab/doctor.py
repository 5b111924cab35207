"""The doctor: what this machine has and tiledask will use, what is missing and what brings it.

Nothing here may crash or hang, whatever is broken: each question is asked inside `_careful`,
and the GPU is asked by a child process that is left behind if the driver does not answer.
"""

import contextlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from tiledask.extras import install
from tiledask.plan.tables import MARKS, Part, Table
from tiledask.plan.units import format_bytes

__all__ = ["MachineCheck", "ask_gpu", "examine", "shown"]

DRIVER_DEADLINE = 60.0
"""Seconds the driver has to answer; CuPy's first import on a cold disk takes tens of them."""
SIGNS = {"ok": MARKS[True], "missing": MARKS[False], "note": "•"}
PACKAGES = (
    ("NumPy", "tiles on the CPU; workers have one BLAS thread each", "numpy", "run", 0),
    ("JupyterLab", "the notebooks", "jupyterlab", "lab", 0),
    ("Dask panels", "the dashboard inside JupyterLab", "dask-labextension", "lab", 0),
    ("CuPy", "tiles on a GPU", "cupy-cuda13x", "gpu", 1),
    ("Dask-CUDA", "GPU workers", "dask-cuda", "gpu", 1),
    ("RMM", "what Dask-CUDA needs", "rmm-cu13", "gpu", 1),
)
"""Name, use, distribution, the extra that brings it, the fewest GPUs with which it is of use."""
Found = tuple[str, ...]
"""The state, what was found, and perhaps what helps."""


class MachineCheck(NamedTuple):
    """One thing that was looked for."""

    name: str
    state: str
    """"ok", "missing" (tiledask runs without it, but not all of it), or "note"."""
    found: str
    used_for: str
    fix: str = ""
    """The command or the change that helps; empty if nothing needs to."""


def examine() -> list[MachineCheck]:
    """Findings from Python up to the GPU; the last one says which workers will be started.

    Takes some seconds (a child process imports CuPy) and at most a minute. Raises nothing.

    >>> findings = examine()
    >>> findings[0].name, findings[-1].name
    ('Python', 'workers')
    """
    gpu = ask_gpu()
    return [
        _careful("Python", "everything; 3.11 to 3.13", _python),
        _careful("memory", "blocks; workers share it evenly", _memory),
        _careful("temporary disk", "spooled arrays, spilled blocks", _disk),
        *(_careful(name, use, _package, gpu, *about) for name, use, *about in PACKAGES),
        _careful("GPU", "one worker per GPU", _gpu, gpu),
        _careful("workers", "td.start_cluster() without arguments", _workers, gpu),
    ]


def _careful(name: str, used_for: str, question: Callable[..., Found], *about: Any) -> MachineCheck:
    try:
        state, found, *fix = question(*about)
    except Exception as error:  # a broken installation raises all sorts of things
        found = f"could not be found out: {type(error).__name__}: {_line(error)}"
        state, fix = "note", []
    return MachineCheck(name, state, found, used_for, *fix)


def shown(findings: Sequence[MachineCheck]) -> Iterator[Part]:
    """The findings as a table, then the commands that bring what is missing."""
    rows = [(SIGNS[f.state], f.name, f.found, f.used_for) for f in findings]
    yield Table(("", "", "found", "used for"), rows, left=range(4))
    missing = [finding for finding in findings if finding.state == "missing"]
    yield from (f"{f.name} is missing ({f.used_for}): {f.fix}" for f in missing)
    yield f"{len(missing)} missing" if missing else "nothing is missing"
    yield from (f"will be used: {f.found}" for f in findings if f.name == "workers")


# -- the machine ---------------------------------------------------------------------------------


def _python() -> Found:
    of = f"{platform.python_implementation()}, {sys.executable}, {platform.platform(terse=True)}"
    return "ok", f"{platform.python_version()} ({of})"


def _memory() -> Found:
    import psutil
    from distributed.system import MEMORY_LIMIT

    free = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    return "ok", f"{format_bytes(MEMORY_LIMIT)} usable, {format_bytes(free)} free now"


def _disk() -> Found:
    folder = tempfile.gettempdir()
    return "ok", f"{format_bytes(shutil.disk_usage(folder).free)} free in {folder} (TMPDIR)"


def _package(gpu: dict[str, Any], distribution: str, extra: str, least: int) -> Found:
    """Missing where there are the GPUs to use it with, otherwise only a note."""
    installed = _version(distribution)
    if len(gpu["devices"]) < least:
        nothing = f"nothing to do with fewer GPUs than {least}"
        return "note", f"{installed or 'not installed'}, {nothing}"
    return ("ok", installed) if installed else ("missing", "not installed", install(extra))


def _version(distribution: str) -> str:
    with contextlib.suppress(PackageNotFoundError):
        return version(distribution)
    return ""


def _workers(gpu: dict[str, Any]) -> Found:
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    if gpu["usable"] and importlib.util.find_spec("dask_cuda") is not None:
        return "ok", f"{len(gpu['devices'])} GPU workers, one per GPU"
    count = max(2, CPU_COUNT)
    share = format_bytes(MEMORY_LIMIT // count)
    cores = f"{CPU_COUNT} core{'s' * (CPU_COUNT > 1)}"
    return "ok", f"{count} CPU workers on {cores}, one BLAS thread and {share} each"


# -- the GPU -------------------------------------------------------------------------------------

PROBE = """
import dataclasses, json
from tiledask.tile.backend import probe
print("PROBE " + json.dumps(dataclasses.asdict(probe())))
"""


def ask_gpu(code: str = PROBE, deadline: float = DRIVER_DEADLINE) -> dict[str, Any]:
    """What tile.backend.probe() finds, as a dict, asked in a process of its own.

    A driver that crashes takes only the child along; one that does not answer within
    ``deadline`` seconds is reported as such.
    """
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        child = subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)
        out, err = child.communicate(timeout=deadline)
    except OSError as error:
        return _unusable(f"no process could be started to ask for the GPU: {_line(error)}")
    except subprocess.TimeoutExpired:
        child.kill()  # and no wait: a process stuck inside the driver cannot be killed
        return _unusable(f"the NVIDIA driver did not answer within {deadline:g} s")
    for line in out.splitlines():
        with contextlib.suppress(ValueError):
            if line.startswith("PROBE "):
                found: dict[str, Any] = json.loads(line.removeprefix("PROBE "))
                return found
    last = err.strip().splitlines()[-1:] or ["no message"]
    return _unusable(f"asking for the GPU ended with status {child.returncode}: {last[0]}")


def _unusable(reason: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("driver", "cuda", "nvrtc_reason"), "")
    cupy = _version("cupy-cuda13x")
    return {"usable": False, "reason": reason, "cupy": cupy, "devices": [], **nothing}


def _gpu(gpu: dict[str, Any]) -> Found:
    names = [
        f"{d['name']} ({'the host memory' if d.get('integrated') else format_bytes(d['memory'])})"
        for d in gpu["devices"]
    ]
    listing = f"{len(names)}: {', '.join(names)}; driver {gpu['driver'] or 'unknown'}"
    if gpu["usable"] and not gpu["nvrtc_reason"]:
        return "ok", listing
    reason = gpu["reason"] or gpu["nvrtc_reason"]
    if names:
        fix = "nvidia-smi says whether it is free" if gpu["cupy"] else install("gpu")
        return "missing", f"{listing}; {reason}", fix
    # somebody installed an NVIDIA driver here, working or not
    if os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi"):
        return "missing", f"none answers: {reason}", "nvidia-smi says what is wrong with the driver"
    return "note", f"none: {reason}"


def _line(words: object) -> str:
    return " ".join(str(words).split()) or "no message"
