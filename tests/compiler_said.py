"""What the CUDA compiler made of a kernel: asked once, and again when anything it sees changes.

A kernel takes it seconds; two test files, and each run of the tests, ask about the same ones.
"""

import hashlib
import pickle
import tempfile
from importlib import import_module
from pathlib import Path

from tiledask.tile.cuda import build
from tiledask.tile.cuda.source import source

__all__ = ["compiled"]

KEPT = Path(__file__).parent.parent / "build" / "cuda_compiled"
"""`make clean` removes it."""


def compiled(name, macros, arch):
    """(machine code, what the compiler said), as `build.compile_for` has it."""
    version = import_module("cuda.bindings.nvrtc").nvrtcVersion()[1:]
    options = Path(build.__file__).read_text()
    key = repr((source(name), sorted(macros.items()), arch, version, options))
    path = KEPT / f"{name}-{arch}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.pickle"
    if not path.is_file():
        made = build.compile_for(name, macros, arch)
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:  # nobody sees half a file
            new = Path(folder) / path.name
            new.write_bytes(pickle.dumps(made))
            new.replace(path)
    return pickle.loads(path.read_bytes())
