"""The device at hand: its name, and what is known of it from its description and its driver."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tiledask.plan.data import names
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.tile.backend import namespace, probe

__all__ = ["cpu_name", "described", "device_at_hand"]

_REPORTED = {
    "multiprocessors": "multiProcessorCount",
    "l2_bytes": "l2CacheSize",
    "registers": "regsPerMultiprocessor",
    "threads": "maxThreadsPerMultiProcessor",
    "blocks": "maxBlocksPerMultiProcessor",
    "shared_bytes": "sharedMemPerMultiprocessor",
    "block_shared_bytes": "sharedMemPerBlockOptin",
}
"""Fields of a Device and their names in CUDA's cudaDeviceProp."""


def device_at_hand() -> Device | None:
    """The GPU in use: the shipped description of its model, with what its driver says instead.

    None if the model is not among them. Raises KernelError where no GPU is usable.
    """
    cp = namespace("cupy")
    facts = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)
    device = probe().devices[cp.cuda.Device().id]
    return described(device.name, device.memory, facts)


def described(name: str, memory: int, facts: Mapping[str, Any]) -> Device | None:
    """The shipped device that a driver calls ``name``, ``facts`` of cudaDeviceProp replacing its
    own: a card of fewer multiprocessors goes by the same name.

    >>> found = described("NVIDIA A100-SXM4-80GB", 80 * 10**9, {"multiProcessorCount": 100})
    >>> found.name, found.multiprocessors
    ('A100-80GB', 100)
    >>> described("NVIDIA GeForce GTX 1080", 8 * 10**9, {}) is None
    True
    """
    words = set(re.findall(r"[A-Z0-9]+", name.upper()))
    shipped = [load_device(each) for each in names("hardware")]
    same = [device for device in shipped if device.name.upper().split("-")[0] in words]
    if not same:
        return None
    nearest = min(same, key=lambda device: abs(device.memory_bytes - memory))
    told: dict[str, Any] = {
        field: int(facts[key]) for field, key in _REPORTED.items() if facts.get(key)
    }
    return replace(nearest, **told)


def cpu_name() -> str:
    """The processor's name and how many of its cores this process may use.

    >>> cpu_name().endswith(" core(s)")
    True
    """
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            found = (line for line in lines if line.lower().startswith("model name"))
            model = next(found, "").partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return f"{model or platform.processor() or platform.machine()}, {cores} core(s)"
