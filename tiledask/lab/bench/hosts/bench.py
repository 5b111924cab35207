"""The bench of hosts as a whole: it starts hosts and workers, and shows what a client measured.

    namespace A  10.77.0.1   scheduler, worker, client      "two hosts": a worker here, one there
                     |       scheduler, two workers         "one host": both here
                   cable
                     |
    namespace B  10.77.0.2   worker

Without root or namespaces there is one host: what is connected to beside what td.start_cluster
starts, and dask.array, are measured all the same.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tiledask.errors import ClusterLostError, ConfigError
from tiledask.lab.bench import records
from tiledask.lab.bench.hosts.by_hand import ByHand, environment, hosts_on_one, said
from tiledask.lab.bench.hosts.client import LAYOUTS, ONE, TWO, Options, training_of
from tiledask.lab.bench.records import goals_table, record
from tiledask.plan.judged import MARKS
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["goals", "main", "measured_rows", "tables"]

FULL = {"pairs": 7, "large_pairs": 3, "trainings": 3, "steps": (5, 25)}
QUICK = {"pairs": 2, "large_pairs": 1, "trainings": 1, "steps": (2, 6)}
SIZES, QUICK_SIZES = (8192, 4096), (1024,)
_WORKER = ("--no-nanny", "--memory-limit", "6GB")
CLIENT, LINK = (f"tiledask.lab.bench.hosts.{name}" for name in ("client", "link"))
TITLES = {
    "hosts": "a product in each place, float32, 2 workers of one thread",
    "dask": "beside dask.array on the same workers",
    "training": "a step of GPT(hidden 128, 4 layers, sequence 64), batch 8 in 2 micro-batches",
}
TRAINED = training_of(LAYOUTS[0])
GOALS = {
    ("hosts", "8192^3", TWO): 0.97,
    ("hosts", "4096^3", TWO): 0.92,
    ("hosts", "8192^3", ONE): 0.97,
    ("hosts", "4096^3", ONE): 0.97,
    ("dask", "4096^3, best chunks", "td.matmul"): 1.05,
    ("dask", "8192^3, best chunks", "td.matmul"): 1.0,
    ("dask", "4096^3, default", "td.matmul"): 1.3,
    ("dask", "8192^3, default", "td.matmul"): 1.3,
    ("training", TRAINED, TWO): 0.8,
}
"""Of (part, work, way): its speed against the other, at least."""


@dataclass(frozen=True)
class _Places:
    """Workers that wait for a client."""

    schedulers: dict[str, Any]
    """Of `Options`: "one", and of two hosts "two" and "link"."""
    before: tuple[str, ...] = ()
    """What stands before the client's command."""
    folder: str = ""
    """For its temporary files; empty for the system's."""
    why: str = ""
    """Why there are no two hosts."""


@contextmanager
def _started(folder: Path) -> Iterator[_Places]:
    """Schedulers and workers, by hand; ends them with the block."""
    with ExitStack() as stack:
        one = stack.enter_context(ByHand(_made(folder / "one")))
        try:
            hosts = stack.enter_context(hosts_on_one(_made(folder / "two")))
        except ConfigError as error:
            found = _Places({}, why=str(error))
            here: tuple[str, ...] = ()
            where: dict[str, Any] = {}
            one.scheduler()
        else:
            a, b = hosts.addresses.values()
            for host in hosts.addresses:
                hosts.on(host, *_WORKER)
            answers = hosts.start(LINK, b, before=hosts.within("B"))
            link = (b, int(said(answers, r"listens at: (\d+)")))
            before, shared = hosts.within("A"), str(hosts.shared)
            found = _Places({"two": hosts.address, "link": link}, before, shared)
            here, where = ("--host", a), {"before": before, "TMPDIR": shared}
            one.scheduler(host=a, **where)
        for _ in range(2):
            one.worker(*here, *_WORKER, **where)
        yield replace(found, schedulers={"one": one.address, **found.schedulers})


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def measured_rows(found: _Places, options: Options) -> Iterator[dict[str, Any]]:
    """What a client beside these workers measures, as it comes."""
    command = [*found.before, sys.executable, "-m", CLIENT, json.dumps(asdict(options))]
    env = environment(**({"TMPDIR": found.folder} if found.folder else {}))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as client:
        try:
            assert client.stdout is not None
            for line in client.stdout:
                yield json.loads(line)
        finally:
            client.terminate()
    if client.returncode:
        raise ClusterLostError(
            f"the client that measures ended with {client.returncode}, needed 0; its own words are "
            f"above"
        )


def goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached of what was measured, and what was."""
    by = {(row["part"], row.get("work"), row.get("way")): row for row in rows}
    found = []
    for key, least in GOALS.items():
        if key in by:
            mine = by[key]
            goal = f"{mine['work']}: speed of {mine['way']} / {mine['against']} at least {least:g}"
            found.append((goal, f"{mine['ratio']:.3f}", mine["ratio"] >= least))
    counted = [row for row in rows if row.get("bytes predicted")]
    equal = sum(row["bytes predicted"] == row["bytes measured"] for row in counted)
    if counted:
        words = f"{equal} of {len(counted)} rows"
        found.append(("bytes predicted are those that were counted", words, equal == len(counted)))
    trained = [row for row in rows if row["part"] == "training"]
    if trained:
        same = sum(row["same losses"] for row in trained)
        words = f"{same} of {len(trained)} rows"
        found.append(("losses on two hosts are those on one", words, same == len(trained)))
    return [dict(zip(("goal", "reached", "met"), each, strict=True)) for each in found]


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """A table per part."""
    for part, title in TITLES.items():
        mine = [row for row in rows if row["part"] == part]
        if mine:
            yield _table(title, mine)


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    found = Table(title=f"{title}, medians of rounds that take turns")
    heads = (
        "work",
        "way",
        "time",
        "GFLOP/s",
        "against",
        "ratio",
        "worst",
        "bytes",
        "",
        "transport",
    )
    for name in heads:
        left = name in ("work", "way", "against", "", "transport")
        found.add_column(name, justify="left" if left else "right")
    for row in rows:
        moved, counted = row["bytes predicted"], row["bytes measured"]
        found.add_row(
            row["work"],
            row["way"],
            format_seconds(row["seconds"]),
            f"{row['GFLOP/s']:.0f}" if row["GFLOP/s"] else "",
            row["against"],
            *("" if row[name] is None else f"{row[name]:.3f}" for name in ("ratio", "worst")),
            format_bytes(counted) if counted else "",
            MARKS[moved == counted] if moved else "",
            ", ".join(filter(None, (row["transport"], row["how"]))),
        )
    return found


def main() -> int:
    """Print the comparison; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(description="two hosts on this machine beside one")
    parser.add_argument("--sizes", nargs="+", type=int, help="n of n x n (8192 4096)")
    parser.add_argument("--pairs", type=int, help="rounds of each product (7)")
    parser.add_argument("--quick", action="store_true", help="small products, few steps: a minute")
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    args = parser.parse_args()
    chosen = dict(QUICK if args.quick else FULL)
    chosen |= {name: value for name, value in vars(args).items() if name in chosen and value}
    sizes = tuple(args.sizes or (QUICK_SIZES if args.quick else SIZES))
    console, rows = Console(width=None if sys.stdout.isatty() else 150), list[dict[str, Any]]()
    load = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="tiledask-hosts-"))
    try:
        with _started(folder) as found:
            if found.why:
                console.print(
                    f"skipped: two hosts, the link between them, trainings on them. {found.why}"
                )
            unfinished = str(records.UNFINISHED.resolve())
            options = Options(sizes=sizes, **chosen, unfinished=unfinished, **found.schedulers)
            for each in measured_rows(found, options):
                if "now" in each:
                    console.print(each["now"], style="dim")
                    continue
                rows.append(each)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for table in tables(rows):
        console.print(table)
    for link in (row for row in rows if row["part"] == "link"):
        console.print(
            f"the link alone: a byte takes {format_seconds(link['latency'])}, large messages go at "
            f"{format_bytes(link['bandwidth'])} per second"
        )
    if reached := goals(rows):
        console.print(goals_table(reached))
    if args.record:
        facts = {
            "arguments": chosen | {"sizes": sizes},
            "skipped": found.why,
            "load before and after": [round(load, 2), round(os.getloadavg()[0], 2)],
            "goals": reached,
            "rows": rows,
        }
        record(Path(args.record), "tiledask.lab.bench.hosts", facts)
    return 0
