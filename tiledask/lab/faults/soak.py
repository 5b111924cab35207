"""`make soak-faults`: workers are killed and stopped for half an hour while work goes on.

Products, schedules and trainings, one after the other, on three workers; a killer beside them, at
random moments: one worker, several at once, stops, nannies. What comes back is right, nothing
hangs, nothing grows in client and scheduler (one process), and nothing is left at the end.
"""

import argparse
import ctypes
import faulthandler
import gc
import logging
import os
import re
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from dask.utils import key_split
from rich.console import Console

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.spool import MEMORY
from tiledask.lab.bench.records import record
from tiledask.lab.faults.command import HUNG, busy, code, started_bench
from tiledask.lab.faults.page import soaked
from tiledask.lab.faults.running import PROCESS_FAULTS, processes, slots_are_full
from tiledask.lab.faults.trying import tried
from tiledask.lab.faults.workloads import Workbench

__all__ = ["Killer", "main", "soak"]

WORK = ("blocks", "tasks", "files", "loop", "lazy", "training")
RATE = 60.0
"""Losses of workers a minute that are aimed at: at least 50 are needed."""
BURSTS = 2.0
"""Deviation of the logarithm of the seconds between two faults."""
SHARES = {"killed": 0.86, "all killed": 0.06, "frozen": 0.04, "nanny closed": 0.04}
PARTS = 8
"""Of the time: quiet ones and busy ones."""
WARM = 0.5
"""Share of the time after which memory has reached what it keeps: the last minutes of all that
Dask and the pages write down."""
_LOOKS = 10
"""At what is left, as long as anything is, some seconds each: what is just being closed goes."""
_M_MMAP_THRESHOLD = -3
"""glibc's name for it, see mallopt(3)."""
_NUMBERS = r"[0-9a-f]{12,}|\d+"
_BEATS = 3.0
"""Seconds in which every worker and client asks the scheduler something."""
LATE = 240.0
"""Seconds after which a call hangs: workers may be lost faster than a busy machine starts them."""


class Killer(threading.Thread):
    """Injects faults into a cluster at random moments until it is stopped."""

    def __init__(self, cluster: Cluster, rate: float, seed: int) -> None:
        super().__init__(name="killer", daemon=True)
        self.cluster, self.rate, self.ending = cluster, rate, threading.Event()
        self.rng, self.made, self.lost = np.random.default_rng(seed), Counter[str](), 0

    def run(self) -> None:
        begun = time.monotonic()
        names, shares = list(SHARES), list(SHARES.values())
        # many at a time, then none for a while: 30 / rate in the mean, in which workers start
        mean = np.log(30 / self.rate) - BURSTS**2 / 2
        while not self.ending.wait(float(self.rng.lognormal(mean, BURSTS))):
            if self.lost >= self.rate * (time.monotonic() - begun) / 60:
                continue
            fault = names[int(self.rng.choice(len(names), p=shares))]
            living = processes(self.cluster)
            if not living:
                continue
            slot = int(self.rng.choice(list(living)))
            with suppress(Exception):  # of a worker that went meanwhile
                PROCESS_FAULTS[fault](self.cluster, slot)
                self.made[fault] += 1
                self.lost += len(living) if fault == "all killed" else 1


def _left(bench: Workbench, before: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """What there is more of than ``before``, and less, by name; nothing of what is as many."""
    gc.collect()
    left = {}
    for kind, names in _held(bench).items():
        of = {name: names[name] - before[kind][name] for name in names | before[kind]}
        left[kind] = {name: more for name, more in sorted(of.items()) if more}
    return left


def _held(bench: Workbench) -> dict[str, Counter[str]]:
    """Kind -> how many of each name: numbers and the like are left out of names."""
    me = psutil.Process()
    threads = [thread.name for thread in threading.enumerate()]
    threads += ["native"] * (me.num_threads() - len(threads))
    tasks = bench.cluster.given.scheduler.tasks.values()
    wanted = {True: "wanted", False: "wanted by none"}
    named = {
        "descriptors": _descriptors(bench.cluster, me),
        "threads": threads,
        "tasks": [f"{key_split(t.key)}, {t.state}, {wanted[bool(t.who_wants)]}" for t in tasks],
        "spooled files": [path.name for path in bench.cluster.spool.rglob("*")],
        "in memory": [path.name for path in MEMORY.glob("*")],
        "processes": [_command(each) for each in me.children(recursive=True)],
    }
    return {
        kind: Counter(re.sub(_NUMBERS, "#", name)[:100] for name in names)
        for kind, names in named.items()
    }


def _descriptors(cluster: Cluster, me: psutil.Process) -> list[str]:
    """What each is: a file's path, or both ends of a connection.

    First all connections that Dask's pools keep to use again are closed: as many as calls were
    ever under way at once. Those of workers' heartbeats are then opened again.
    """
    cluster.run(_close_unused)
    nannies = list(cluster.given.workers.values())

    async def close_unused() -> None:
        for each in (*nannies, cluster.given.scheduler, cluster.client):
            each.rpc.collect()

    cluster.given.sync(close_unused)
    time.sleep(_BEATS)
    ends = {cluster.scheduler_address: "scheduler"}
    ends |= {nanny.address: "a nanny" for nanny in nannies}
    ends |= {nanny.worker_address: "a worker" for nanny in nannies}
    ports = {int(address.rpartition(":")[2]): who for address, who in ends.items()}
    for child in me.children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            asking = {each.laddr[1]: f"worker {child.pid}" for each in child.net_connections()}
            ports = asking | ports
    connected = {each.fd: each for each in me.net_connections("all")}
    found, asked = [], set[str]()
    for link in Path(f"/proc/{me.pid}/fd").iterdir():
        with suppress(OSError):  # of this very look
            name, each = os.readlink(link), connected.get(int(link.name))
            if each is not None:
                own, other = (
                    ports.get(end[1], "somebody") if isinstance(end, tuple) and end else ""
                    for end in (each.laddr, each.raddr)
                )
                name = f"socket of {own or 'nobody'} with {other or 'nobody'}, {each.status}"
            # a worker that lives asks by as many as it likes: they end with it
            (asked.add if " with worker " in name else found.append)(name)
    return [*found, *asked]


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):  # it has just ended
        return " ".join(process.cmdline()) or process.name()
    return "ended"


