"""`python -m tiledask.lab.faults.watching`: what it costs to watch workers, and its false alarms.

    a quiet product of 4096^3    CPU seconds of all that watches / those of the workers
    workers that are only busy   one call that keeps the interpreter's lock for seconds;
                                 BLAS beside ten busy loops; blocks that go to disk and back

The thread of td.start_cluster watches, and beside each worker a process as td.connect starts it.
"""

import argparse
import contextlib
import logging
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.worker import machine
from tiledask.distributed.recovering import frozen, poison, supervisor
from tiledask.lab.bench.records import record
from tiledask.lab.faults.command import busy

__all__ = ["KINDS", "FalseAlarms", "WatchingCost", "alarms", "cost", "main", "measure"]

WORKERS = 2
LOOPS = 10
"""Processes that keep all cores busy."""
LIMIT, BLOCK, BLOCKS = 700_000_000, (1600, 2000), 40
"""Bytes of a worker's memory; what it is given, of 8 bytes each, and how many of them."""
LONG = 4.0
"""Seconds, at least, for which one call keeps the lock."""


class WatchingCost(NamedTuple):
    """CPU seconds while products were computed."""

    workers: float
    thread: float
    """Of the thread that watches in the client."""
    processes: float
    """Of those that watch beside workers."""
    register: float
    """Of writing down what runs: seconds of one task, by tasks."""

    @property
    def share(self) -> float:
        """Of all that watches, by the workers'."""
        return (self.thread + self.processes + self.register) / self.workers


class FalseAlarms(NamedTuple):
    """What was taken for frozen, and was not."""

    kind: str
    seconds: float
    thread: int
    """FalseAlarms of the thread that watches in the client."""
    processes: int
    """Of those that watch beside workers."""
    silent: float
    """Seconds for which a worker was silent, at most, as the scheduler heard it."""


def measure(seconds: float = 200.0) -> dict[str, Any]:
    """ "cost", of a quiet product, and "alarms", of ``seconds`` of each kind of busy workers."""
    return {"cost": cost(), "alarms": [alarms(kind, seconds) for kind in KINDS]}


def cost(n: int = 4096, products: int = 3) -> WatchingCost:
    """Of some products of n x n matrices in single precision, one after the other."""
    with td.start_cluster(WORKERS, device="cpu", quiet=True) as cluster:
        mesh, shards = td.Mesh(cluster, (1, WORKERS)), (td.Shard(0), td.Shard(1))
        rng = np.random.default_rng(0)
        A, B = (td.distribute(rng.random((n, n), np.float32), mesh, shards) for _ in "AB")
        td.matmul(A, B)
        with _watched(cluster) as (pids, processes):
            before = _cpu(cluster, pids, processes)
            for _ in range(products):
                td.matmul(A, B)
            after = _cpu(cluster, pids, processes)
        tasks = products * WORKERS
    workers, thread, beside = (b - a for a, b in zip(before, after, strict=True))
    return WatchingCost(workers, thread, beside, tasks * _line())


def _cpu(
    cluster: Cluster, pids: Sequence[int], processes: Sequence["subprocess.Popen[bytes]"]
) -> tuple[float, float, float]:
    """CPU seconds of the workers, of the thread and of the processes that watch, until now."""
    thread = cluster._supervisor.thread.native_id  # type: ignore[attr-defined]
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return (
        sum(each.user + each.system for each in times),
        _scheduled(f"/proc/self/task/{thread}"),
        sum(_scheduled(f"/proc/{process.pid}") for process in processes),
    )


def _scheduled(process: str) -> float:
    """CPU seconds of a thread, which psutil knows by hundredths only."""
    return int(Path(process, "schedstat").read_text().split()[0]) / 1e9


def _line(tries: int = 20_000) -> float:
    """Seconds that the register of what runs takes of a task."""
    begun = time.process_time()
    for _ in range(tries):
        poison.stopped(poison.runs())
    return (time.process_time() - begun) / tries


@contextlib.contextmanager
def _watched(cluster: Cluster) -> Iterator[tuple[list[int], list["subprocess.Popen[bytes]"]]]:
    """Processes of the workers, and as many that watch them, until the end of the block."""
    pids = [said["pid"] for said in cluster.run(machine)]
    processes = [frozen.watcher(pid, "") for pid in pids]
    try:
        time.sleep(1.0)  # they start
        yield pids, processes
    finally:
        for process in processes:
            process.communicate()


