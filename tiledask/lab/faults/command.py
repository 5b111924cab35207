"""`make faults`: every fault into a real cluster, and whether what is promised of it is kept."""

import argparse
import faulthandler
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.bench.records import record
from tiledask.lab.faults.page import renewed
from tiledask.lab.faults.table import FAULTS, ON_GPUS, Promised
from tiledask.lab.faults.trying import Tried
from tiledask.lab.faults.workloads import Workbench
from tiledask.plan.judged import MARKS
from tiledask.plan.units import format_seconds

__all__ = ["busy", "code", "main", "measured_row", "started_bench"]

SLOTS = 3
QUIET = Path("data/measured/faults/cpu-2cores.json")
"""The record of a quiet machine, from the checkout's top."""
_LEAST = 0.1
"""Seconds; what took less is not told from it."""
HUNG = 300
"""Seconds after which a try ends the process, and says where it was."""


_BUSY = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000): pass
"""
"""A process that wants a core until who started it has ended."""


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Inside the block so many processes want a core each; none outlives this one."""
    wants = [sys.executable, "-c", _BUSY, str(os.getpid())]
    running = [subprocess.Popen(wants) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def started_bench(slots: int = SLOTS, seed: int = 0, device: str = "cpu") -> Iterator[Workbench]:
    """A bench on a cluster of its own."""
    with (
        TemporaryDirectory(prefix="tiledask-faults-", ignore_cleanup_errors=True) as folder,
        td.start_cluster(slots, device=device, quiet=True) as cluster,
    ):
        yield Workbench(cluster, Path(folder), seed)


def measured_row(
    bench: Workbench, fault: Promised, tries: int, *, in_time: bool = True
) -> dict[str, Any]:
    """What came of a fault: counts, seconds, and words of what was not as promised; ``in_time``:
    its time is promised too."""
    each: dict[str, list[float]] = {}
    ends: list[str] = []
    broken: list[str] = []
    for what in fault.of:
        for _ in range(tries):
            faulthandler.dump_traceback_later(HUNG, exit=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = fault.attempt(bench, what)
                except ConfigError as error:  # this machine has no such fault
                    if "root" not in str(error):
                        raise
                    return _row(fault, {}, [], [], f"not tried: {error}")
                except AssertionError as error:  # undisturbed it is not what it was before
                    found = Tried("wrong", 0.0, str(error))
            faulthandler.cancel_dump_traceback_later()
            ends.append(found.end)
            each.setdefault(what, []).append(round(found.seconds, 3))
            if not fault.keeps(found, what):
                broken.append(f"{what}: {found.end} after {found.seconds:.2f} s: {found.words}")
            elif found.seconds > fault.seconds and in_time:
                broken.append(f"{what}: {found.end}, but after {found.seconds:.2f} s")
    return _row(fault, each, ends, broken)


def code() -> str:
    """The commit of the code that runs here, "+" if it was changed since; empty if nobody says."""
    here = Path(__file__).parent
    said = ("git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")
    try:
        return subprocess.run(said, cwd=here, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _row(
    fault: Promised,
    each: dict[str, list[float]],
    ends: list[str],
    broken: list[str],
    note: str = "",
) -> dict[str, Any]:
    seconds = sorted(s for found in each.values() for s in found)
    return {
        "fault": fault.name,
        "promised": fault.promise,
        "within": fault.seconds,
        "median": median(seconds) if seconds else None,
        "most": seconds[-1] if seconds else None,
        "tried": len(ends),
        "ends": {end: ends.count(end) for end in sorted({*ends})},
        "wrong": ends.count("wrong"),
        "hangs": ends.count("hang"),
        "kept": None if note else not broken,
        "broken": broken,
        "note": note,
        "each": each,
    }


def _quiet() -> dict[str, float]:
    """By fault, the median seconds that were recorded on a machine that did nothing else."""
    if not QUIET.exists():
        return {}
    rows = json.loads(QUIET.read_text())["rows"]
    return {row["fault"]: row["median"] for row in rows if row["tried"]}


def shown(
    rows: Sequence[dict[str, Any]], title: str, quiet: Mapping[str, float] | None = None
) -> Table:
    """The table of the rows; with ``quiet``, by how much their medians are longer than those."""
    table = Table(title=title)
    table.add_column("fault")
    table.add_column("promised", max_width=34)
    for name in ("median", "most", *(["/ quiet"] if quiet else []), "tried", "wrong", "hangs"):
        table.add_column(name, justify="right")
    table.add_column("")
    table.add_column("most, by workload", max_width=60)
    for row in rows:
        times = ("-" if row[n] is None else format_seconds(row[n]) for n in ("median", "most"))
        ratio = []
        if quiet:
            known = row["fault"] in quiet and row["tried"]
            ratio = [f"{row['median'] / max(_LEAST, quiet[row['fault']]):.1f}" if known else "-"]
        counts = (str(row[n]) for n in ("tried", "wrong", "hangs"))
        by = ", ".join(f"{what} {max(found):.2g}" for what, found in row["each"].items())
        mark = MARKS[row["kept"]]
        table.add_row(
            row["fault"], row["promised"], *times, *ratio, *counts, mark, row["note"] or by
        )
    return table


def main() -> int:
    """Print the table; 1 if anything is wrong, hangs, or is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", type=int, default=0, metavar="N", help="beside N busy loops")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of the workers")
    parser.add_argument("--minutes", type=float, help="after which no fault is begun")
    parser.add_argument("--tries", type=int, help="of each workload (default: by fault)")
    parser.add_argument("--only", nargs="+", metavar="FAULT", help="faults whose names begin so")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    parser.add_argument("--page", metavar="RELIABILITY.md", help="and write them into this page")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    logging.disable()  # of workers that end, there is much to say
    # with a GPU to be found again a worker starts in seconds: how many is measured, not promised
    in_time, begun = not args.load and args.device == "cpu", time.monotonic()
    faults = [f for f in FAULTS if not args.only or f.name.startswith(tuple(args.only))]
    if args.device == "cuda":
        faults = [f for f in faults if f.name in ON_GPUS]
    rows: list[dict[str, Any]] = []
    with busy(args.load), started_bench(seed=args.seed, device=args.device) as bench:
        for fault in faults:
            if args.minutes and time.monotonic() - begun > 60 * args.minutes:
                break
            console.print(f"{fault.name} ...", end=" ")
            rows.append(measured_row(bench, fault, args.tries or fault.tries, in_time=in_time))
            console.print(MARKS[rows[-1]["kept"]], f"most {rows[-1]['most']} s")
            for words in rows[-1]["broken"]:
                console.print(f"    {words}", markup=False, highlight=False)
            if args.record:
                how = {"load": args.load, "device": args.device, "seed": args.seed}
                facts = {"code": code(), **how, "rows": rows}
                record(Path(args.record), "tiledask.lab.faults.command", facts)
    of = "GPU workers" if args.device == "cuda" else "workers"
    title = f"faults, {SLOTS} {of}, beside {args.load} busy loops"
    console.print(shown(rows, title, _quiet() if args.load else None))
    if args.page:
        page = Path(args.page)
        page.write_text(renewed(page.read_text(), rows))
    return int(any(row["kept"] is False for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
