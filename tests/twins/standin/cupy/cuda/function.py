"""Kernels: what the functions of tiledask.tile.cuda compute, from what they are really passed.

"Machine code" made by twins/standin/cuda names the kernel's parameters as its text has them, and
its macros. A launch reads pointers, sizes and strides by those names, follows them in the device's
memory, and refuses what lies outside an allocation or is of another size than the parameter.
"""

import ctypes
import json

import numpy as np

from cupy import _array, _machine
from cupy.cuda import stream as streams
from cupy.cuda import tensor_maps

MAGIC = b"STANDIN\n"
TYPES = {
    "float": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "__half": "float16",
    "__nv_bfloat16": "bfloat16",
    "half": "float16",
}
SIZES = {
    "int": 4,
    "float": 4,
    "stride_t": 8,
    "long long": 8,
    "TensorMap": 128,
    "unsigned": 4,
    "double": 8,
    "bool": 1,
    "size_t": 8,
    "unsigned int": 4,
    "CUtensorMap": 128,
}


def dtype_of(name):
    if name == "bf16" or TYPES.get(name) == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(TYPES.get(name, name))


class Module:
    """Loaded machine code."""

    def load(self, content):
        self._facts = json.loads(content[len(MAGIC) :]) if content.startswith(MAGIC) else None

    def load_file(self, path):
        with open(path, "rb") as file:
            self.load(file.read())

    def get_function(self, name):
        if self._facts is None:
            raise _machine.CUDARuntimeError(
                1, "real machine code: only what tests/twins/standin/cuda made can be run"
            )
        if self._facts["name"] != name:
            raise _machine.CUDARuntimeError(1, f"there is no function {name!r} in this module")
        return Function(self._facts, self)


class RawModule:
    def __init__(self, code=None, *, path=None, options=(), backend="nvrtc", **_):
        if path is None:
            raise NotImplementedError("the stand-in loads what tests/twins/standin/cuda compiled")
        self._module = Module()
        self._module.load_file(path)

    def get_function(self, name):
        return self._module.get_function(name)


class RawKernel:
    """A kernel of text: compiled, so that mistakes in calling it show, and never run."""

    def __init__(self, code, name, options=(), backend="nvrtc", **_):
        self.code, self.name = code, name

    def __call__(self, *_):
        raise NotImplementedError(f"the stand-in cannot run the text of {self.name!r}")


class Function:
    """A kernel of a module, to be launched."""

    def __init__(self, facts, module):
        self._facts, self.module = facts, module
        self.name, self.macros = facts["name"], facts["macros"]
        self.parameters = facts["parameters"]
        self._shared = 48 * 1024
        self.launches = 0
        self.num_regs, self.local_size_bytes, self.shared_size_bytes = 128, 0, 0
        self.const_size_bytes, self.binary_version, self.ptx_version = 0, 90, 90
        self.max_threads_per_block = 1024
        self.ptr = id(self)

    kernel = property(lambda self: self)

    @property
    def attributes(self):
        return {"max_dynamic_shared_size_bytes": self._shared, "num_regs": self.num_regs}

    @property
    def max_dynamic_shared_size_bytes(self):
        return self._shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, nbytes):
        if nbytes > 227 * 1024:
            raise _machine.CUDARuntimeError(1, f"{nbytes} bytes of shared memory, a block has 227K")
        self._shared = nbytes

    def __call__(
        self, grid, block, args, shared_mem=0, stream=None, enable_cooperative_groups=False
    ):
        _machine.devices()
        grid, block = ((*x, 1, 1)[:3] for x in (grid, block))
        if min(*grid, *block) < 1 or max(grid[1:]) > 65535 or np.prod(block) > 1024:
            raise _machine.CUDARuntimeError(1, f"a grid of {grid}, blocks of {block}")
        if shared_mem > self._shared:
            raise _machine.CUDARuntimeError(
                1, f"{shared_mem} bytes of shared memory, allowed are {self._shared}"
            )
        if len(args) != len(self.parameters):
            raise _machine.StandInFault(
                f"{self.name} takes {len(self.parameters)} arguments "
                f"({', '.join(n for _, n in self.parameters)}), got {len(args)}"
            )
        given = {
            name: argument(kind, name, value)
            for (kind, name), value in zip(self.parameters, args, strict=True)
        }
        self.launches += 1
        if stream is not None:
            streams.by_number(getattr(stream, "ptr", stream))._drain()
        streams.settle()
        _product(self, given, grid)

    def linear_launch(self, *_, **__):
        raise NotImplementedError("the stand-in launches grids")


