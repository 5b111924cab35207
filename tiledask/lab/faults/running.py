"""Faults of processes while a workload runs: at a random moment of it, on a random slot."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.faults.trying import Tried, tried
from tiledask.lab.faults.workloads import TIMEOUT, Workbench

__all__ = [
    "PROCESS_FAULTS",
    "at_start",
    "during",
    "frozen_with_timeout",
    "poison",
    "processes",
    "slots_are_full",
    "while_starting",
]

LATE = 150.0
"""Seconds after which a call that was disturbed is taken to hang."""


def processes(cluster: Cluster) -> dict[int, int]:
    """Slot -> process of its worker, of those that have one now: nobody is asked."""
    found = {}
    for slot, nanny in list(cluster.given.workers.items()):
        process = getattr(getattr(nanny, "process", None), "process", None)
        if pid := getattr(process, "pid", None):
            found[slot] = pid
    return found


def send(pid: int, what: signal.Signals = signal.SIGKILL) -> None:
    """None; the process has the signal, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, what)


def _one(cluster: Cluster, slot: int) -> None:
    send(processes(cluster).get(slot, 0) or _wait_for_another(cluster, slot, 0))


def _wait_for_another(cluster: Cluster, slot: int, pid: int) -> int:
    end = monotonic() + 20
    while monotonic() < end:
        if (now := processes(cluster).get(slot, pid)) != pid:
            return now
        time.sleep(0.01)
    raise TimeoutError(f"slot {slot} stayed empty for 20 s")


def _twice(cluster: Cluster, slot: int) -> None:
    first = processes(cluster)[slot]
    send(first)
    second = _wait_for_another(cluster, slot, first)
    time.sleep(0.05 * (slot + 1))
    send(second)


def _all(cluster: Cluster, slot: int) -> None:
    for pid in processes(cluster).values():
        send(pid)


def _frozen(cluster: Cluster, slot: int) -> None:
    send(processes(cluster)[slot], signal.SIGSTOP)


def _nanny(cluster: Cluster, slot: int) -> None:
    cluster.given.sync(cluster.given.workers[slot].close)


def _retired(cluster: Cluster, slot: int) -> None:
    cluster.client.retire_workers([cluster.address(slot)])


PROCESS_FAULTS: dict[str, Callable[[Cluster, int], None]] = {
    "killed": _one,
    "killed twice": _twice,
    "all killed": _all,
    "frozen": _frozen,
    "nanny closed": _nanny,
    "retired": _retired,
}


def slots_are_full(cluster: Cluster, seconds: float = 30.0) -> None:
    """None, once every slot has a worker that answers."""
    cluster.wait_for_slots(range(cluster.slots), seconds)
    cluster.run(os.getpid, timeout=seconds)


def during(fault: str) -> Callable[[Workbench, str], Tried]:
    """Tries the fault of that name at a random moment of a workload: seconds beyond twice what
    the workload takes, for what was lost may be computed again."""

    def attempt(bench: Workbench, workload: str) -> Tried:
        ready, slot = bench.ready(workload), int(bench.rng.integers(bench.cluster.slots))
        slots_are_full(bench.cluster)
        moment = float(bench.rng.uniform(0.05, 0.9)) * ready.seconds
        failed: list[BaseException] = []

        def act() -> None:
            try:
                PROCESS_FAULTS[fault](bench.cluster, slot)
            except BaseException as error:
                failed.append(error)

        timer = threading.Timer(moment, act)
        timer.start()
        found = tried(ready.run, ready.right, 2 * ready.seconds + LATE)
        timer.join(LATE)
        if failed:
            return found._replace(end="raw", words=f"the fault itself: {failed[0]!r}")
        beyond = max(0.0, found.seconds - (ready.seconds if found.end == "said" else 0.0))
        return found._replace(seconds=max(0.0, beyond - 2 * ready.seconds))

    return attempt


