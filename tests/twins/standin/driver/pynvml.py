"""NVML without a driver: what Dask, Dask-CUDA and tiledask ask it about the CuPy stand-in's GPUs.

As NVML has it: nothing before nvmlInit; devices by whole numbers of the machine, whatever
CUDA_VISIBLE_DEVICES says, or by whole UUIDs; no memory of a GPU that has none of its own
(STANDIN_GPU_INTEGRATED). Put this folder before the one above on PYTHONPATH.
"""

import os
from types import SimpleNamespace

from cupy import _machine

NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE = 0, 1


class NVMLError(Exception):
    pass


for _name in (
    "NotSupported",
    "NotFound",
    "Uninitialized",
    "LibraryNotFound",
    "DriverNotLoaded",
    "Unknown",
    "NoPermission",
):
    globals()[f"NVMLError_{_name}"] = type(f"NVMLError_{_name}", (NVMLError,), {})

_started = 0


def nvmlInit():
    global _started
    _started += 1


def nvmlShutdown():
    global _started
    _started -= 1


def _asked():
    if _started <= 0:
        raise NVMLError_Uninitialized("Uninitialized")  # noqa: F821


def nvmlSystemGetDriverVersion():
    _asked()
    return "580.1"


def nvmlDeviceGetCount():
    _asked()
    return int(os.environ.get("STANDIN_GPUS", "1"))


def nvmlDeviceGetHandleByIndex(index):
    _asked()
    if not isinstance(index, int):
        raise TypeError(f"argument 1: expected int, got {type(index).__name__}")
    if not 0 <= index < nvmlDeviceGetCount():
        raise NVMLError("Invalid Argument")
    return SimpleNamespace(index=index)


def nvmlDeviceGetHandleByUUID(uuid):
    _asked()
    uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
    for index in range(nvmlDeviceGetCount()):
        if _machine.uuid(index) == uuid:
            return SimpleNamespace(index=index)
    raise NVMLError_NotFound("Not Found")  # noqa: F821


def nvmlDeviceGetUUID(handle):
    return _machine.uuid(handle.index)


def nvmlDeviceGetIndex(handle):
    return handle.index


def nvmlDeviceGetName(handle):
    return _machine.NAME


def nvmlDeviceGetCudaComputeCapability(handle):
    return 9, 0


def _not_supported(*_):
    raise NVMLError_NotSupported("Not Supported")  # noqa: F821


nvmlDeviceGetMigMode = nvmlDeviceGetMaxMigDeviceCount = _not_supported


def nvmlDeviceIsMigDeviceHandle(handle):
    return 0


def nvmlDeviceGetMemoryInfo(handle):
    if os.environ.get("STANDIN_GPU_INTEGRATED", "0") != "0":
        _not_supported()
    total = _machine.memory_of_each()
    with _machine._ledger(handle.index) as held:
        used = sum(entry[1] for entry in held.values())
    return SimpleNamespace(total=total, used=used, free=total - used)


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=0, memory=0)


def nvmlDeviceGetComputeRunningProcesses(handle):
    with _machine._ledger(handle.index) as held:
        return [SimpleNamespace(pid=int(pid)) for pid in held]


def nvmlDeviceGetCpuAffinity(handle, words):
    cores = os.sched_getaffinity(0)
    return [sum(1 << c - 64 * w for c in cores if 64 * w <= c < 64 * w + 64) for w in range(words)]
