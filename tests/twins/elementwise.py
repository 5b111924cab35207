"""CuPy's ElementwiseKernel and ReductionKernel on the host: their own text, compiled by g++, for an
element after another. Sums are NumPy's, in float32.
"""

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

WORDS = {"uint16": "unsigned short", "float32": "float"}
DEVICE = """
#include <math.h>
#include <string.h>
#define __device__
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
"""
COMPILER = ("g++", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC", "-x", "c++", "-")


@cache
def compiled(preamble, params, operation):
    """A function of (count, addresses), of a text and its params, (type, name) of each."""
    elements = "".join(
        f"{WORDS[kind]}& {name} = static_cast<{WORDS[kind]}*>(at_[{n}])[element_];\n"
        for n, (kind, name) in enumerate(params)
    )
    text = f"""{DEVICE}{preamble}
    extern "C" void run(long count_, void** at_) {{
        for (long element_ = 0; element_ < count_; ++element_) {{ {elements} {operation}; }}
    }}"""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        subprocess.run([*COMPILER, "-o", library], input=text, text=True, check=True)
        return ctypes.CDLL(str(library)).run


def parsed(words):
    return [tuple(each.split()) for each in words.split(",")]


class Kernel:
    """Called with what goes in, and after it, perhaps, the arrays that are written."""

    def __init__(self, given, made, operation, name, preamble=""):
        self.given, self.made, self.operation = parsed(given), parsed(made), operation
        self.__name__, self.preamble = name, preamble

    def __call__(self, *arrays):
        given, made = arrays[: len(self.given)], arrays[len(self.given) :]
        shape = np.broadcast_shapes(*(np.shape(x) for x in (*given, *made)))
        made = made or [np.empty(shape, kind) for kind, _ in self.made]
        read, params = [], []
        for (kind, name), x in zip(self.given, given, strict=True):
            found = x.dtype.name if isinstance(x, np.ndarray) else "float32"
            assert kind in ("G", found), f"{name} is {found}"  # a capital stands for any type
            params.append((found, name))
            read.append(np.array(np.broadcast_to(x, shape), found, order="C"))
        for (kind, name), x in zip(self.made, made, strict=True):
            assert (x.shape, x.dtype.name) == (shape, kind), f"{name} is {x.shape} {x.dtype}"
        written = [x.copy(order="C") for x in made]
        addresses = [x.ctypes.data for x in (*read, *written)]
        run = compiled(self.preamble, (*params, *self.made), self.operation)
        run(ctypes.c_long(read[0].size), (ctypes.c_void_p * len(addresses))(*addresses))
        for x, y in zip(made, written, strict=True):
            x[...] = y
        return tuple(made) if len(made) > 1 else made[0]


class Reduction:
    """The sum of what a map makes."""

    def __init__(self, given, made, mapped, reduced, after, identity, name, preamble=""):
        assert (reduced, after, identity) == ("a + b", f"{made.split()[1]} = a", "0")
        self.each = Kernel(given, "float32 each_", f"each_ = {mapped}", name, preamble)
        self.__name__ = name

    def __call__(self, *arrays, axis, keepdims):
        return self.each(*arrays).sum(axis=axis, keepdims=keepdims, dtype=np.float32)
