"""The device that is measured: its name, what arithmetic knows of it, its clocks at a moment."""

import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from tiledask.plan.inputs.hardware import Device
from tiledask.tile.backend import namespace, probe
from tiledask.tile.choice.tuning import cpu_name, device_at_hand

__all__ = ["clocks", "described", "device_of", "facts_of"]

_QUERIES = ("clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")
"""What nvidia-smi, the command of NVML, is asked for: MHz, MHz, W, W, degrees Celsius."""
_NAMES = ("SM MHz", "memory MHz", "W", "W at most", "degrees C")


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
        "driver": found.driver or _smi("driver_version"),
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


def clocks(arrays: str) -> dict[str, float]:
    """Clocks, power and temperature at this moment; empty where nothing tells them.

    They are only read, never set.
    """
    if arrays == "numpy":
        return {}
    with suppress(Exception):  # no NVML's bindings, or bindings that do not know this driver
        return _nvml()
    values = [text.strip() for text in _smi(",".join(_QUERIES)).split(",")]
    found = {}
    for name, value in zip(_NAMES, values, strict=False):
        with suppress(ValueError):
            found[name] = float(value)
    return found


def _nvml() -> dict[str, float]:
    import pynvml as nvml

    nvml.nvmlInit()
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(_bus().encode())
        values = (
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        )
        return dict(zip(_NAMES, map(float, values), strict=True))
    finally:
        nvml.nvmlShutdown()


def _smi(query: str) -> str:
    """What nvidia-smi answers for the GPU in use; empty if it does not."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    with suppress(Exception):  # no answer, or a bus that it does not know
        done = subprocess.run(
            [program, f"--id={_bus()}", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return done.stdout.strip()
    return ""


def _bus() -> str:
    cp = namespace("cupy")
    return cp.cuda.runtime.deviceGetPCIBusId(cp.cuda.Device().id)
