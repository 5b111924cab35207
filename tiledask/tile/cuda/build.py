"""A kernel's machine code: compiled once for each architecture, kept in a folder, loaded by CuPy.

NVRTC needs no GPU, so that the same function compiles for machines that are elsewhere, and what a
test measured of the code is true of the code that runs.
"""

import atexit
import hashlib
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tiledask.errors import KernelError
from tiledask.files import atomic_write
from tiledask.tile.backend import namespace
from tiledask.tile.cache import cache_folder
from tiledask.tile.cuda.source import source

__all__ = ["Resources", "arch_of", "compile_for", "loaded", "resources"]

Macros = Mapping[str, Any]

_HOPPER_ONLY = ("wgmma_ws_persistent",)


@dataclass(frozen=True)
class Resources:
    """What ptxas says that one thread, and one block, of a kernel takes."""

    registers: int
    """Registers of a thread, at launch."""
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
    try:
        code, log, failure = _nvrtc(name, source(name), _options(macros, arch))
    except Exception as error:  # the library is missing, or is another
        code, log, failure = b"", "", str(error) or type(error).__name__
    if failure:
        defined = " ".join(f"{key}={value}" for key, value in macros.items()) or "no macros"
        raise KernelError(
            f"kernel {name!r} did not compile for {arch} with {defined}: "
            f"{' '.join(f'{failure}: {log}'.split())[:600]}"
        )
    return code, log


def _options(macros: Macros, arch: str) -> list[str]:
    defined = [f"-D{key}={value}" for key, value in sorted(macros.items())]
    return [f"-arch={arch}", "--std=c++17", "-Xptxas=-v", *defined]


def _nvrtc(name: str, text: str, options: list[str]) -> tuple[bytes, str, str]:
    """(machine code, what was said, the error's name) of the compiler; no code, or no error."""
    nvrtc = import_module("cuda.bindings.nvrtc")

    def checked(result: Any, *found: Any) -> Any:
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(result.name)
        return found[0] if found else None

    program = checked(*nvrtc.nvrtcCreateProgram(text.encode(), f"{name}.cu".encode(), 0, [], []))
    try:
        given = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        said = bytearray(checked(*nvrtc.nvrtcGetProgramLogSize(program)))
        checked(*nvrtc.nvrtcGetProgramLog(program, said))
        log = said.rstrip(b"\0").decode(errors="replace")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return b"", log, result.name
        code = bytearray(checked(*nvrtc.nvrtcGetCUBINSize(program)))
        checked(*nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code), log, ""
    finally:
        nvrtc.nvrtcDestroyProgram(program)


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
        number(r"Used (\d+) registers"),
        spilled,
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"),
        remarks,
    )


def loaded(name: str, macros: Macros, capability: str) -> Any:
    """The kernel ``name`` on the device in use, of this capability; compiled if it never was."""
    return _loaded(name, tuple(sorted(macros.items())), arch_of(name, capability))


@cache
def _loaded(name: str, macros: tuple[tuple[str, Any], ...], arch: str) -> Any:
    path = _kept(name, dict(macros), arch)
    return namespace("cupy").RawModule(path=str(path)).get_function(name)


def _kept(name: str, macros: Macros, arch: str) -> Path:
    """The file with the machine code; made, and put there whole, if it is not there.

    Its name says of which text it is, how and by which compiler it was made.
    """
    made_of = repr((source(name), _options(macros, arch), _version())).encode()
    file = f"{name}-{arch}-{hashlib.sha256(made_of).hexdigest()[:24]}.cubin"
    folder = _folder()
    if not (folder / file).is_file():
        code, _ = compile_for(name, macros, arch)
        try:
            atomic_write(folder / file, code, 0o600)  # two processes may do this at once
        except OSError as error:
            folder = _of_this_process(f"{folder} cannot be written ({error.strerror})")
            atomic_write(folder / file, code, 0o600)
    return folder / file


@cache
def _version() -> tuple[int, int]:
    """NVRTC's."""
    _, major, minor = import_module("cuda.bindings.nvrtc").nvrtcVersion()
    return major, minor


def _folder() -> Path:
    """The folder of machine code, where nobody else can put any; if need be, only until we end."""
    folder = cache_folder() / "kernels"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return _of_this_process(f"{folder} is another user's")
        folder.chmod(0o700)
    except OSError as error:
        return _of_this_process(f"{folder} cannot be used ({error.strerror})")
    return folder


@cache
def _of_this_process(why: str) -> Path:
    warnings.warn(
        f"{why}: kernels are compiled anew in every process; set TILEDASK_CACHE to a folder of "
        f"your own",
        UserWarning,
        stacklevel=5,
    )
    folder = tempfile.mkdtemp(prefix="tiledask-kernels-")  # mode 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
