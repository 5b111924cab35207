"""A kernel's machine code: compiled once for each architecture, kept in a folder, loaded by CuPy.

NVRTC needs no GPU, so that the same function compiles for machines that are elsewhere, and what a
test measured of the code is true of the code that runs.
"""

import hashlib
import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tiledask.errors import KernelError
from tiledask.files import atomic_write
from tiledask.tile.backend import namespace
from tiledask.tile.cache import cache_folder
from tiledask.tile.cuda.source import source

__all__ = ["arch_of", "compile_for", "loaded"]

Macros = Mapping[str, Any]

_HOPPER_ONLY = ("wgmma_ws_persistent",)


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
    folder = cache_folder() / "kernels"
    try:
        _check_own(folder)
        if not (folder / file).is_file():
            code, _ = compile_for(name, macros, arch)
            atomic_write(folder / file, code, 0o600)  # two processes may do this at once
    except OSError as error:
        raise KernelError(
            f"machine code is kept in {folder}, which cannot be used ({error}); set TILEDASK_CACHE "
            f"to a folder of your own"
        ) from None
    return folder / file


@cache
def _version() -> tuple[int, int]:
    """NVRTC's."""
    _, major, minor = import_module("cuda.bindings.nvrtc").nvrtcVersion()
    return major, minor


def _check_own(folder: Path) -> None:
    """Make the folder, where nobody else can put any code; OSError if somebody could."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise PermissionError("it is another user's")
    folder.chmod(0o700)
