"""The GPU of a worker that somebody else started: its own, where Dask-CUDA gave it one.

    dask cuda worker ...      one process per GPU, the first that CUDA_VISIBLE_DEVICES names there
    LocalCUDACluster()        --> one slot per GPU

A plain worker of a machine with GPUs may use the first of them, as all its neighbours may: without
CUDA_VISIBLE_DEVICES it is not looked for unless device="cuda" asks for it.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

from tiledask.distributed.cluster import device_memory
from tiledask.distributed.cluster.device_memory import OnePool
from tiledask.errors import ConfigError
from tiledask.tile.backend import namespace, probe

__all__ = ["DEVICES", "OwnGpu", "check_device", "most_of", "own_gpu", "shared"]

DEVICES = ("cpu", "auto", "cuda")
"""What may be asked for, from what looks least for a GPU to what looks most."""


class OwnGpu(NamedTuple):
    """The GPU that a worker computes on."""

    uuid: str
    name: str
    memory: int
    """Bytes."""
    integrated: bool
    """Whether these are the host's."""


def check_device(device: str) -> str:
    """``device``, if it is one of DEVICES; else ConfigError."""
    if device not in DEVICES:
        raise ConfigError(f"device is 'auto', 'cuda' or 'cpu', got {device!r}")
    return device


def own_gpu(device: str) -> OwnGpu | str:
    """The GPU of this worker, all of whose memory now comes from one pool; or why it has none."""
    if device == "cpu":
        return "CPU workers were asked for"
    if device == "auto" and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        return "no GPU was given to it (CUDA_VISIBLE_DEVICES, as Dask-CUDA sets it)"
    if not probe().usable:
        return f"no usable GPU ({probe().reason})"
    if not device_memory.pooled():
        OnePool().setup()
    if device_memory.problem():
        return f"its GPU gives it no memory ({device_memory.problem()})"
    facts = namespace("cupy").cuda.runtime.getDeviceProperties(0)
    first = probe().devices[0]
    return OwnGpu(facts["uuid"].hex(), first.name, first.memory, first.integrated)


def most_of(gpu: OwnGpu, sharers: int) -> int | None:
    """Bytes that a worker's pool may keep from others of its GPU; None if there are none."""
    return int(0.95 * gpu.memory / sharers) if sharers > 1 and not gpu.integrated else None


def shared(gpus: Sequence[OwnGpu]) -> str:
    """Which GPU is that of several workers, in words; empty if none is.

    >>> shared([OwnGpu("aa", "H200", 1, False), OwnGpu("aa", "H200", 1, False)])
    '2 workers share GPU aa (H200)'
    """
    uuids = [gpu.uuid for gpu in gpus]
    for gpu in gpus:
        if (sharers := uuids.count(gpu.uuid)) > 1:
            return f"{sharers} workers share GPU {gpu.uuid} ({gpu.name})"
    return ""
