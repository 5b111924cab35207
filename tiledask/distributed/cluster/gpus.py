"""GPU workers: whether there are usable GPUs, whose each one is, and Dask-CUDA's workers on them.

    start_cluster     one or more workers on each GPU, which share its memory
    connect           a GPU that Dask-CUDA gave to a worker (CUDA_VISIBLE_DEVICES)

A plain worker of a machine with GPUs may use the first of them, as all its neighbours may: without
CUDA_VISIBLE_DEVICES it is not looked for unless device="cuda" asks for it.
"""

import contextlib
import importlib
import os
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import dask
from distributed import SpecCluster, WorkerPlugin

from tiledask.distributed.cluster import device_memory
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.device_memory import OnePool
from tiledask.distributed.cluster.tasks import asked
from tiledask.errors import ConfigError
from tiledask.extras import install
from tiledask.tile.backend import namespace, probe

__all__ = [
    "OwnGpu",
    "check_device",
    "choose_device",
    "gpu_cluster",
    "own_gpu",
    "share_of",
    "take_pool",
]


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
        return "numpy", "by device='cpu'"
    found = probe()
    reason = found.reason
    if not reason:
        try:
            importlib.import_module("dask_cuda")
        except Exception as error:  # of a package that it needs and that is too old, too
            words = " ".join(str(error).split())
            reason = f"dask-cuda cannot be imported ({words}): {install('gpu')}"
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


def gpu_cluster(slots: int, per_gpu: int, options: dict[str, Any]) -> SpecCluster:
    """A cluster of Dask-CUDA's for ``slots`` workers, none of which is started yet."""
    from dask_cuda import LocalCUDACluster
    from dask_cuda.device_host_file import DeviceHostFile

    class CudaSlots(LocalCUDACluster):  # type: ignore[misc]  # it has no types
        """LocalCUDACluster whose workers are given to it: it knows one per GPU, and no deadline."""

        def scale(self, *_args: Any, **_options: Any) -> None:
            pass

    gpus, devices, host = _visible_gpus(), probe().devices, options["memory_limit"]
    config, env = options.pop("config"), options.pop("env")
    given = {**options, "n_workers": slots, "device_memory_limit": None}
    owned = CudaSlots(CUDA_VISIBLE_DEVICES=gpus, **given)
    common = owned.new_spec["options"]
    config = dask.config.merge(config, common.get("config") or {})
    share = min(share_of(device, per_gpu, host) for device in devices)
    levels = {"device_memory_limit": share, "memory_limit": owned.memory_limit}
    for slot in range(slots):
        gpu = slot // per_gpu
        mine = {
            **common,
            "config": config,
            # all of them, its own first: memory of another one can be mapped only where that is
            # visible (cudaIpcOpenMemHandle)
            "env": {**env, "CUDA_VISIBLE_DEVICES": ",".join(gpus[gpu:] + gpus[:gpu])},
            # where both memories are one, Dask alone moves blocks, from memory to disk
            "data": None if devices[gpu].integrated else (DeviceHostFile, levels),
            "plugins": _near_cores(gpus[gpu]),
        }
        owned.worker_spec[slot] = {"cls": owned.new_spec["cls"], "options": mine}
    cluster: SpecCluster = owned
    return cluster


def own_gpu(device: str) -> OwnGpu | str:
    """The GPU of this worker; or why it has none."""
    if device == "cpu":
        return "by device='cpu'"
    if device == "auto" and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        return "no GPU was given to it (CUDA_VISIBLE_DEVICES, as Dask-CUDA sets it)"
    if not probe().usable:
        return f"no usable GPU ({probe().reason})"
    facts = namespace("cupy").cuda.runtime.getDeviceProperties(0)
    first = probe().devices[0]
    return OwnGpu(facts["uuid"].hex(), first.memory, first.integrated)


def take_pool(
    cluster: Cluster, gpus: Sequence[OwnGpu], sharers: int, cap: int | None, seconds: float
) -> None:
    """Have all workers take the memory of their GPUs from one pool each; ``sharers`` at most share
    one of the ``gpus``."""
    most = cluster.memory_limit if cap is None else None
    if not any(gpu.integrated for gpu in gpus):
        most = int(0.95 * min(gpu.memory for gpu in gpus) / sharers) if sharers > 1 else None
    pool = OnePool(cap, most, sharers)
    register: Any = cluster.client._register_worker_plugin
    asked(cluster.client, partial(register, pool, pool.name, idempotent=True), seconds)
    for slot, problem in enumerate(cluster.run(device_memory.problem, timeout=seconds)):
        if problem:
            raise ConfigError(
                f"the worker of slot {slot} cannot use its GPU ({problem}): it may be full, or let "
                f"one process use it at a time (nvidia-smi -c 0 lifts that); or take device='cpu'"
            )


def _near_cores(gpu: str) -> tuple[WorkerPlugin, ...]:
    """What keeps a worker on the cores beside ``gpu``; nothing where the driver doesn't say."""
    from dask_cuda.plugins import CPUAffinity
    from dask_cuda.utils import get_cpu_affinity, parse_cuda_visible_device

    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("error")  # what it warns of is that it does not know
        return (CPUAffinity(get_cpu_affinity(parse_cuda_visible_device(gpu))),)
    return ()


def _visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES gives them.

    CUDA takes the names up to the first one that it does not know: as many as it found.
    """
    devices, named = probe().devices, os.environ.get("CUDA_VISIBLE_DEVICES")
    if not named:
        return [str(device.index) for device in devices]
    return [name.strip() for name in named.split(",")][: len(devices)]