def _resident() -> int:
    """Bytes of client and scheduler. What malloc has free goes back first: how much it keeps grows
    with the threads that ask at once, which on a busy machine are more."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    resident: int = psutil.Process().memory_info().rss
    return resident


def _close_unused(dask_worker: Any) -> None:
    dask_worker.rpc.collect()


def main() -> int:
    """Print what came of it; 1 if anything was wrong, hung, raw, grew or is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--load", type=int, default=10, metavar="N", help="busy loops, at times")
    parser.add_argument("--rate", type=float, default=RATE, help="lost workers a minute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    parser.add_argument("--page", metavar="RELIABILITY.md", help="and write them into this page")
    args = parser.parse_args()
    console = Console()
    # whatever was freed before, arrays get pages of their own, which go back with them: else glibc
    # puts larger and larger ones on its heap, which then ends where the highest was
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 * 1024)
    logging.disable()  # of workers that end, there is much to say
    with started_bench(seed=args.seed) as bench:
        found = soak(bench, args, console)
    me = psutil.Process()  # whose own are the server of workers, which the next cluster takes, ...
    workers = [each for each in me.children(recursive=True) if each.ppid() != me.pid]
    _, alive = psutil.wait_procs(workers, timeout=_BEATS)
    found["workers after close"] = [f"{each.status()} {_command(each)}" for each in alive]
    found["kept"] &= not found["workers after close"]
    for name, value in found.items():
        console.print(f"{name}: {value}", markup=False, highlight=False)
    if args.record:
        record(Path(args.record), "tiledask.lab.faults.soak", {"code": code()} | found)
    if args.page:
        page = Path(args.page)
        page.write_text(soaked(page.read_text(), found))
    return int(not found["kept"])


def soak(bench: Workbench, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """What came of it."""
    ends, words = Counter[str](), []
    for name in WORK:
        bench.ready(name)
    slots_are_full(bench.cluster)
    gc.collect()
    before = _held(bench)
    begun, most = time.monotonic(), 0.0
    seconds = 60 * args.minutes
    warm, held = 0, []
    killer = Killer(bench.cluster, args.rate, args.seed)
    killer.start()
    # one half of the time beside busy loops, and so of the warm-up
    for loops in (0, args.load) * (PARTS // 2):
        until = time.monotonic() + seconds / PARTS
        with busy(loops):
            for name in cycle(WORK):
                if time.monotonic() >= until:
                    break
                faulthandler.dump_traceback_later(HUNG + LATE, exit=True)
                ready = bench.ready(name)
                result = tried(partial(ready.run, timeout=LATE), ready.right, LATE + 5)
                faulthandler.cancel_dump_traceback_later()
                ends[result.end] += 1
                most = max(most, result.seconds)
                if result.end != "right":
                    words.append(f"{name}, beside {loops}: {result.end}: {result.words}")
                    console.print(words[-1], markup=False, highlight=False)
                if time.monotonic() - begun > 60 * len(held):
                    held.append(_resident())
                if not warm and time.monotonic() - begun > WARM * seconds:
                    warm = _resident()
    killer.ending.set()
    killer.join(30)
    took = time.monotonic() - begun
    slots_are_full(bench.cluster, 60)
    grown = _resident() / warm - 1
    for name in WORK:  # what a last kill has taken is given back
        bench.ready(name).run()
    for _ in range(_LOOKS):
        left = _left(bench, before)
        clean = all(sum(names.values()) <= 0 for names in left.values())
        if clean:
            break
    return {
        "minutes": took / 60,
        "lost workers": killer.lost,
        "a minute": killer.lost / took * 60,
        "faults": dict(killer.made),
        "ends": dict(ends),
        "longest": most,
        "grown after warm-up": grown,
        "resident by minute": held,
        "left": left,
        "words": words,
        "kept": {*ends} <= {"right"} and grown < 0.02 and clean,
    }


if __name__ == "__main__":
    sys.exit(main())
