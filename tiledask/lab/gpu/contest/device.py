"""The device that is measured: its name, and what arithmetic knows of it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tiledask.plan.inputs.hardware import Device
from tiledask.tile.backend import namespace, probe
from tiledask.tile.choice.tuning import cpu_name, device_at_hand

__all__ = ["described", "device_of", "facts_of"]


def described(arrays: str) -> Device | None:
    """The device in use as the arithmetic knows it: None for a CPU and for GPUs unknown to it."""
    return device_at_hand() if arrays == "cupy" else None


def facts_of(arrays: str) -> dict[str, Any]:
    """Name, driver and CUDA of the device in use, and what the arithmetic takes it for."""
    if arrays == "numpy":
        return {"kind": "CPU", "name": cpu_name(), "described": None}
    cp, found, device = namespace("cupy"), probe(), described(arrays)
    here = found.devices[cp.cuda.Device().id]
    return {
        "kind": "GPU",
        "name": here.name,
        "compute capability": here.compute_capability,
        "memory": here.memory,
        "driver": found.driver,
        "CUDA": found.cuda,
        "CuPy": found.cupy,
        "described": device and asdict(device),
    }


def device_of(facts: Mapping[str, Any]) -> Device | None:
    """The Device that `facts_of` described, also after a journey through a JSON file."""
    kept = facts.get("described")
    if not kept:
        return None
    return Device(**{**kept, "peak_flops": tuple(map(tuple, kept["peak_flops"]))})