def alarms(kind: str, seconds: float) -> FalseAlarms:
    """Those of ``seconds`` in which the workers are busy in this way, one of KINDS."""
    said, silent = _Counting(), 0.0
    supervisor.logger.addHandler(said)
    limit = LIMIT if kind == "spilling" else None
    try:
        with (
            td.start_cluster(WORKERS, device="cpu", quiet=True, memory_limit=limit) as cluster,
            _watched(cluster) as (_, processes),
        ):
            work, begun = KINDS[kind](cluster), time.monotonic()
            while (past := time.monotonic() - begun) < seconds:
                next(work)
                silent = max(silent, *_silent(cluster))
            work.close()
    finally:
        supervisor.logger.removeHandler(said)
    ended = sum(process.returncode == frozen.KILLED for process in processes)
    return FalseAlarms(kind, past, said.count, ended, silent)


class _Counting(logging.Handler):
    """Counts what the thread that watches says when it ends a worker."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "was stopped" in record.getMessage()


def _silent(cluster: Cluster) -> list[float]:
    now = time.time()
    return [now - each["last_seen"] for each in cluster._workers().values()]


def _keeping_the_lock(cluster: Cluster) -> Generator[None, None, None]:
    digits = cluster.gather([cluster.submit(0, _digits, LONG)], "a long call", 300)[0]
    while True:
        calls = [cluster.submit(slot, _power, digits) for slot in range(cluster.slots)]
        while not all(call.done() for call in calls):
            time.sleep(0.1)
            yield


def _digits(seconds: float) -> int:
    """An exponent whose power takes so long, in one call."""
    n, took = 1_000_000, 0.0
    while took < seconds:
        n, begun = int(1.5 * n), time.perf_counter()
        _power(n)
        took = time.perf_counter() - begun
    return n


def _power(n: int) -> bool:
    return bool(3**n)


def _blas(cluster: Cluster) -> Generator[None, None, None]:
    with busy(LOOPS):
        mesh = td.Mesh(cluster, (1, cluster.slots))
        A = td.distribute(np.ones((2048, 2048)), mesh, (td.Shard(0), td.Shard(1)))
        while True:
            td.matmul(A, A, timeout=300)
            yield


def _spilling(cluster: Cluster) -> Generator[None, None, None]:
    while True:
        made = [
            cluster.submit(n % cluster.slots, np.full, BLOCK, float(n), name="spilled")
            for n in range(BLOCKS * cluster.slots)
        ]
        for n, block in enumerate(made):  # each is read on another worker
            told = [cluster.submit((n + 1) % cluster.slots, np.sum, block, name="read")]
            cluster.gather(told, "reading what was put on disk", 300)
            yield


KINDS: dict[str, Callable[[Cluster], Generator[None, None, None]]] = {
    "keeping the lock": _keeping_the_lock,
    f"BLAS beside {LOOPS} busy loops": _blas,
    "spilling": _spilling,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if watching costs at most 1 % and nobody was taken for frozen; prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, prog="watching")
    parser.add_argument("--minutes", type=float, default=10.0, help="of busy workers, in all")
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="keep the numbers")
    given = parser.parse_args(arguments)
    found = measure(60 * given.minutes / len(KINDS))
    spent: WatchingCost = found["cost"]
    print(
        f"quiet product of 4096^3: watching {100 * spent.share:.3f} % of the workers' CPU seconds "
        f"(thread {1e3 * spent.thread:.1f} ms, processes {1e3 * spent.processes:.1f} ms, register "
        f"{1e6 * spent.register:.1f} us, workers {spent.workers:.1f} s)"
    )
    for each in found["alarms"]:
        print(
            f"{each.kind}: {each.seconds:.0f} s, {each.thread} + {each.processes} false alarms, "
            f"silent for at most {each.silent:.1f} s"
        )
    if given.record is not None:
        facts = {
            "cost": spent._asdict() | {"share": spent.share},
            "alarms": [each._asdict() for each in found["alarms"]],
        }
        record(given.record, __spec__.name if __spec__ else __name__, facts)
    false = sum(each.thread + each.processes for each in found["alarms"])
    return int(spent.share > 0.01 or false > 0)


if __name__ == "__main__":
    raise SystemExit(main())