def at_start(bench: Workbench, workload: str) -> Tried:
    """The worker is killed, and the workload begins while the slot is empty."""
    ready, slot = bench.ready(workload), int(bench.rng.integers(bench.cluster.slots))
    slots_are_full(bench.cluster)
    send(processes(bench.cluster)[slot])
    found = tried(ready.run, ready.right, 2 * ready.seconds + LATE)
    return found._replace(seconds=max(0.0, found.seconds - ready.seconds))


def while_starting(bench: Workbench, _: str) -> Tried:
    """A worker is killed inside start_cluster, as soon as there is one."""
    from distributed import SpecCluster

    slots, done = bench.cluster.slots, threading.Event()
    known = {pid for each in SpecCluster._instances for pid in _pids(each)}

    def kill_first() -> None:
        while not done.wait(0.005):
            new = {pid for each in list(SpecCluster._instances) for pid in _pids(each)} - known
            if new:
                send(min(new))
                return

    killer = threading.Thread(target=kill_first)
    killer.start()

    def start() -> list[int]:
        with td.start_cluster(slots, device="cpu", quiet=True, default=False) as cluster:
            return sorted(set(processes(cluster)))

    try:
        return tried(start, [*range(slots)], LATE)
    finally:
        done.set()
        killer.join()


def _pids(cluster: Any) -> set[int]:
    found = set()
    for nanny in list(cluster.workers.values()):
        process = getattr(getattr(nanny, "process", None), "process", None)
        if pid := getattr(process, "pid", None):
            found.add(pid)
    return found


def frozen_with_timeout(bench: Workbench, workload: str) -> Tried:
    """The call ends with its timeout of 2 s and names the slot: nobody ends the frozen worker.
    Seconds beyond the timeout."""
    ready, slot = bench.ready(workload), int(bench.rng.integers(bench.cluster.slots))
    cluster: Any = bench.cluster
    slots_are_full(cluster)
    pid = processes(cluster)[slot]
    send(pid, signal.SIGSTOP)
    try:
        found = tried(lambda: ready.run(timeout=2.0), ready.right, 2.0 + LATE, said=True)
    finally:
        send(pid, signal.SIGCONT)
    if found.end == "said" and f"slot {slot}" not in found.words:
        found = found._replace(end="raw", words=f"slot {slot} is not named: {found.words}")
    return found._replace(seconds=max(0.0, found.seconds - 2.0))


class _Poisoned:
    """Text of which the batch of step 8 always ends the process that draws it."""

    def __init__(self) -> None:
        text = td.load_text("tales")
        self.vocabulary, self.text = text.vocabulary, text

    def batch(self, seed: int, step: int, *which: Any) -> Any:
        if step == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.text.batch(seed, step, *which)


def _die() -> None:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def poison(bench: Workbench, what: str) -> Tried:
    """Who kills its worker whenever it is tried is named, and innocents are finished."""
    slots_are_full(bench.cluster)
    if what == "training":
        ready = bench.ready("training")
        return tried(lambda: ready.run(text=_Poisoned()), b"", TIMEOUT - 5)
    cluster, slots = bench.cluster, bench.cluster.slots
    innocents = [cluster.submit(i % slots, time.sleep, 0.05, name="innocent") for i in range(40)]
    bad = cluster.submit(1, _die, name="poison")
    innocents += [cluster.submit(1, time.sleep, 0.05, name="innocent") for i in range(10)]
    found = tried(lambda: cluster.gather([bad], "poison", TIMEOUT), None, TIMEOUT)
    if found.end == "said" and str(bad.key) not in found.words:
        return found._replace(end="raw", words=f"{bad.key} is not named: {found.words}")
    others = tried(lambda: cluster.gather(innocents, "innocents", 30), [None] * 50, 30)
    if others.end != "right":
        blamed = sum(future.status == "error" for future in innocents)
        return found._replace(end="raw", words=f"{blamed} of 50 innocents blamed: {others.words}")
    return found
