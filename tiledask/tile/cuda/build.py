"""A kernel's text, and its machine code: compiled once for each architecture, kept
in a folder, loaded by CuPy. NVRTC needs no GPU: tests compile what runs elsewhere.
"""

import hashlib
import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

from tiledask.errors import KernelError
from tiledask.files import atomic_write
from tiledask.tile.backend import namespace
from tiledask.tile.choice.config import configs

__all__ = ["HEADERS", "arch_of", "compile_for", "file_text", "loaded", "texts"]

Macros = Mapping[str, Any]

HEADERS = ("gpu.cuh", "hopper.cuh", "epilogue.cuh", "panels.cuh")


@cache
def file_text(name: str) -> str:
    """The text of one file beside this one.

    >>> "__global__" in file_text("smem_tiled.cu")
    True
    """
    return files("tiledask.tile.cuda").joinpath(name).read_text(encoding="utf-8")


def texts(name: str) -> list[str]:
    """All that the machine code of the kernel ``name`` depends on: its text and every header's."""
    return [file_text(file) for file in (f"{name}.cu", *HEADERS)]


# -- machine code ----------------------------------------------------------------------------------


def arch_of(name: str, capability: str) -> str:
    """The architecture to compile the kernel ``name`` for, on a GPU of this compute capability.

    >>> arch_of("smem_tiled", "8.9"), arch_of("wgmma_ws_persistent", "9.0")
    ('sm_89', 'sm_90a')
    """
    alone = "a" if configs[name][0].capability.endswith("a") else ""
    return f"sm_{capability.replace('.', '')}{alone}"


def compile_for(name: str, macros: Macros, arch: str) -> tuple[bytes, str]:
    """(machine code, the compiler's log) of the kernel ``name``; KernelError where it fails."""
    log, given = StringIO(), [(key, str(value)) for key, value in sorted(macros.items())]
    how: Any = {"arch": arch, "std": "c++17", "ptxas_options": "-v", "define_macro": given}
    how |= {"name": f"{name}.cu", "include_path": str(Path(__file__).parent)}
    try:
        core = import_module("cuda.core")
        program = core.Program(texts(name)[0], "c++", core.ProgramOptions(**how))
        code = program.compile("cubin", logs=log).code
    except Exception as error:  # the library is missing, or is another, or refuses the text
        defined = " ".join(f"{key}={value}" for key, value in macros.items()) or "no macros"
        failure = " ".join((str(error) or type(error).__name__).split())
        raise KernelError(
            f"kernel {name!r} did not compile for {arch} with {defined}: {failure[:600]}"
        ) from None
    return bytes(code), log.getvalue()


def loaded(name: str, macros: Macros, capability: str) -> Any:
    """The kernel ``name`` on the device in use, of this capability; compiled if it never was."""
    path = _kept(name, macros, arch_of(name, capability))
    return namespace("cupy").RawModule(path=str(path)).get_function(name)


def _kept(name: str, macros: Macros, arch: str) -> Path:
    """The file with the machine code; made, and put there whole, if it is not there.

    Its name says of which text it is, how and by which compiler it was made. The folder is below
    $TILEDASK_CACHE, $XDG_CACHE_HOME/tiledask or ~/.cache/tiledask.
    """
    version = import_module("cuda.bindings.nvrtc").nvrtcVersion()[1:]
    made_of = repr((texts(name), sorted(macros.items()), arch, version)).encode()
    file = f"{name}-{arch}-{hashlib.sha256(made_of).hexdigest()[:24]}.cubin"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("TILEDASK_CACHE") or Path(base) / "tiledask") / "kernels"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            raise PermissionError("it is another user's, who could put any code there")
        folder.chmod(0o700)
        if not (folder / file).is_file():
            code, _ = compile_for(name, macros, arch)
            atomic_write(folder / file, code, 0o600)  # two processes may do this at once
    except OSError as error:
        raise KernelError(
            f"machine code is kept in {folder}, which cannot be used ({error}); set TILEDASK_CACHE "
            f"to a folder of your own"
        ) from None
    return folder / file
