"""The doctor: what this machine has and tiledask will use, what is missing and what brings it.

    examine() -> [MachineCheck, ...] -> shown (terminal), to_html (notebook)

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
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tiledask.extras import bring, install, lacking
from tiledask.lab.table import Grid
from tiledask.plan.judged import MARKS
from tiledask.plan.units import format_bytes

__all__ = ["MachineCheck", "ask_gpu", "examine", "shown", "to_html"]

DRIVER_DEADLINE = 60.0
"""Seconds the driver has to answer; CuPy's first import on a cold disk takes tens of them."""
SMALL_SHM = 1_000_000_000  # bytes; containers give 64 MiB unless told otherwise
SMALL_DISK = 5_000_000_000  # bytes; workers spill blocks to it when memory runs short
SMALL_MEMORY = 4_000_000_000  # bytes; `tiledask tour` needs about 2 GB
SIGNS = {"ok": MARKS[True], "missing": MARKS[False], "note": "•"}

Found = tuple[str, ...]
"""The state, what was found, and perhaps what helps."""


@dataclass(frozen=True)
class MachineCheck:
    """One thing that was looked for."""

    name: str
    """What it is: "cores", "CuPy", "g++"."""
    state: str
    """"ok", "missing" (tiledask runs without it, but not all of it), or "note"."""
    found: str
    """What was found, for reading."""
    used_for: str
    """What tiledask does with it."""
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
    python = f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})"
    questions: list[tuple[Any, ...]] = [
        ("Python", "everything; 3.11 to 3.13", lambda: ("ok", python)),
        ("system", "memory caps need Linux", _system),
        ("cores", "one CPU worker each", _cores),
        ("memory", "blocks; workers share it evenly", _memory),
        ("shared memory", "transports between GPU workers (UCX)", _shared_memory),
        ("temporary disk", "spooled arrays, spilled blocks", _disk),
        ("NumPy", "tiles on the CPU; workers have one BLAS thread each", _numpy),
        ("Dask", "workers, transfers, the dashboard", _dask),
        ("JupyterLab", "the walkthroughs", _package, "jupyterlab"),
        ("Dask panels", "the dashboard inside JupyterLab", _package, "dask-labextension"),
        ("g++", "checking CUDA kernels on the CPU", _compiler),
        ("NVRTC", "compiling CUDA C++, also without a GPU", _nvrtc, gpu),
        ("GPU", "one worker per GPU", _gpu, gpu),
        ("CuPy", "tiles on a GPU", _cupy, gpu),
        ("Dask-CUDA", "GPU workers", _of_gpus, gpu, "dask-cuda", 1),
        ("GPU memory", "one pool for arrays and messages", _gpu_memory, gpu),
        ("GPU to GPU", "blocks from worker to worker without host memory", _between, gpu),
        ("NCCL", "arrays from GPU to GPU", _of_gpus, gpu, "nvidia-nccl-cu13", 2),
        ("workers", "td.start_cluster() without arguments", _workers, gpu),
    ]
    return [_careful(*each) for each in questions]


def _careful(name: str, used_for: str, question: Callable[..., Found], *about: Any) -> MachineCheck:
    try:
        state, found, *more = question(*about)
    except ModuleNotFoundError as error:
        package = lacking(error)
        state, found, *more = "missing", f"{package} is not installed", bring(package)
    except Exception as error:  # a broken installation raises all sorts of things
        state, more = "note", []
        found = f"could not be found out: {type(error).__name__}: {_line(error)}"
    return MachineCheck(name, state, found, used_for, *more)


def _enough(enough: bool, found: str, *fix: str) -> Found:
    return ("ok", found) if enough else ("note", found, *fix)


# -- the machine ---------------------------------------------------------------------------------


def _system() -> Found:
    system = platform.system()
    with contextlib.suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    return "ok", f"{system}, {platform.machine()}"


def _cores() -> Found:
    from dask.system import CPU_COUNT as usable

    present = os.cpu_count() or 1
    found = f"{usable} usable" + (f" of {present}" if usable != present else "")
    return _enough(usable >= 2, found, "idle times are measured with 2 cores or more")


