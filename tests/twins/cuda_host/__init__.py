"""Runs a CUDA kernel of tiledask/tile/cuda on the host, thread by thread.

The kernel's own text is compiled with g++, together with the headers of this folder that stand in
for those of the same names on the GPU. tiledask/tile/README.md says what that shows.
"""

import ctypes
import hashlib
import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from gpu.gemm_cases import check
from oracles.finished import finished
from twins.cuda_host.memory import is_lent, lent, lent_copies, lent_empty, strays

from tiledask.tile.cuda import launch
from tiledask.tile.cuda.build import HEADERS, file_text

HERE = Path(__file__).parent
SOURCES = {".cpp", ".h", ".cuh"}
KEPT = HERE.parents[2] / "build" / "cuda_host"
"""Where the machine's object stays: `make clean` removes it."""
CHOSEN = ("HAS_BETA",)
"""Macros that one build leaves open until the launch: host::chosen. Of wgmma_ws_persistent none: on
them depends how C goes out."""
READ, WRITE, COPY, LDMATRIX = range(4)
"""Kinds of instructions on shared memory, as gpu.cuh beside this file numbers them."""
FEWEST_REGISTERS = 168
"""Registers of a thread at launch, as ptxas reports them for 384 threads (65536 / 384, by 8s)."""

MAP = np.dtype("u8, 3u4, u4, 2u8, 3u4, 19u4")
MAP.names = ("base", "size", "element", "stride", "box", "unused")
"""TensorMap of hopper.cuh on the host: all of its 128 bytes, which a kernel copies."""


class HostFault(AssertionError):
    """What a GPU would have answered with a wrong result, a crash, or never."""


