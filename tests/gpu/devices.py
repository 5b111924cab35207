"""Cases on either kind of arrays, large on a GPU and small without."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import psutil
import pytest

from tiledask.plan.data import names
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.tile.backend import namespace, probe

__all__ = ["GPU", "LESS", "device_at_hand", "memory_of", "on"]

LESS = {"cupy": 1, "numpy": 64}
"""What extents are divided by."""

GPU = (pytest.mark.gpu, pytest.mark.slow)
"""Marks of what `make gpu` runs, and no other run."""


def on(cupy: Iterable[tuple[Any, ...]], numpy: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Parameters of ("numpy", *case) for `make test`, of ("cupy", *case) for `make gpu`."""
    small = [pytest.param("numpy", *case) for case in numpy]
    return small + [pytest.param("cupy", *case, marks=GPU) for case in cupy]


def memory_of(arrays: str) -> int:
    """Bytes of the GPU in use; of this machine for "numpy"."""
    if arrays == "numpy":
        return int(psutil.virtual_memory().total)
    return int(namespace("cupy").cuda.runtime.memGetInfo()[1])


def device_at_hand() -> Device | None:
    """The shipped description of the GPU in use, with as many multiprocessors as its driver says;
    None if the model is not among them."""
    cp = namespace("cupy")
    found = probe().devices[cp.cuda.Device().id]
    words = set(re.findall(r"[A-Z0-9]+", found.name.upper()))
    shipped = [load_device(each) for each in names("hardware")]
    same = [device for device in shipped if device.name.upper().split("-")[0] in words]
    if not same:
        return None
    nearest = min(same, key=lambda device: abs(device.memory_bytes - found.memory))
    return replace(nearest, multiprocessors=cp.cuda.Device().attributes["MultiProcessorCount"])