def _memory() -> Found:
    import psutil
    from distributed.system import MEMORY_LIMIT

    free = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    found = f"{format_bytes(MEMORY_LIMIT)} usable, {format_bytes(free)} free now"
    return _enough(free >= SMALL_MEMORY, found, "close other programs, or use fewer workers")


def _shared_memory() -> Found:
    if not os.path.isdir("/dev/shm"):
        return "note", "no /dev/shm"
    total = shutil.disk_usage("/dev/shm").total
    fix = "give the container more: docker run --shm-size=1g"
    return _enough(total >= SMALL_SHM, f"{format_bytes(total)} in /dev/shm", fix)


def _disk() -> Found:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    found = f"{format_bytes(free)} free in {folder}"
    return _enough(free >= SMALL_DISK, found, "set TMPDIR to a larger disk")


# -- packages and programs -----------------------------------------------------------------------


def _numpy() -> Found:
    import numpy as np

    pools = []
    with contextlib.suppress(ModuleNotFoundError):  # the planner does without it
        from threadpoolctl import threadpool_info

        pools = [p for p in threadpool_info() if p["user_api"] == "blas"]
    blas = [f"{p['internal_api']} {p['version']}, {p['num_threads']} threads" for p in pools]
    # a library that threadpoolctl does not know, such as Apple's Accelerate
    found = f"{np.__version__} with {', '.join(blas) or 'a BLAS of its own'}"
    return "ok", found


def _dask() -> Found:
    return "ok", f"dask {version('dask')}, distributed {version('distributed')}"


def _compiler() -> Found:
    path = shutil.which("g++")
    if path is None:
        return "missing", "not installed", "apt-get install g++"
    options: Any = {"capture_output": True, "text": True, "timeout": 10}
    done = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, **options)
    return "ok", done.stdout.partition("\n")[0]


def _package(distribution: str, extra: str = "lab") -> Found:
    installed = _version(distribution)
    return ("ok", installed) if installed else ("missing", "not installed", install(extra))


def _version(distribution: str) -> str:
    with contextlib.suppress(PackageNotFoundError):
        return version(distribution)
    return ""


# -- the GPU -------------------------------------------------------------------------------------

PROBE = """
import dataclasses, json
from tiledask.tile import ipc
from tiledask.tile.backend import probe
found = dataclasses.asdict(probe())
if found["usable"]:
    try:
        found["unshared"] = ipc.why_no_handles()
    except Exception as error:
        found["unshared"] = f"{type(error).__name__}: {error}"
print("PROBE " + json.dumps(found))
"""


def ask_gpu(code: str = PROBE, deadline: float = DRIVER_DEADLINE) -> dict[str, Any]:
    """What tile.backend.probe() finds, as a dict, asked in a process of its own; with a GPU also
    "unshared", why its memory cannot be shared with other processes.

    A driver that crashes takes only the child along; one that does not answer within
    ``deadline`` seconds is reported as such.
    """
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        child = subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)
        try:
            out, err = child.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            child.kill()  # and no wait: a process stuck inside the driver cannot be killed
            return _unusable(f"the NVIDIA driver did not answer within {deadline:g} s")
    except OSError as error:
        return _unusable(f"no process could be started to ask for the GPU: {_line(error)}")
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
    names = []
    for device in gpu["devices"]:
        size = format_bytes(device["memory"]) if device["memory"] else ""
        size = f"the host's {size}".rstrip() if device.get("integrated") else size
        names.append(f"{device['name']} ({size})")
    listing = f"{len(names)}: {', '.join(names)}; driver {gpu['driver'] or 'unknown'}"
    if gpu["usable"]:
        return "ok", listing
    if names:
        fix = "nvidia-smi says whether it is free" if gpu["cupy"] else install("gpu")
        return "missing", f"{listing}; {gpu['reason']}", fix
    if _driver_traces():
        fix = "nvidia-smi says what is wrong with the driver"
        return "missing", f"none answers: {gpu['reason']}", fix
    return "note", f"none: {gpu['reason']}"


