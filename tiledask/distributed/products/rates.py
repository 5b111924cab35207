"""How fast this cluster multiplies, reads and answers, measured once in a fraction of a second."""

from statistics import median
from time import perf_counter
from timeit import repeat
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.transport.blocks import Reader, lent, made_of, submit_blocks
from tiledask.distributed.transport.tickets import Ticket
from tiledask.plan.products.cost import MachineRates
from tiledask.tile import accumulator, as_dtype
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import namespace, synchronize

__all__ = ["rates_of"]

_CUBE, _THIN = 768, 16
_ROWS, _ROW = 1024, 4096  # of bytes: what is read
_TASKS = 10


def rates_of(cluster: Cluster, dtype: Any) -> MachineRates:
    """The MachineRates of ``cluster`` for elements of ``dtype``; measured when first asked for."""
    name = as_dtype(dtype).name
    if name not in cluster.rates:
        cluster.rates[name] = _measure(cluster, name)
    rates: MachineRates = cluster.rates[name]
    return rates


def _measure(cluster: Cluster, dtype: str) -> MachineRates:
    backend, slots = cluster.backend, range(cluster.slots)
    blocks = submit_blocks(cluster, _block, dict.fromkeys(slots, (backend,)), "rates")
    cluster.wait(blocks, "measuring rates", 60.0, cancel=True)
    own = [made.ticket for made in made_of(blocks)]
    tries = {slot: (own[slot], own[slot - 1], dtype, backend) for slot in slots}
    jobs = cluster.submit_all(_try, tries, name="measure_rates")
    found = cluster.gather(jobs, "measuring rates", 60.0, cancel=True)
    begun = perf_counter()
    empty = [cluster.submit(0, int, name="empty") for _ in range(_TASKS)]
    cluster.wait(empty, "empty tasks", cancel=True)
    task = (perf_counter() - begun) / _TASKS
    middle = {key: median(one[key] for one in found) for key in found[0]}
    free = backend == "cupy" or cluster.slots < CPU_COUNT
    return MachineRates(**middle, task=task, overlapped=free)


def _block(backend: str) -> Any:
    """Something to read."""
    return lent(namespace(backend).zeros((_ROWS, _ROW), np.uint8))


def _try(own: Ticket, ticket: Ticket, dtype: str, backend: str) -> dict[str, Any]:
    """Seconds and rates of one worker, while the others do the same."""
    reader = Reader([own], backend)
    xp, wide = namespace(backend), accumulator(as_dtype(dtype))
    buffer = xp.ones(_ROWS * _ROW, np.uint8)
    synchronize(buffer)

    def read(rows: int, columns: int) -> float:
        part = (0, rows), (0, columns)
        return min(repeat(lambda: reader.read(ticket, part, buffer), number=1, repeat=3))

    def product(m: int, n: int, k: int) -> float:
        a, b = (xp.ones(shape, as_dtype(dtype)) for shape in ((m, k), (k, n)))
        c = xp.zeros((m, n), wide)

        def once() -> None:
            tile_matmul(a, b, out=c, beta=1.0)
            synchronize(c)

        once()
        return min(repeat(once, number=1, repeat=3))

    call = product(8, 8, 8)
    thin = max(1e-9, product(_CUBE, _CUBE, _THIN) - call)
    cube = product(_CUBE, _CUBE, _CUBE) - call
    # cube = F + 4 c^2 s / t and thin = F / 48 + (2 c^2 + 32 c) s / t, for F its FLOP time
    cube_bytes = 4 * _CUBE**2 * wide.itemsize
    thin_bytes = (2 * _CUBE**2 + 2 * _CUBE * _THIN) * wide.itemsize
    share = _THIN / _CUBE
    touch = min(1e12, (thin_bytes - share * cube_bytes) / max(1e-9, thin - share * cube))
    flops = 2 * _CUBE**3 / max(1e-9, cube - cube_bytes / touch)
    message, long, half = read(1, 64), read(_ROWS, _ROW), read(_ROWS, _ROW // 2)
    a_byte = max(1e-13, (long - message) / (_ROWS * _ROW))
    run = max(0.0, (half - message - _ROWS * _ROW // 2 * a_byte) / _ROWS)
    reader.opened.close()
    times = {"call": call, "message": message, "run": run}
    return times | {"flops": flops, "touch": touch, "read": 1 / a_byte}