def why_not():
    """Why nothing can run here; empty if it can."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        return "running the CUDA source on the host needs Linux and g++ (apt install g++)"
    return ""


# a jump to another stack is what the C library's checks of jumps take for a fault
COMPILER = ("g++", "-std=c++17", "-w", "-Wno-psabi", "-fPIC", "-U_FORTIFY_SOURCE")
FOR_KERNELS, FOR_THE_MACHINE = "-Og", "-O2"
"""A kernel takes longer to compile than to run, and with -O1 twice as long."""


@cache
def _machine():
    """The object of all that runs a kernel: compiled once, and again when its text changes."""
    command = [*COMPILER, FOR_THE_MACHINE]
    version = finished(*command, "--version", check=True).stdout
    texts = [path.read_bytes() for path in sorted(HERE.iterdir()) if path.suffix in SOURCES]
    digest = hashlib.sha256(b"\0".join([repr((command, version)).encode(), *texts])).hexdigest()
    made = KEPT / f"machine-{digest[:16]}.o"
    if not made.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:  # nobody sees half a file
            new = Path(folder) / made.name
            finished(*command, "-c", HERE / "machine.cpp", "-o", new, check=True)
            new.replace(made)
    return made


class HostKernel:
    """Stands in for a kernel of cupy.RawModule: called the same way, runs on the host.

    ``faults`` are pairs (before, after) that are planted in the kernel's text. What the macros in
    ``chosen`` say can change from launch to launch: `choose`.
    """

    def __init__(self, folder, name, macros, faults=(), chosen=()):
        folder.mkdir(parents=True, exist_ok=True)
        texts = {file: file_text(file) for file in (f"{name}.cu", *HEADERS)}
        for before, after in faults:
            file = next((file for file, text in texts.items() if before in text), f"{name}.cu")
            assert texts[file].count(before) == 1, f"{file} no longer reads {before!r} once"
            texts[file] = texts[file].replace(before, after)
        self.name = name
        self.chosen, self.cluster, self.seed = chosen, int(macros.get("CLUSTER", 1)), 1
        self.max_dynamic_shared_size_bytes, self.launched = 48 * 1024, []
        said = {"KERNEL": name, **macros}
        said |= {key: f"host::chosen[{i}]" for i, key in enumerate(chosen)}
        defined = "".join(f"#define {key} {value}\n" for key, value in said.items())
        (folder / "kernel.cu").write_text(defined + texts[f"{name}.cu"])
        for header in HEADERS:
            if not (HERE / header).exists():  # the others have stand-ins
                (folder / header).write_text(texts[header])
        library, file = folder / "kernel.so", f'-DKERNEL_FILE="{folder / "kernel.cu"}"'
        # a linker that takes a third of the usual one's time, if it is there
        command = [*COMPILER, FOR_KERNELS, *["-fuse-ld=gold"] * bool(shutil.which("ld.gold"))]
        command += ["-shared", f"-I{HERE}", file, HERE / "run.cpp", _machine(), "-o", library]
        done = finished(*command)
        assert done.returncode == 0, done.stderr
        self.library = ctypes.CDLL(str(library))
        self.run, number = self.library.launch, ctypes.c_uint
        self.run.argtypes = [*[number] * 8, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p]
        self.library.bytes_taken.restype = ctypes.c_longlong

    def choose(self, macros):
        """From now on they say what ``macros`` has; the kernel itself."""
        values = (ctypes.c_int * 8).in_dll(self.library, "chosen")
        for i, key in enumerate(self.chosen):
            values[i] = macros.get(key, 0)
        return self

    def __call__(self, grid, block, arguments, shared_mem=0):
        self.library.may_read_anything()
        arrays = [x for x in arguments if isinstance(x, np.ndarray) and x.dtype != MAP]
        for x in arrays:
            starts, size = _lines(x)
            if x is arrays[-1] and self.name != "smem_tiled":  # C, up to the ends of its lines
                size = -(-size // 16) * 16
            starts = starts.ctypes.data_as(ctypes.c_void_p), len(starts)
            self.library.may_read(*starts, ctypes.c_long(size))
        assert shared_mem <= self.max_dynamic_shared_size_bytes, "allow it that much first"
        values = [_value(x) for x in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(v.ctypes.data for v in values))
        fault = ctypes.create_string_buffer(512)
        grid, block = (*grid, 1, 1)[:3], (*block, 1, 1)[:2]
        self.launched.append((grid, block, shared_mem))
        failed = self.run(
            *grid, *block, self.cluster, shared_mem, FEWEST_REGISTERS, self.seed, pointers, fault
        )
        stray = strays()
        if failed or stray:
            raise HostFault(stray or fault.value.decode())


def _lines(x):
    """(addresses of the lines of neighbours, bytes of one): all that may be read of ``x``."""
    axis = next((i for i in range(x.ndim)[::-1] if x.strides[i] == x.itemsize), None)
    offsets = np.zeros((), np.int64)
    for dim in range(x.ndim):
        if dim != axis:
            offsets = np.add.outer(offsets, np.arange(x.shape[dim]) * x.strides[dim])
    length = 1 if axis is None else x.shape[axis]
    return x.ctypes.data + np.unique(offsets), length * x.itemsize


def _value(x):
    """The bytes of an argument as the kernel takes it: an array by its address, all else itself."""
    if isinstance(x, np.ndarray) and x.dtype == MAP:
        return lent(x)  # on the boundary that its type has there
    if isinstance(x, np.ndarray):
        assert is_lent(x), f"lend the array of {x.shape} first: a wrong kernel stores beside it"
        return np.array([x.ctypes.data], np.uint64)
    assert isinstance(x, np.generic), f"say the C type of {x!r}"
    return np.atleast_1d(x)


def host_tensor_map(address, sizes, strides, box):
    """What cuTensorMapEncodeTiled makes, for hopper.cuh on the host; the rules are its own.

    CUDA Driver API, section "Tensor Map Object Management".
    """
    size = 2
    assert address % 16 == 0, "the matrix starts at a multiple of 16"
    assert all(s % 16 == 0 and 0 < s < 2**40 for s in strides), f"strides {strides}: by 16 bytes"
    assert all(0 < s <= 2**32 for s in sizes)
    assert all(0 < b <= 256 for b in box)
    assert box[0] * size <= 128, "a swizzled box is 128 bytes wide at most"
    made = np.zeros(1, MAP)
    made["base"], made["size"], made["element"] = address, sizes, size
    made["stride"], made["box"] = strides, box
    return made


class HostGpu:
    """`launch` on the host: the kernels that it has built, and cases that run on them."""

    def __init__(self, folder, faults):
        self.folder, self.faults, self.seed, self.built = folder, faults, 1, {}

    def kernel(self, name, macros, shared):
        """What stands for `launch._kernel`."""
        macros = dict(macros)
        chosen = () if name == "wgmma_ws_persistent" else CHOSEN
        fixed = {key: value for key, value in macros.items() if key not in chosen}
        key = (name, *sorted(fixed.items()))
        if key not in self.built:
            where = self.folder / str(len(self.built))
            self.built[key] = HostKernel(where, name, fixed, self.faults, chosen)
        found = self.built[key].choose(macros)
        found.seed = self.seed
        found.max_dynamic_shared_size_bytes = max(48 * 1024, shared)
        return found

    def loads(self, case, name, tile):
        """What the kernel says that it loads; HostFault if C is wrong, or what lies around it."""
        self.seed, said = case.seed + 1, []

        def run(a, b, out, beta):
            said.append(launch.launch(name, a, b, out, tile, beta))

        error = check(run, case, empty=lent_empty)
        if not error.right:
            raise HostFault(f"{case}: {error}")
        return said[0]

    def catches(self, cases, name, tile):
        """Whether one of them comes out wrong, or never."""
        try:
            for case in cases:
                self.loads(case, name, tile)
        except HostFault:
            return True
        return False

    @property
    def taken(self):
        """Bytes that the copy engine has taken out of matrices."""
        return sum(kernel.library.bytes_taken() for kernel in self.built.values())

    def turns(self, kind, size):
        """How often shared memory was asked at most for one instruction with ``size`` bytes a lane.

        1: no two lanes that are served together wanted different words of one bank.
        """
        return max(k.library.worst_conflict(kind, size) for k in self.built.values())

    def unpaired(self, kind, size):
        """Instructions in which lanes neither go in pairs (i, i ^ 1) nor in pairs (i, i ^ 2)."""
        return sum(k.library.unpaired(kind, size) for k in self.built.values())


@contextmanager
def host_gpu(folder, faults=(), multiprocessors=2):
    """Lets `launch` run its kernels on the host, on lent arrays."""
    gpu = HostGpu(folder, faults)
    with lent_copies(), ExitStack() as patches:
        for module, name, value in (
            (launch, "_kernel", gpu.kernel),
            (launch, "_multiprocessors", lambda: multiprocessors),
            (launch, "tensor_map", host_tensor_map),
        ):
            patches.enter_context(patch.object(module, name, value))
        yield gpu