def _driver_traces() -> bool:
    """Whether somebody installed an NVIDIA driver here, working or not."""
    files = ("/dev/nvidia0", "/proc/driver/nvidia/version")
    return any(map(os.path.exists, files)) or shutil.which("nvidia-smi") is not None


def _cupy(gpu: dict[str, Any]) -> Found:
    if not gpu["cupy"]:
        return _absent(gpu)
    found = gpu["cupy"] + (f", CUDA {gpu['cuda']}" if gpu["cuda"] else "")
    if gpu["usable"]:
        return "ok", f"{found}, a real allocation worked"
    return "note", f"{found}, without a usable GPU"


def _of_gpus(gpu: dict[str, Any], distribution: str, least: int) -> Found:
    """A package of the GPU extra, of use from ``least`` GPUs on."""
    installed = _version(distribution)
    if not installed:
        return _absent(gpu)
    if len(gpu["devices"]) >= least:
        return "ok", installed
    return "note", f"{installed}, nothing to do {'here' if least == 1 else 'without a second GPU'}"


def _absent(gpu: dict[str, Any]) -> Found:
    """Missing where there is a GPU to use it with, otherwise only a note."""
    state = "missing" if gpu["devices"] else "note"
    return state, "not installed", f"with a GPU: {install('gpu')}"


def _gpu_memory(gpu: dict[str, Any]) -> Found:
    if not gpu["devices"]:
        return "note", "nothing to do here"
    found, rmm = "CuPy's pool", _version("rmm-cu13")
    if any(device.get("integrated") for device in gpu["devices"]):
        found += ", of the host's memory, which the workers share evenly"
    if rmm:
        return "ok", f"{found}; RMM {rmm} takes from it"
    return "note", f"{found}; no RMM beside it", f"for arrays over UCX: {install('gpu')}"


def _between(gpu: dict[str, Any]) -> Found:
    ucx = _version("distributed-ucxx-cu13")
    said = f"UCX {ucx}" if ucx else "no UCX"
    if not gpu["usable"]:
        return "note", f"nothing to do here; {said}"
    if reason := gpu.get("unshared"):
        found = f"no CUDA IPC ({_line(reason)}): through host memory and TCP; {said}"
        return "note", found, "" if ucx else install("ucx")
    return "ok", f"CUDA IPC; {said}"


def _nvrtc(gpu: dict[str, Any]) -> Found:
    if gpu["usable"] and gpu["nvrtc_reason"]:
        return "missing", gpu["nvrtc_reason"], install("gpu")
    return _package("nvidia-cuda-nvrtc", "test")


def _workers(gpu: dict[str, Any]) -> Found:
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    if gpu["usable"] and importlib.util.find_spec("dask_cuda") is not None:
        return "ok", f"{len(gpu['devices'])} GPU workers, one per GPU"
    count = max(2, CPU_COUNT)
    share = format_bytes(MEMORY_LIMIT // count)
    return "ok", f"{count} CPU workers, one BLAS thread and {share} each"


# -- showing it ----------------------------------------------------------------------------------


def shown(findings: Sequence[MachineCheck]) -> Iterator[Any]:
    """The findings as a table, then the commands that bring what is missing."""
    rows = [(SIGNS[f.state], f.name, f.found, f.used_for) for f in findings]
    yield Grid(("", "", "found", "used for"), rows, left=range(4))
    missing = [finding for finding in findings if finding.state == "missing"]
    yield from (f"{f.name} is missing ({f.used_for}): {f.fix}" for f in missing)
    yield from (f"{f.name}: {f.fix}" for f in findings if f.state == "note" and f.fix)
    yield f"{len(missing)} missing" if missing else "nothing is missing"
    yield from (f"will be used: {f.found}" for f in findings if f.name == "workers")


def to_html(findings: Sequence[MachineCheck]) -> str:
    """The findings as an HTML table, everything in them escaped."""
    rows = [(SIGNS[f.state], f.name, f.found, f.used_for, f.fix) for f in findings]
    *_, last = shown(findings)
    return Grid(("", "", "found", "used for", "what helps"), rows, last, range(5))._repr_html_()


def _line(words: object) -> str:
    return " ".join(str(words).split()) or "no message"
