"""What the CUDA compiler made of a kernel: asked once, and again when anything it sees changes.

A kernel takes it seconds, and each run of the tests asks about the same ones. And what its machine
code shows: how large it is, how often a thread waits for memory.
"""

import hashlib
import pickle
import re
import struct
import sysconfig
import tempfile
from importlib import import_module
from pathlib import Path

import pytest
from oracles.finished import finished

from tiledask.tile.cuda import build
from tiledask.tile.cuda.build import texts

KEPT = Path(__file__).parents[2] / "build" / "cuda_compiled"
"""`make clean` removes it."""


def compiled(name, macros, arch):
    """(machine code, what the compiler said), as `build.compile_for` has it."""
    version = import_module("cuda.bindings.nvrtc").nvrtcVersion()[1:]
    options = Path(build.__file__).read_text()
    key = repr((texts(name), sorted(macros.items()), arch, version, options))
    path = KEPT / f"{name}-{arch}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.pickle"
    if not path.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:  # nobody sees half a file
            new = Path(folder) / path.name
            new.write_bytes(pickle.dumps(build.compile_for(name, macros, arch)))
            new.replace(path)
    return pickle.loads(path.read_bytes())


def text_bytes(code):
    """Bytes of instructions in a cubin, which is an ELF file: its sections .text and .text.NAME."""
    (start,) = struct.unpack_from("<Q", code, 0x28)
    size, count, names = struct.unpack_from("<HHH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", code, start + i * size) for i in range(count)]
    offset = sections[names][4]
    return sum(s[5] for s in sections if code[offset + s[0] :].startswith(b".text"))


def machine_code(code, folder):
    """[(name, operands)] of the machine instructions, in order, without what guards them."""
    disassembler = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/bin/nvdisasm"
    if not disassembler.exists():
        pytest.skip("nvdisasm is not installed (pip install -e '.[test]' brings it on Linux)")
    path = folder / "kernel.cubin"
    path.write_bytes(code)
    text = finished(disassembler, "-c", path, check=True).stdout
    guard, name = r"(?:@!?U?P\w+\s+)?", r"([A-Z][\w.]+)"
    return re.findall(rf"^\s*/\*[0-9a-f]{{4,}}\*/\s+{guard}{name}\s*([^;]*);", text, re.M)


def round_trips(instructions):
    """How often a thread stands still for values of global memory, in code that runs once through.

    A read takes hundreds of cycles, but a thread goes on until it uses what it has read; by then
    all reads asked for before are as good as there. So reads that are used one by one each count,
    and any number of them that are asked for before the first is used count once.
    """
    coming, waits = set(), 0
    for name, operands in instructions:
        registers = set()
        for number, wide in re.findall(r"\bR(\d+)(\.64)?", operands):
            registers |= {int(number), int(number) + bool(wide)}
        made = set()
        if re.match(r"LDG\.(?!DEPBAR)", name) and (found := re.match(r"R(\d+)", operands)):
            words = {"64": 2, "128": 4}
            count = next((words[part] for part in name.split(".") if part in words), 1)
            made = set(range(int(found[1]), int(found[1]) + count))
        if (registers - made) & coming:
            waits += 1
            coming = set()
        coming |= made
    return waits
