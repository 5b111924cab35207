"""A kernel's machine code: compiled once for each architecture, kept in a folder, loaded by CuPy.

NVRTC needs no GPU, so that the same function compiles for machines that are elsewhere, and what a
test measured of the code is true of the code that runs.
"""

import atexit
import hashlib
import io
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tiledask.errors import KernelError
from tiledask.tile.backend import namespace
from tiledask.tile.cache import cache_folder, closed_folder, read_own, write_whole
from tiledask.tile.cuda.source import source

__all__ = ["Resources", "arch_of", "compile_for", "loaded", "resources"]

Macros = Mapping[str, Any]

_LARGEST = 2**26
"""Bytes of a kernel's machine code, by far."""
_HOPPER_ONLY = ("wgmma_ws_persistent",)


@dataclass(frozen=True)
class Resources:
    """What ptxas says that one thread, and one block, of a kernel takes."""

    registers: int
    """Of a thread, at launch."""
    spilled: int
    """Bytes of registers that did not fit and go through memory, stores and loads, per thread."""
    stack: int
    """Bytes of local memory per thread."""
    shared: int
    """Bytes of shared memory that the text itself declares; a launch may add to them."""
    remarks: tuple[str, ...]
    """Warnings and advice: an ignored setmaxnreg (C7508), a wgmma made to wait (C7510)..."""


def arch_of(name: str, capability: str) -> str:
    """The architecture to compile the kernel ``name`` for, on a GPU of this compute capability.

    >>> arch_of("smem_tiled", "8.9"), arch_of("wgmma_ws_persistent", "9.0")
    ('sm_89', 'sm_90a')
    """
    number = capability.replace(".", "")
    return f"sm_{number}a" if name in _HOPPER_ONLY else f"sm_{number}"


def compile_for(name: str, macros: Macros, arch: str) -> tuple[bytes, str]:
    """(machine code, what the compiler said) of the kernel ``name``; KernelError where it fails."""
    core = import_module("cuda.core")
    log = io.StringIO()
    options = core.ProgramOptions(
        std="c++17", arch=arch, ptxas_options=["-v"],
        define_macro=[(key, str(value)) for key, value in macros.items()] or None,
    )  # fmt: skip
    try:
        code = core.Program(source(name), "c++", options).compile("cubin", logs=log).code
    except Exception as error:  # NVRTCError, or a library that is missing
        raise KernelError(
            f"kernel {name!r} did not compile for {arch} with {_listed(macros)}: "
            f"{' '.join(str(error).split())[:600]}"
        ) from error
    return bytes(code), log.getvalue()


def resources(log: str) -> Resources:
    """What the compiler's log says of the one kernel in it.

    >>> r = resources("ptxas . 0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\\n"
    ...               "ptxas info : Used 40 registers, 2048 bytes smem")
    >>> r.registers, r.spilled, r.shared
    (40, 12, 2048)
    """

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    remarks = tuple(line.strip() for line in log.splitlines() if re.search(r"\(C\d+\)", line))
    return Resources(
        number(r"Used (\d+) registers"), spilled, number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"), remarks,
    )  # fmt: skip


def loaded(name: str, macros: Macros, capability: str) -> Any:
    """The kernel ``name`` on the device in use, of this capability; compiled if it never was."""
    return _loaded(name, tuple(sorted(macros.items())), arch_of(name, capability))


@cache
def _loaded(name: str, macros: tuple[tuple[str, Any], ...], arch: str) -> Any:
    path = _kept(name, dict(macros), arch)
    return namespace("cupy").RawModule(path=str(path)).get_function(name)


def _kept(name: str, macros: Macros, arch: str) -> Path:
    """The file with the machine code; made, and put there whole, if it is not there.

    Its name says of which text it is and what its bytes are: other bytes are compiled anew.
    """
    nvrtc = import_module("cuda.bindings.nvrtc")
    key = repr((source(name), sorted(macros.items()), arch, nvrtc.nvrtcVersion()[1:]))
    begin = f"{name}-{arch}-{_digest(key.encode())}"
    folder = _folder()
    for path in sorted(folder.glob(f"{begin}-*.cubin")):
        with suppress(OSError):
            if path.name == f"{begin}-{_digest(read_own(path, _LARGEST))}.cubin":
                return path
    code, _ = compile_for(name, macros, arch)
    file = f"{begin}-{_digest(code)}.cubin"
    try:
        write_whole(folder / file, code)  # two processes may do this at once: each file is whole
    except OSError as error:
        _say(folder, error)
        folder = _of_this_process()
        write_whole(folder / file, code)
    return folder / file


def _folder() -> Path:
    """Where machine code is kept, and nobody else can put any; if need be, until we end."""
    folder = cache_folder() / "kernels"
    try:
        return closed_folder(folder)
    except OSError as error:
        _say(folder, error)
        return _of_this_process()


@cache
def _of_this_process() -> Path:
    folder = tempfile.mkdtemp(prefix="tiledask-kernels-")  # mode 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _say(folder: Path, error: OSError) -> None:
    warnings.warn(
        f"{folder} is not used, kernels are compiled anew in every process: "
        f"{error.strerror or error}; make the folder yours alone, or set TILEDASK_CACHE to another",
        UserWarning,
        stacklevel=5,
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _listed(macros: Macros) -> str:
    return " ".join(f"{key}={value}" for key, value in macros.items()) or "no macros"
