"""GPU workers: whether there are usable GPUs, and whose each one is.

    start_cluster     one or more workers on each GPU, which share its memory
    connect           a GPU that Dask-CUDA gave to a worker (CUDA_VISIBLE_DEVICES)

A plain worker of a machine with GPUs may use the first of them, as all its neighbours may: without
CUDA_VISIBLE_DEVICES it is not looked for unless device="cuda" asks for it.
"""

import importlib
import os
import sys
from typing import Any

from tiledask.errors import ConfigError
from tiledask.extras import install
from tiledask.tile.backend import probe

__all__ = ["check_device", "choose_device", "gpu_options", "own_gpu", "share_of"]


def check_device(device: str) -> None:
    """Raise ConfigError if ``device`` is none, or workers cannot run on this system."""
    if sys.platform != "linux":
        raise ConfigError("clusters need Linux, whose workers read each other's memory")
    if device not in ("auto", "cuda", "cpu"):
        raise ConfigError(f"device is 'auto', 'cuda' or 'cpu', got {device!r}")


def choose_device(device: str) -> tuple[str, str]:
    """("numpy" or "cupy", the reason in words), for "auto", "cuda" or "cpu"."""
    check_device(device)
    if device == "cpu":
        return "numpy", "because device='cpu'"
    reason = probe().reason
    if not reason:
        try:
            importlib.import_module("dask_cuda")
        except Exception as error:  # of a package that it needs and that is too old, too
            reason = f"dask-cuda cannot be imported ({error}): {install('gpu')}"
        else:
            names = ", ".join(device.name for device in probe().devices)
            return "cupy", f"{names} took a real allocation"
    if device == "cuda":
        raise ConfigError(f"device='cuda' needs a usable GPU: {reason}; or device='cpu'")
    return "numpy", "no usable GPU, and none is needed (tiledask doctor says why)"


def share_of(memory: int, sharers: int) -> int:
    """Bytes of a GPU's ``memory`` that each of its ``sharers`` may plan with: a tenth is CUDA's."""
    return int(0.9 * memory / sharers)


def gpu_options(slot: int, per_gpu: int, env: dict[str, str], host: int) -> dict[str, Any]:
    """What Dask's nanny gives the worker of ``slot``, beside ``env``: ``per_gpu`` share a GPU.
    ``host``: bytes of host memory per worker."""
    from dask_cuda.device_host_file import DeviceHostFile
    from dask_cuda.utils import cuda_visible_devices

    share = min(share_of(device.memory, per_gpu) for device in probe().devices)
    levels = {"device_memory_limit": share, "memory_limit": host}
    return {
        # all of them, its own first: memory of another one can be mapped only where that is
        # visible (cudaIpcOpenMemHandle)
        "env": {**env, "CUDA_VISIBLE_DEVICES": cuda_visible_devices(slot // per_gpu)},
        "data": (DeviceHostFile, levels),
    }


def own_gpu(device: str) -> int | str:
    """Bytes of the GPU of this worker; or why it has none."""
    if device == "cpu":
        return "because device='cpu'"
    if device == "auto" and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        return "no GPU was given to it (CUDA_VISIBLE_DEVICES, as Dask-CUDA sets it)"
    if not probe().usable:
        return f"no usable GPU ({probe().reason})"
    return probe().devices[0].memory
