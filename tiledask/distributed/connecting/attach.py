"""A Cluster on the workers that a client reaches, whoever started them.

processes    each worker is one of its own, with so much memory, on a GPU or not
slots        numbered by host (slots.py)
limits       bytes of each slot: its cap, its share of a GPU, or of its machine
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from distributed import Client
from distributed.system import MEMORY_LIMIT

from tiledask.distributed.cluster import device_arrays
from tiledask.distributed.cluster.cluster import RUNNING, Cluster
from tiledask.distributed.cluster.gpus import OwnGpu, own_gpu, share_of, take_pool
from tiledask.distributed.cluster.slots import Equip, give_back, take_slots
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.cluster.tasks import asked
from tiledask.distributed.deadlines import left_of
from tiledask.errors import ConfigError, DeadlineError
from tiledask.plan.units import format_bytes

__all__ = ["attach", "hold"]


class Process(NamedTuple):
    """A worker's."""

    host: str
    number: int
    memory: int
    """Bytes of its limit, or of its machine if it has none."""
    limited: bool
    """Whether it has one."""
    gpu: OwnGpu | str
    """What it computes on; or why that is no GPU."""


def _process(device: str, dask_worker: Any) -> Process:
    limit = dask_worker.memory_manager.memory_limit
    memory = int(limit or MEMORY_LIMIT), bool(limit)
    return Process(this_host(), os.getpid(), *memory, own_gpu(device))


def attach(
    client: Client,
    given: Any,
    end: Callable[[bool], None],
    equip: Equip,
    *,
    device: str,
    why: str,
    workers: int | None,
    seconds: float,
    cap: int | None = None,
    page: bool = True,
    started_here: bool = False,
) -> Cluster:
    """A Cluster of ``workers`` slots at least (None: as many as there are workers), each of which
    got what ``equip`` has for it, and may hold ``cap`` bytes. ``end`` is called when it is closed,
    with whether its scheduler still answers."""
    found = _processes(client, device)
    own = {(each.host, each.number) for each in found.values()} - {(this_host(), os.getpid())}
    if len(own) < len(found):
        raise ConfigError(
            f"{len(found)} workers have {len(own)} processes of their own, and each needs one: "
            f"LocalCluster(processes=True), or 'dask worker --nworkers {len(found)}'"
        )
    gpus = [each.gpu for each in found.values() if isinstance(each.gpu, OwnGpu)]
    sharers = max((gpus.count(gpu) for gpu in gpus), default=1)
    without = next((f"{a}: {w.gpu}" for a, w in found.items() if isinstance(w.gpu, str)), "")
    if not without and sharers > 1 and device == "auto":
        without = f"{sharers} workers share a GPU"
    if without and device == "cuda":
        raise ConfigError(f"device='cuda' needs workers with usable GPUs, and {without}")
    if device == "auto":
        why += f": {without or 'each has a GPU'}"
    interval = client.scheduler_comm.interval if client.scheduler_comm else 0.01
    there = take_slots(client, equip, left_of(seconds).seconds, page)

    def ended(in_order: bool) -> None:
        if in_order and not started_here:
            give_back(client)
            if client.scheduler_comm is not None:
                client.scheduler_comm.interval = interval
        if not without and not RUNNING:  # CuPy's arrays are CuPy's again
            device_arrays.register(on_host=False)
        end(in_order)

    cluster = Cluster(
        client,
        given,
        ended,
        backend="numpy" if without else "cupy",
        why=why,
        started_here=started_here,
        hosts=equip.hosts,
    )
    try:
        cluster.page = there
        hold(cluster, workers, seconds, cap)
        if not without:
            device_arrays.register(on_host=True)
            take_pool(cluster, gpus, sharers, cap, seconds)
            if cap is None:
                share = format_bytes(cluster.memory_limit)
                cluster.why += f"; a worker has {share} of its GPU"
    except BaseException:
        cluster.close()
        raise
    return cluster


def hold(cluster: Cluster, wanted: int | None, seconds: float, cap: int | None = None) -> None:
    """Have ``cluster`` hold ``wanted`` slots at least, or those of all workers that there are, with
    ``cap`` bytes for each; without one, as many as its process has."""
    workers = cluster.wait_for_slots(range(wanted or 0), seconds)
    count = wanted or max(workers, default=0) + 1
    if count <= cluster.slots:
        return
    if cap is not None:
        cluster.hold([cap] * count)
        return
    found = _processes(cluster.client, "cuda" if cluster.backend == "cupy" else "cpu")
    at = {slot: facts["address"] for slot, facts in workers.items()}
    memories = _memories(found)
    least = min(memories.values())  # of a slot whose worker is just being restarted
    cluster.hold([memories.get(at.get(slot, ""), least) for slot in range(count)])


def _processes(client: Client, device: str) -> dict[str, Process]:
    """The worker at each address."""
    call: Any = partial(client._run, _process, device)
    try:
        found: dict[str, Process] = asked(client, call, left_of(60.0).seconds)
    except TimeoutError:
        raise DeadlineError(
            "the workers did not all say what they are in time: one of them is frozen or cannot be "
            "reached; look at their logs"
        ) from None
    return found


def _memories(found: dict[str, Process]) -> dict[str, int]:
    """Bytes that the worker at each address may plan with, of its GPU or of its machine."""
    hosts, gpus = [w.host for w in found.values()], [w.gpu for w in found.values()]
    memories = {}
    for address, worker in found.items():
        memory = worker.memory // (1 if worker.limited else hosts.count(worker.host))
        gpu = worker.gpu
        if isinstance(gpu, OwnGpu):
            memory = share_of(gpu.memory, gpu.integrated, gpus.count(gpu), memory)
        memories[address] = memory
    return memories
