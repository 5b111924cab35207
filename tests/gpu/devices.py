"""Cases on either kind of arrays, large on a GPU and small without."""

import re
from dataclasses import replace

import psutil
import pytest

from tiledask.plan.data import names
from tiledask.plan.inputs.hardware import load_device
from tiledask.tile.backend import namespace, probe

LESS = {"cupy": 1, "numpy": 64}
"""What extents are divided by."""
GPU = (pytest.mark.gpu, pytest.mark.slow)
"""Marks of what `make gpu` runs, and no other run."""


def on(cupy, numpy):
    """Parameters of ("numpy", *case) for `make test`, of ("cupy", *case) for `make gpu`."""
    small = [pytest.param("numpy", *case) for case in numpy]
    return small + [pytest.param("cupy", *case, marks=GPU) for case in cupy]


def memory_of(arrays):
    """Bytes of the GPU in use; of this machine for "numpy"."""
    if arrays == "numpy":
        return psutil.virtual_memory().total
    return namespace("cupy").cuda.runtime.memGetInfo()[1]


def release(arrays):
    """Give memory back that CuPy's pool holds unused."""
    if arrays == "cupy":
        namespace("cupy").get_default_memory_pool().free_all_blocks()


def device_at_hand():
    """The shipped description of the GPU in use, with as many multiprocessors as its driver says;
    None if the model is not among them."""
    device = namespace("cupy").cuda.Device()
    found = probe().devices[device.id]
    words = set(re.findall(r"[A-Z0-9]+", found.name.upper()))
    shipped = [load_device(each) for each in names("hardware")]
    same = [each for each in shipped if each.name.upper().split("-")[0] in words]
    nearest = min(same, key=lambda each: abs(each.memory_bytes - found.memory), default=None)
    many = device.attributes["MultiProcessorCount"]
    return nearest and replace(nearest, multiprocessors=many)