def argument(kind, name, value):
    """What the device finds in a parameter: a number, an address, or a tensor map's bytes."""
    if kind.endswith("*"):
        if isinstance(value, _array.ndarray):
            return value.data.ptr if value.size else 0
        if hasattr(value, "ptr"):
            return int(value.ptr)
        if isinstance(value, np.ndarray):
            raise TypeError(f"Unsupported type {type(value)}")
        if isinstance(value, np.generic) and value.nbytes != 8:
            raise _machine.StandInFault(f"{name} is a pointer, got {value.nbytes} bytes")
        if isinstance(value, ctypes.c_void_p):
            return value.value or 0
        return int(value)
    size = SIZES.get(kind)
    if size is None:
        raise _machine.StandInFault(f"{name} has a type that the stand-in does not know: {kind}")
    raw = _raw(value)
    if len(raw) != size:
        raise _machine.StandInFault(
            f"{name} is {kind} of {size} bytes, got {len(raw)} ({type(value).__name__})"
        )
    if size == 128:
        return raw
    form = {"float": "f4", "double": "f8", "bool": "?"}.get(kind, f"i{size}")
    found = np.frombuffer(raw, form)[0]
    if (form == "f4") != (_kind_of(value) == "f"):
        raise _machine.StandInFault(f"{name} is {kind}, got {type(value).__name__}: other bits")
    return found.item()


def _kind_of(value):
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind if value.dtype.kind == "f" else "i"
    return "f" if isinstance(value, float | ctypes.c_float) else "i"


def _raw(value):
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        return np.int64(value).tobytes()
    if isinstance(value, float):
        return np.float64(value).tobytes()
    return bytes(value) if not isinstance(value, np.ndarray | np.generic) else value.tobytes()


def lies(pointer, dtype, shape, strides):
    """A view of elements in the device's memory; ``strides`` count elements."""
    if 0 in shape:
        return np.empty(shape, dtype)
    if pointer % dtype.itemsize:
        raise _machine.CUDARuntimeError(700, f"{dtype} at {pointer:#x}: misaligned address")
    steps = [s * dtype.itemsize for s in strides]
    ends = [(n - 1) * s for n, s in zip(shape, steps, strict=True)]
    low, high = sum(min(0, e) for e in ends), sum(max(0, e) for e in ends) + dtype.itemsize
    data = _machine.at(pointer + low, high - low)
    return np.ndarray(shape, dtype, data, -low, steps)


