"""GPU workers: whether there are usable GPUs, and whose each one is.

    start_cluster     one or more workers on each GPU, which share its memory
    connect           a GPU that Dask-CUDA gave to a worker (CUDA_VISIBLE_DEVICES)

A plain worker of a machine with GPUs may use the first of them, as all its neighbours may: without
CUDA_VISIBLE_DEVICES it is not looked for unless device="cuda" asks for it.
"""

import importlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.extras import install
from tiledask.tile.backend import namespace, probe

__all__ = ["OwnGpu", "check_device", "choose_device", "gpu_options", "own_gpu", "pool_of"]
__all__ += ["share_of"]


class OwnGpu(NamedTuple):
    """The GPU that a worker computes on."""

    uuid: str
    memory: int
    """Bytes."""
    integrated: bool
    """Whether these are the host's."""


def check_device(device: str) -> None:
    """Raise ConfigError if ``device`` is none."""
    if device not in ("auto", "cuda", "cpu"):
        raise ConfigError(f"device is 'auto', 'cuda' or 'cpu', got {device!r}")


def choose_device(device: str) -> tuple[str, str]:
    """("numpy" or "cupy", the reason in words), for "auto", "cuda" or "cpu"."""
    check_device(device)
    if device == "cpu":
        return "numpy", "because device='cpu'"
    found = probe()
    reason = found.reason
    if not reason:
        try:
            importlib.import_module("dask_cuda")
        except Exception as error:  # of a package that it needs and that is too old, too
            reason = f"dask-cuda cannot be imported ({error}): {install('gpu')}"
    if not reason:
        names = ", ".join(device.name for device in found.devices)
        return "cupy", f"{names} took a real allocation"
    if device == "cuda":
        raise ConfigError(f"device='cuda' needs a usable GPU: {reason}; or device='cpu'")
    return "numpy", "no usable GPU, and none is needed (tiledask doctor says why)"


def share_of(gpu: Any, sharers: int, host: int) -> int:
    """Bytes of a GPU that each of its ``sharers`` may plan with: a tenth is CUDA's own.

    ``host``: bytes of host memory per worker, which is what a GPU without memory of its own uses.
    """
    return int(0.9 * (host if gpu.integrated else gpu.memory / sharers))


def gpu_options(slot: int, per_gpu: int, env: dict[str, str], host: int) -> dict[str, Any]:
    """What Dask's nanny gives the worker of ``slot``, beside ``env``: ``per_gpu`` share a GPU.
    ``host``: bytes of host memory per worker."""
    from dask_cuda.device_host_file import DeviceHostFile

    gpus, devices, gpu = _visible_gpus(), probe().devices, slot // per_gpu
    share = min(share_of(device, per_gpu, host) for device in devices)
    levels = {"device_memory_limit": share, "memory_limit": host}
    return {
        # all of them, its own first: memory of another one can be mapped only where that is
        # visible (cudaIpcOpenMemHandle)
        "env": {**env, "CUDA_VISIBLE_DEVICES": ",".join(gpus[gpu:] + gpus[:gpu])},
        # where both memories are one, Dask alone moves blocks, from memory to disk
        "data": None if devices[gpu].integrated else (DeviceHostFile, levels),
    }


def own_gpu(device: str) -> OwnGpu | str:
    """The GPU of this worker; or why it has none."""
    if device == "cpu":
        return "because device='cpu'"
    if device == "auto" and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        return "no GPU was given to it (CUDA_VISIBLE_DEVICES, as Dask-CUDA sets it)"
    if not probe().usable:
        return f"no usable GPU ({probe().reason})"
    facts = namespace("cupy").cuda.runtime.getDeviceProperties(0)
    first = probe().devices[0]
    return OwnGpu(facts["uuid"].hex(), first.memory, first.integrated)


def pool_of(gpus: Sequence[OwnGpu], sharers: int, share: int) -> int | None:
    """Bytes that a worker's pool may keep from others, if ``sharers`` at most share one of the
    ``gpus``, and each plans with ``share``; None for all."""
    if any(gpu.integrated for gpu in gpus):
        return share
    return int(0.95 * min(gpu.memory for gpu in gpus) / sharers) if sharers > 1 else None


def _visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES gives them.

    CUDA takes the names up to the first one that it does not know: as many as it found.
    """
    devices, named = probe().devices, os.environ.get("CUDA_VISIBLE_DEVICES")
    if not named:
        return [str(device.index) for device in devices]
    return [name.strip() for name in named.split(",")][: len(devices)]
