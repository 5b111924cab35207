"""`make bench-scale`: what a product and a training step cost client and scheduler, by workers.

    client  ---- questions, tasks ---->  scheduler  ---- one each ---->  2, 4, ... 64 workers
    CPU seconds                          CPU seconds, messages, bytes    small blocks: they wait

`dask scheduler` and `dask worker` processes of one thread, far more than cores: nobody looks at
the clock, only at CPU seconds and counts. What they do when nothing is asked of them is taken off.
A power law through what was measured from 8 workers on carries it to 1,024 and 10,000, and what was
measured on most of them grows linearly at least: each worker gets a task. What a first product is
planned from is arithmetic, and is measured for as many ranks without workers.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from distributed import Client
from rich.console import Console

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.explain import ProductQuestion
from tiledask.distributed.products.needed import ProductNeeds
from tiledask.distributed.products.rates import rates_of
from tiledask.lab.bench.records import goals_table, record, resumed
from tiledask.lab.bench.scale.counted import count_messages, counted
from tiledask.lab.bench.scale.shown import page, picture, table
from tiledask.plan.products.cost import MachineRates
from tiledask.plan.products.placement import Shard, Tiling
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["COUNTED", "FAR", "Growth", "by_hand", "first_to_break", "goals", "main", "measured"]

BLOCK = 256
"""Rows and columns of a block."""
GRID = Shard(0), Shard(1)
FAR = (1024, 10_000)
"""Workers to which growth is carried."""
FROM = 8
"""Workers from which growth is fitted: with fewer, what does not grow is most of it."""
COUNTED = ("client", "scheduler", "messages in", "messages out", "bytes in", "bytes out")
"""CPU seconds of two processes; the scheduler's messages and their bytes."""
HALF = {"client": 0.115, "scheduler": 0.11}
"""Goals: CPU seconds of a repeated product on 32 workers, half of what they were."""
EXPONENT = 1.1
"""Goal: how they grow from 8 to 32."""
START = 300.0
"""Seconds for all workers to start, on a machine that may be busy."""
END = 20.0
"""Seconds that all workers have to end."""
STEPS = 2, 22
"""Steps of two trainings; one step is their difference over that of these."""


@contextmanager
def by_hand(folder: Path) -> Iterator[tuple[str, Callable[[int], None]]]:
    """The address of a scheduler in a process of its own, and what starts as many more workers."""
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    running: list[subprocess.Popen[bytes]] = []

    def start(program: str, *options: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *options]
        with (folder / f"{program}-{len(running)}.log").open("wb") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=folder))

    def workers(count: int) -> None:
        for _ in range(count):
            one = ("--nthreads", "1", "--no-nanny", "--memory-limit", "2GB", "--no-dashboard")
            start("worker", address, *one)

    try:
        where = folder / "scheduler.json"
        start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(where))
        deadline = time.monotonic() + START
        while not (where.exists() and where.read_text().endswith("}")):
            if running[0].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "scheduler-0.log").read_text())
            time.sleep(0.1)
        with Client(scheduler_file=str(where), set_as_default=False) as client:
            address = client.scheduler_info(n_workers=0)["address"]
        yield address, workers
    finally:
        for some in (running[1:], running[:1]):  # a worker whose scheduler is gone may wait for it
            ending = [psutil.Process(each.pid) for each in some if each.poll() is None]
            for process in ending:
                process.terminate()
            for process in psutil.wait_procs(ending, END)[1]:
                process.kill()
            for each in some:
                each.wait()


class ClusterMeter:
    """What calls cost the client's process and the scheduler's."""

    def __init__(self, client: Client, seconds: float = 4.0) -> None:
        self.client = client
        client.run_on_scheduler(count_messages)
        self._asking = self._spent(lambda: None)
        waiting = self._spent(lambda: time.sleep(seconds))
        self.idle = {name: waiting[name] / waiting["at"] for name in waiting}
        """A second's, when nothing is asked."""

    def cost(self, call: Callable[[], Any]) -> dict[str, float]:
        """By COUNTED what ``call`` cost beyond what goes on without it; "seconds", how long."""
        spent = self._spent(call)
        own = {n: spent[n] - self._asking[n] - self.idle[n] * spent["at"] for n in COUNTED}
        return {**own, "seconds": spent["at"]}

    def _spent(self, call: Callable[[], Any]) -> dict[str, float]:
        before = self._now()
        call()
        after = self._now()
        return {name: after[name] - before[name] for name in before}

    def _now(self) -> dict[str, float]:
        client = time.process_time()
        found: dict[str, float] = self.client.run_on_scheduler(counted)
        return {"client": client, **found}


