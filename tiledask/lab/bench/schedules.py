"""`make bench-schedules`: building and simulating pipeline schedules, up to 16.8 million actions.

Every run is a process of its own on one core (schedule_peers.py); the programs take turns, so
that a slow minute slows all of them. Their orders must be the same, and their times too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tiledask.lab.bench import schedule_peers
from tiledask.lab.bench.records import goals_table, record
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["SIZES", "ScheduleProgram", "Size", "main", "measure"]

COLD, FIRST, WARM = "tiledask, compiling", "tiledask, new process", "tiledask, again"
"""Nothing compiled yet; compiled code on disk; a process that has simulated before."""
TORCH, VIC = "torch", "PP-Schedule-Visualization"
"""torch.distributed.pipelining, and Victarry/PP-Schedule-Visualization."""
GOAL_SECONDS, GOAL_SPEED = 2.0, 20.0


@dataclass(frozen=True)
class Size:
    """A schedule to build and simulate, every stage of another length."""

    name: str
    devices: int
    stages: int
    microbatches: int

    @property
    def actions(self) -> int:
        return 2 * self.stages * self.microbatches

    def __str__(self) -> str:
        return f"{self.name}, {self.stages} stages on {self.devices}, {self.microbatches}"


SIZES = tuple(
    Size(name, p // chunks, p, m)
    for name, chunks in (("1f1b", 1), ("interleaved", 2))
    for p, m in ((8, 64), (16, 256), (32, 512), (64, 1024), (256, 4096), (1024, 8192))
)
"""From 1,024 to 16.8 million actions; interleaved with two chunks a device."""


@dataclass
class ScheduleProgram:
    """A program that does the work, and the largest size that it is given."""

    name: str
    command: Sequence[str]
    """The interpreter and its flags."""
    who: str
    where: str = "-"
    most: float = float("inf")
    """Actions."""
    least: int = 0
    fresh: bool = False
    """Whether each run starts with an empty cache of compiled code."""
    gave_up: dict[str, str] = field(default_factory=dict)
    """Schedule -> why it is given no larger size of it."""

    def run(self, size: Size, cache: str, limit: float) -> dict[str, Any] | None:
        """What the run said; None if it broke or took longer than ``limit`` seconds."""
        script = schedule_peers.__file__
        counts = (size.devices, size.stages, size.microbatches)
        command = [*self.command, script, self.who, size.name, *map(str, counts), self.where]
        with tempfile.TemporaryDirectory(prefix="tiledask-bench-") as empty:
            env = os.environ | {"NUMBA_CACHE_DIR": empty if self.fresh else cache}
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=limit, env=env, check=False
                )
            except subprocess.TimeoutExpired:
                self.gave_up[size.name] = f"over {limit:g} s at {size.actions:,} actions"
                return None
        if done.returncode:
            error = (done.stderr.strip().splitlines() or ["no message"])[-1]
            self.gave_up[size.name] = f"{error} at {size.actions:,} actions"
            return None
        return json.loads(done.stdout.splitlines()[-1])


def measure(
    sizes: Sequence[Size], ways: Sequence[ScheduleProgram], rounds: int, limit: float, say: Callable
) -> list[dict[str, Any]]:
    """A row per size and way: median seconds, peak memory. Raises ValueError if two of them did
    not do the same work."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="tiledask-bench-") as cache:
        for way in ways if sizes else ():  # compiles what the later processes find compiled
            if way.who == "ours" and not way.fresh:
                way.run(Size("1f1b", 64, 64, 1024), cache, limit)
        for size in sizes:
            runs: dict[str, list[dict[str, Any]]] = {}
            for turn in range(rounds):
                say(f"{size}, round {turn + 1} of {rounds}")
                for way in ways if turn % 2 else reversed(ways):
                    if way.least <= size.actions <= way.most and size.name not in way.gave_up:
                        found = way.run(size, cache, limit)
                        if found is not None:
                            runs.setdefault(way.name, []).append(found)
            # every program made the same order and, if it has times, the same times
            for what in ("actions", "order", "makespan", "sum of ends"):
                said = {name: {r[what] for r in found if what in r} for name, found in runs.items()}
                if len(set().union(*said.values())) > 1:
                    raise ValueError(f"{size}: not the same work, {what} differs: {said}")
            rows += [_row(size, way, runs[way.name]) for way in ways if way.name in runs]
    return rows


def _row(size: Size, way: ScheduleProgram, runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **vars(size),
        "actions": size.actions,
        "way": way.name,
        "rounds": len(runs),
        "seconds": median(r["seconds"] for r in runs),
        "all seconds": [round(r["seconds"], 5) for r in runs],
        "seconds of the core": median(r["cpu"] for r in runs),
        "peak bytes": median(r["peak"] for r in runs),
        "peak bytes before": median(r["before"] for r in runs),
        "makespan": next((r["makespan"] for r in runs if "makespan" in r), None),
    }


def goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    found = []
    for row in rows:
        size = f"{row['name']}, {row['actions']:,} actions"
        if row["way"] in (FIRST, WARM, COLD) and row["actions"] == 2 * 1024 * 8192:
            met = row["seconds"] <= GOAL_SECONDS
            found.append((size, f"seconds of {row['way']}", row["seconds"], GOAL_SECONDS, met))
        if row["way"] in (TORCH, VIC):
            ours = next(
                r
                for r in rows
                if r["way"] == WARM and (r["name"], r["actions"]) == (row["name"], row["actions"])
            )
            ratio = row["seconds"] / ours["seconds"]
            found.append((size, f"speed / {row['way']}", ratio, GOAL_SPEED, ratio >= GOAL_SPEED))
    names = ("work", "goal", "reached", "wanted", "met")
    return [dict(zip(names, row, strict=True)) for row in found]


def ways_here(python: str, vic: str | None, most: int, console: Console) -> list[ScheduleProgram]:
    """tiledask's ways and those of the peers that are there; says what is skipped, and why."""
    here = (sys.executable, "-I")
    ways = [
        ScheduleProgram(COLD, here, "ours", "cold", least=SIZES[-1].actions, fresh=True),
        ScheduleProgram(FIRST, here, "ours", "cold"),
        ScheduleProgram(WARM, here, "ours", "warm"),
    ]
    there = None
    with suppress(OSError):
        there = subprocess.run(
            [python, "-I", "-c", "import torch.distributed.pipelining"], capture_output=True
        )
    if there is not None and there.returncode == 0:
        ways.append(ScheduleProgram(TORCH, (python, "-I"), "torch", most=most))
    else:
        console.print(
            f"skipped: torch.distributed.pipelining, which {python} cannot import; "
            f"give an interpreter that can with --python PATH"
        )
    if vic is not None and (Path(vic) / "src" / "execution_model.py").exists():
        ways.append(ScheduleProgram(VIC, here, "vic", str(Path(vic).resolve()), most=most))
    else:
        console.print(
            f"skipped: {VIC}; give a checkout of github.com/Victarry/{VIC} with --vic PATH"
            + (f" ({vic} has no src/execution_model.py)" if vic else "")
        )
    return ways


def main() -> int:
    """Print the comparison; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--vic", metavar="PATH", help=f"a checkout of {VIC}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest", type=int, default=2**24, help="most actions (%(default)s)")
    parser.add_argument(
        "--peers-largest", type=int, default=2**17, help="most actions of a peer (%(default)s)"
    )
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds after which a run is given up"
    )
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    args = parser.parse_args()
    console = Console()
    load = os.getloadavg()
    ways = ways_here(args.python, args.vic, args.peers_largest, console)
    sizes = [size for size in SIZES if size.actions <= args.largest]
    with console.status("") as status:
        rows = measure(sizes, ways, args.rounds, args.limit, status.update)
    reached = goals(rows)
    for name in dict.fromkeys(row["name"] for row in rows):
        console.print(_table(name, [row for row in rows if row["name"] == name]))
    for way in ways:
        for name, why in way.gave_up.items():
            console.print(f"{way.name}, {name}: {why}")
    if reached:
        console.print(goals_table(reached))
    busy = [round(x, 2) for x in (load[0], os.getloadavg()[0])]
    console.print(
        f"Load of the machine before and after: {busy[0]} and {busy[1]} (this bench alone makes "
        f"1; the record also has the core's own seconds)."
    )
    if args.record:
        facts = {
            "peers": _versions(args.python, args.vic),
            "load before and after": busy,
            "gave up": {way.name: way.gave_up for way in ways if way.gave_up},
            "goals": reached,
            "rows": rows,
        }
        record(Path(args.record), "tiledask.lab.bench.schedules", facts)
    return 0


def _versions(python: str, vic: str | None) -> dict[str, str]:
    """Versions of the peers, as they say themselves."""
    questions = {TORCH: [python, "-I", "-c", "import torch; print(torch.__version__)"]}
    if vic is not None:
        questions[VIC] = ["git", "-C", vic, "rev-parse", "HEAD"]
    answers = {}
    for name, command in questions.items():
        with suppress(OSError):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                answers[name] = done.stdout.strip()
    return answers


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    """The table of one schedule: a row per size, a column per program."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    table = Table(
        title=f"{name}: build + simulate on one core, medians of {rows[0]['rounds']} rounds\n"
        f"time, peak memory of the process, time / {WARM}",
        show_lines=True,
    )
    for head in ("stages x m\nactions", *ways):
        table.add_column(head, justify="right")
    for actions in dict.fromkeys(row["actions"] for row in rows):
        here = {row["way"]: row for row in rows if row["actions"] == actions}
        cells = (_cell(here.get(way), here[WARM]["seconds"]) for way in ways)
        size = f"{here[WARM]['stages']} x {here[WARM]['microbatches']}\n{actions:,}"
        table.add_row(size, *cells)
    return table


def _cell(row: dict[str, Any] | None, ours: float) -> str:
    if row is None:
        return "-"
    memory = format_bytes(int(row["peak bytes"]))
    return f"{format_seconds(row['seconds'])}\n{memory}\n{row['seconds'] / ours:.3g} x"


if __name__ == "__main__":
    raise SystemExit(main())