def _product(kernel, given, grid):
    """C = activation(alpha A B + beta C + bias), as every kernel of the package ends."""
    macros = kernel.macros
    types = [dtype_of(macros.get(key, "float")) for key in ("TYPE", "OUT")]
    m, n, k = given["m"], given["n"], given["k"]
    if "map_a" in given:
        batches = given["batches"]
        a = tensor_maps.read(given["map_a"], types[0])
        b = tensor_maps.read(given["map_b"], types[0])
        a = a if macros.get("A_TURNED") in (0, "0") else a.swapaxes(-1, -2)
        b = b if macros.get("B_TURNED") not in (0, "0") else b.swapaxes(-1, -2)
        for name, x, expected in (("A", a, (m, k)), ("B", b, (k, n))):
            if x.shape[-2:] != expected:
                raise _machine.StandInFault(
                    f"the map of {name} has {x.shape[-2:]} elements, the kernel takes {expected}"
                )
        a, b = (
            x if given[f"{name}_batched"] else np.broadcast_to(x[:1], (batches, *x.shape[1:]))
            for name, x in (("a", a), ("b", b))
        )
        if grid[0] % int(macros.get("CLUSTER", 1)):
            raise _machine.CUDARuntimeError(1, "the grid is no multiple of the cluster")
        if "partials" in given:
            _slices(macros, given, batches * m * n)
    else:
        batches = grid[2]
        a = _operand(given, "a", types[0], (batches, m, k))
        b = _operand(given, "b", types[0], (batches, k, n))
        _covered(kernel, grid, m, n)
    where = [given[f"c_{x}"] for x in ("batch", "row", "col")]
    if where[0] == 0 and batches > 1:
        raise _machine.StandInFault("the matrices of a batch are all written to one place")
    c = lies(given["c"], types[1], (batches, m, n), where)
    if "map_c" in given and int(macros.get("STAGED", 0)):
        through = tensor_maps.read(given["map_c"], types[1])
        if through.ctypes.data != c.ctypes.data or through.shape != c.shape:
            raise _machine.StandInFault("the map of C is another matrix than c")
    alpha, beta = given["alpha"], given["beta"]
    tf32 = kernel.name == "mma_multistage" and types[0] == np.float32
    with np.errstate(all="ignore"):
        for z in range(batches):
            x, y = (v[z].astype(np.float32) for v in (a, b))
            if tf32:
                x, y = _tf32(x), _tf32(y)
            total = np.float32(alpha) * (x @ y)
            if _has(macros, "BETA") and beta:
                total += np.float32(beta) * c[z].astype(np.float32)
            if _has(macros, "BIAS") and given["bias"]:
                by_row = given.get("bias_by_row", int(macros.get("BIAS_BY_ROW", 0)))
                bias = lies(given["bias"], np.dtype("f4"), (m if by_row else n,), (1,))
                total += bias[:, None] if by_row else bias
            if _has(macros, "BEFORE") and given["before"]:
                lies(given["before"], types[1], (batches, m, n), where)[z] = total
            if _has(macros, "GELU") and given.get("gelu", 1):
                cubed = total + np.float32(0.044715) * total**3
                total = total / (1 + np.exp(np.float32(-2 * 0.7978845608) * cubed))
            c[z] = total


def _slices(macros, given, elements):
    """Memory for what slices of k sum, of each cut tile all; counters that begin at 0."""
    columns, cluster = int(macros["TILE_N"]), int(macros["CLUSTER"])
    tiles = -(-elements // (128 * cluster * columns))  # at least
    slices = (tiles - given["whole"]) * given["slices_of_a_tile"]
    _machine.at(given["partials"], slices * cluster * 128 * columns * 4)
    if _machine.at(given["arrived"], max(0, tiles - given["whole"]) * cluster * 2 * 4).any():
        raise _machine.StandInFault("the counters of slices do not begin at 0")


def _has(macros, what):
    return int(macros.get(f"HAS_{what}", 1))


def _operand(given, name, dtype, shape):
    return lies(given[name], dtype, shape, [given[f"{name}_{x}"] for x in ("batch", "row", "col")])


def _covered(kernel, grid, m, n):
    """A block per tile of C: fewer would leave tiles out."""
    macros = kernel.macros
    rows, columns = (int(macros.get(x) or macros["TILE"]) for x in ("TILE_M", "TILE_N"))
    down, across = -(-m // rows), -(-n // columns)
    blocks = (across, down) if "TILE" in macros else (across * down, 1)
    if grid[:2] != blocks:
        raise _machine.StandInFault(f"{kernel.name} needs a grid of {blocks}, got {grid[:2]}")


def _tf32(x):
    """10 bits of mantissa, ties away from 0."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