def connected(client: Client, workers: int) -> tuple[Cluster, dict[str, Any]]:
    """A cluster of so many, its transport and its rates found out, and a row of what that cost."""
    meter, found = ClusterMeter(client), list[Cluster]()

    def connect() -> None:
        found.append(td.connect(client, workers=workers, timeout=START))
        rates_of(found[0], np.dtype("f4"))

    spent = meter.cost(connect)
    return found[0], {"workers": workers, "what": "connecting", **spent}


def measured(cluster: Cluster, repeats: int, trains: bool) -> list[dict[str, Any]]:
    """A row for a repeated product, and one for a training step, on all slots of ``cluster``."""
    meter, rows = ClusterMeter(cluster.client), []
    p = 2 ** int(math.log2(cluster.slots) / 2)
    mesh, rng = td.Mesh(cluster, (p, cluster.slots // p)), np.random.default_rng(0)
    k = n = BLOCK * mesh.shape[1]
    A, B = (
        td.distribute(rng.standard_normal(shape, np.float32), mesh, GRID)
        for shape in ((BLOCK * p, k), (k, n))
    )
    kept = [A @ B]  # as in a loop: the next product is made before the last one goes

    def product() -> None:
        kept[0] = A @ B

    for _ in range(2):
        product()
    found = [meter.cost(product) for _ in range(repeats)]
    c = kept.pop()
    if c.traffic.predicted != c.traffic.measured:
        raise RuntimeError(f"predicted {c.traffic.predicted}, measured {c.traffic.measured}")
    head = {"workers": cluster.slots, "mesh": list(mesh.shape)}
    middle = {name: median(each[name] for each in found) for name in found[0]}
    rows.append(head | {"what": "product", "how": c.made_by, **middle, "every": found})
    if trains:
        dp = td.Mesh(cluster, (cluster.slots, 1, 1))
        few, many = (meter.cost(lambda steps=s: _train(dp, steps)) for s in STEPS)
        step = {name: (many[name] - few[name]) / (STEPS[1] - STEPS[0]) for name in few}
        rows.append(head | {"what": "step", "how": "dp", **step, "every": [few, many]})
        start = {name: few[name] - STEPS[0] * step[name] for name in few}
        rows.append(head | {"what": "training", "how": "dp", **start})
    return rows


def _train(mesh: td.Mesh, steps: int) -> None:
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=1, heads=2, sequence=8)
    td.train(model, text, mesh, steps=steps, batch=mesh.ranks, progress=False)


class Growth:
    """A power law through (workers, amount), and where it leads.

    >>> law = Growth([8, 16, 32], [1.0, 2.0, 4.0])
    >>> round(law.exponent, 3), round(law.at(1024)), round(Growth([8, 16], [2.0, 2.0]).at(32))
    (1.0, 128, 4)
    """

    def __init__(self, workers: Sequence[int], amounts: Sequence[float]) -> None:
        logs = np.log(workers), np.log(np.maximum(amounts, 1e-9))
        slope, self._base = np.polyfit(*logs, 1)
        self.exponent = float(slope)
        off = logs[1] - (slope * logs[0] + self._base)
        self.scatter = float(np.exp(np.abs(off).max()))
        """By what factor a measured amount is off at most."""
        self._last = float(workers[-1]), float(amounts[-1])

    def at(self, workers: float) -> float:
        """The amount on as many workers: from the last one, linearly at least."""
        most, amount = self._last
        return float(amount * (workers / most) ** max(1.0, self.exponent))


def growth(rows: Sequence[dict[str, Any]], what: str, name: str, most: int = 10**9) -> Growth:
    """How ``name`` of ``what`` grows from FROM workers to ``most``."""
    some = [row for row in rows if row["what"] == what and FROM <= row["workers"] <= most]
    return Growth([row["workers"] for row in some], [row[name] for row in some])


def planned(ranks: Sequence[int], rates: MachineRates) -> list[dict[str, Any]]:
    """CPU seconds of the client for the first product of its shapes, and for the next; bytes of
    the tables of a result's traffic."""
    rows = []
    for n in ranks:
        p = 2 ** int(math.log2(n) / 2)
        q = n // p
        tilings = (
            Tiling(shape, (p, q), GRID)
            for shape in ((BLOCK * p, BLOCK * q), (BLOCK * q, BLOCK * q))
        )
        # of a type that nothing was planned for yet
        needs = ProductNeeds(np.dtype("f8"), "blas", None, "memory")
        question = ProductQuestion(*tilings, needs, rates)
        begun = time.process_time()
        found = question.remembered(2**40)
        first = time.process_time() - begun
        question.remembered(2**40)
        again = time.process_time() - begun - first
        tables = 4 * 8 * n**2  # bytes and messages from each to each, predicted and measured
        head = {"ranks": n, "chosen": found.chosen, "first": first}
        rows.append(head | {"again": again, "tables": tables})
    return rows


def first_to_break(rows: Sequence[dict[str, Any]], plans: Sequence[dict[str, Any]]) -> list[str]:
    """Of a product on each of FAR workers what takes longest, in words."""
    words = []
    for workers in FAR:
        planning = Growth([p["ranks"] for p in plans], [p["first"] for p in plans]).at(workers)
        spent = {n: growth(rows, "product", n).at(workers) for n in ("client", "scheduler")}
        first = max(spent, key=spent.__getitem__)
        nbytes = growth(rows, "product", "bytes out").at(workers)
        words.append(
            f"On {workers:,} workers the first product of its shapes is planned in "
            f"{format_seconds(planning)} by the client; of each further one the {first} has most "
            f"to do, {format_seconds(spent[first])} of Python, {format_bytes(round(nbytes))} leave "
            f"the scheduler, and the tables of its traffic take {format_bytes(32 * workers**2)}."
        )
    return words


def goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached of a product, and what was; nothing if too few were measured."""
    found = []
    for name, most in HALF.items():
        (at_32,) = [r[name] for r in rows if (r["what"], r["workers"]) == ("product", 32)] or [None]
        if at_32 is None or min(row["workers"] for row in rows) > FROM:
            continue
        exponent = growth(rows, "product", name, 32).exponent
        found += [
            (f"{name}: CPU seconds of a product on 32 workers", f"at most {most:g}", at_32, most),
            (f"{name}: exponent from 8 to 32", f"at most {EXPONENT:g}", exponent, EXPONENT),
        ]
    return [
        {"what": what, "goal": words, "reached": f"{reached:.3g}", "met": reached <= most}
        for what, words, reached, most in found
    ]


def main() -> int:
    """Print what was measured; with --record, keep it as JSON with a page and a picture beside."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [2, 4, 8, 16, 32, 64]
    parser.add_argument("--workers", nargs="+", type=int, default=sizes, metavar="N")
    parser.add_argument("--repeats", type=int, default=9, help="products; the median counts")
    parser.add_argument("--train", type=int, default=64, metavar="N", help="on N workers at most")
    parser.add_argument("--plan", nargs="*", type=int, default=[64, 256, 1024], metavar="RANKS")
    parser.add_argument("--record", metavar="FILE.json", help="also write numbers, page, picture")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    rows: list[dict[str, Any]] = []
    with (
        resumed("scale", console.print) as known,
        tempfile.TemporaryDirectory(prefix="tiledask-") as folder,
        by_hand(Path(folder)) as (address, more),
    ):
        running = 0

        def ask(count: int, trains: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
            nonlocal running
            more(count - running)
            running = count
            with Client(address, set_as_default=False) as client:
                client.wait_for_workers(count, timeout=START)
                cluster, row = connected(client, count)
                with cluster:
                    rates = rates_of(cluster, np.dtype("f4"))
                    return [row, *measured(cluster, args.repeats, trains)], vars(rates)

        for count in sorted(args.workers):
            cell = {"count": count, "trains": count <= args.train}
            some, rates = known.once(partial(ask, **cell), repeats=args.repeats, **cell)
            rows += some
            console.print(f"{count} workers: measured")
    plans = planned(args.plan, MachineRates(**rates))
    laws = _laws(rows)
    console.print(table(rows, laws))
    broken = first_to_break(rows, plans) if laws and len(plans) > 1 else []
    console.print("\n".join(broken))
    if reached := goals(rows):
        console.print(goals_table(reached))
    if args.record:
        file = Path(args.record)
        facts = {
            "arguments": {k: v for k, v in vars(args).items() if k != "record"},
            "goals": reached,
            "rows": rows,
            "growth": laws,
            "planned": plans,
            "what breaks first": broken,
        }
        record(file, "tiledask.lab.bench.scale", facts)
        file.with_suffix(".md").write_text(page(facts, file.with_suffix(".png").name))
        picture(rows, laws).savefig(file.with_suffix(".png"), dpi=150)
    return 0


def _laws(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How each amount of what was measured on FROM workers, and on more, grows."""
    found = []
    # a step costs them nothing that can be told from nothing: the ranks are by themselves
    for what in dict.fromkeys(row["what"] for row in rows if row["what"] != "step"):
        if sum(row["what"] == what and row["workers"] >= FROM for row in rows) < 2:
            continue
        for name in COUNTED:
            if any(row[name] <= 0 for row in rows if row["what"] == what):
                continue  # so little that it cannot be told from idling
            law = growth(rows, what, name)
            carried = {str(workers): law.at(workers) for workers in FAR}
            head = {"what": what, "amount": name, "exponent": law.exponent}
            found.append(head | {"scatter": law.scatter, "carried": carried})
    return found
