"""Tensor maps: what the driver packs into 128 bytes, and a libcuda that does so.

The bytes are the stand-in's own; the rules are those of cuTensorMapEncodeTiled.
"""

import ctypes
import struct

import numpy as np

from cupy import _machine

_PACKED = struct.Struct("<4sIIIQ5Q4Q5I")
TYPES = {6: "float16", 7: "float32", 9: "bfloat16"}
INVALID = 1


def packed(kind, rank, address, sizes, strides, box, steps, interleave, swizzle, l2, fill):
    """(CUresult, 128 bytes)."""
    itemsize = 4 if kind == 7 else 2
    fine = (
        kind in TYPES
        and 1 <= rank <= 5
        and address % 16 == 0
        and address
        and all(0 < x <= 2**32 for x in sizes)
        and all(0 < x <= 256 for x in box)
        and all(s % 16 == 0 and 0 < s < 2**40 for s in strides)
        and all(1 <= s <= 8 for s in steps)
        and interleave == 0
        and 0 <= swizzle <= 3
        and 0 <= l2 <= 3
        and fill in (0, 1)
        and (box[0] * itemsize <= 128 or swizzle != 3)
        and box[0] * itemsize % 16 == 0
    )
    if not fine:
        return INVALID, bytes(128)
    fill_up = lambda x, n: [*x, *[0] * (n - len(x))]  # noqa: E731
    made = _PACKED.pack(
        b"TMAP",
        kind,
        rank,
        swizzle,
        address,
        *fill_up(sizes, 5),
        *fill_up(strides, 4),
        *fill_up(box, 5),
    )
    return 0, made.ljust(128, b"\0")


def read(raw, dtype):
    """The array [further, lines, length] that a map describes, in the device's memory."""
    magic, kind, rank, _, address, *rest = _PACKED.unpack(raw[: _PACKED.size])
    if magic != b"TMAP":
        raise _machine.StandInFault("a kernel got bytes that are no tensor map")
    if TYPES[kind] != dtype.name:
        raise _machine.StandInFault(f"a map of {TYPES[kind]} for a kernel of {dtype.name}")
    if rank != 3:
        raise _machine.StandInFault(f"a map of {rank} dimensions, the kernels take 3")
    sizes, strides = rest[:3], rest[5:7]
    from cupy.cuda.function import lies

    steps = [strides[1] // dtype.itemsize, strides[0] // dtype.itemsize, 1]
    if sizes[2] == 1:
        steps[0] = 0
    return lies(address, dtype, tuple(sizes[::-1]), steps)


_prototype = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
)


@_prototype
def encode_tiled(into, kind, rank, address, sizes, strides, box, steps, *how):
    if not into or into % 64:
        return INVALID  # the map must lie on a boundary of 64 bytes

    def read_from(pointer, form, count):
        return list((form * count).from_address(pointer)) if count else []

    result, made = packed(
        kind,
        rank,
        address or 0,
        read_from(sizes, ctypes.c_uint64, rank),
        read_from(strides, ctypes.c_uint64, rank - 1),
        read_from(box, ctypes.c_uint32, rank),
        read_from(steps, ctypes.c_uint32, rank),
        *how,
    )
    if result == 0:
        ctypes.memmove(into, made, 128)
    return result


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
def address_range(base, size, pointer):
    from cupy import _ipc

    if (found := _ipc.address_range(pointer)) is None:
        return 500  # CUDA_ERROR_NOT_FOUND
    for into, value in zip((base, size), found, strict=True):
        ctypes.c_uint64.from_address(into).value = value
    return 0


_NAMES = {INVALID: b"CUDA_ERROR_INVALID_VALUE", 500: b"CUDA_ERROR_NOT_FOUND"}


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
def error_name(result, into):
    into[0] = _NAMES.get(result)
    return 0 if result in _NAMES else INVALID


class _Libcuda:
    """libcuda.so.1, as far as it is called by name."""

    cuTensorMapEncodeTiled = encode_tiled
    cuMemGetAddressRange_v2 = address_range
    cuGetErrorName = error_name
    _name = "libcuda.so.1 (stand-in)"

    def __getattr__(self, name):
        raise AttributeError(f"undefined symbol: {name}")

    def __getitem__(self, name):
        return getattr(self, name)


class _CDLL(ctypes.CDLL):
    """Opens libraries, and the stand-in's in place of the driver's."""

    def __new__(cls, name=None, *args, **options):
        if isinstance(name, str) and name.rpartition("/")[2].startswith("libcuda.so"):
            return _Libcuda()
        return super().__new__(cls)


def install():
    """From now on this process finds the driver's library."""
    if ctypes.CDLL is not _CDLL:
        ctypes.CDLL = ctypes.cdll._dlltype = _CDLL


def as_words(raw):
    return np.frombuffer(raw, np.uint64)
