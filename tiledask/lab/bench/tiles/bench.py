"""`make bench-tiles`: our tile kernels beside cuBLAS, torch and Triton on one GPU.

predict the ladder -> try each kernel in a process of its own -> product after product, the most
important first: check every contender, then rounds in which they take turns -> tables, goals, a
record. With --arrays numpy the same on a CPU, at sizes that take seconds.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console

from tiledask.errors import KernelError
from tiledask.lab.bench.records import goals_table, record
from tiledask.lab.bench.tiles import shown
from tiledask.lab.bench.tiles.clock import ContestClock, Stopped, clock_for
from tiledask.lab.bench.tiles.device import clocks, device_of, facts_of
from tiledask.lab.bench.tiles.goals import goals, ladder, missing, predictions
from tiledask.lab.bench.tiles.jobs import JOBS, Contest
from tiledask.lab.bench.tiles.rounds import Contender, Gemm, contest
from tiledask.lab.bench.tiles.trial import trial
from tiledask.lab.bench.tiles.two_level import two_level
from tiledask.lab.bench.tiles.ways import TORCH, TRITON, ways_of
from tiledask.lab.ladders import recorded
from tiledask.tile.backend import probe

__all__ = ["Bench", "main"]

_MODULE = "tiledask.lab.bench.tiles"
_TF32 = ("CUPY_TF32", "NVIDIA_TF32_OVERRIDE")
"""Variables that make cuBLAS round float32 to TF32, or not, whoever calls it."""

_BUSY = 0.05
"""Noise beyond which a word is said about it."""


class Bench:
    """A run over jobs within ``seconds``; what it found is in `facts` at any moment."""

    def __init__(
        self,
        arrays: str,
        jobs: Sequence[Contest],
        seconds: float,
        rounds: int,
        *,
        without: Sequence[str] = (),
        console: Console | None = None,
        seed: int = 0,
    ) -> None:
        self.arrays, self.jobs, self.seconds, self.rounds = arrays, jobs, seconds, rounds
        self.without, self.console, self.seed = without, console or Console(), seed
        self.end = time.monotonic() + seconds
        self.device = facts_of(arrays)
        self.rows: list[dict[str, Any]] = []
        self.two: list[dict[str, Any]] = []
        self.clocks: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self.refused: dict[tuple[str, str], str] = {}
        self.stopped = ""
        self.n = jobs[0].works[0].n
        self.bounds = predictions(self.n, device_of(self.device), arrays)

    def run(self, keep: Callable[[dict[str, Any]], None] = lambda facts: None) -> dict[str, Any]:
        """The facts; given to ``keep`` after every job, so that a run that is stopped leaves
        what it has."""
        if self.bounds:
            self.console.print("[bold]Predicted, before anything ran[/]")
            self._print_ladder()
        left = sum(len(job.works) for job in self.jobs)
        try:
            # ours on a GPU only: NumPy's cannot take the process along
            ours = [
                (name, work.precision)
                for job in self.jobs
                for work in job.works
                for name in job.names
                if name not in (TORCH, TRITON, *self.without)
            ]
            if self.arrays == "cupy":
                self.refused = trial(list(dict.fromkeys(ours)), self.arrays, say=self._say)
            clock = clock_for(self.arrays)
            for job in self.jobs:
                for work in job.works:
                    self._one(job, work, clock, left)
                    left -= 1
                self._print_layouts(job)
                keep(self.facts())
        except Stopped as error:
            self.stopped = str(error)
        return self.facts()

    def _one(self, job: Contest, work: Gemm, clock: ContestClock, left: int) -> None:
        """Measure one product, unless time is over; it gets up to twice its share of the rest."""
        rest = self.end - time.monotonic()
        what = f"{work}" + ", two levels" * bool(job.workers)
        if rest <= 0:
            self.left_out.append(f"{what}: the {self.seconds:g} s of --seconds were over")
            return
        until = time.monotonic() + min(rest, 2 * rest / left)
        self._say(f"{what}, with {rest:.0f} s to go")
        before, begun = clocks(self.arrays), time.monotonic()
        clock.release()
        self.seed += 1  # fresh numbers
        try:
            if job.workers:
                found = two_level(work, job.workers, clock, until, min(self.rounds, 7))
                self.two += found
                self.console.print(shown.two_level_table(found, self.arrays))
                self._print_missing(found)
            else:
                ways = [
                    self._allowed(work, way)
                    for way in ways_of(work, job.names, self.arrays, self.without)
                ]
                found = contest(work, ways, clock, until, self.rounds, self.seed)
                self.rows += found
                self.console.print(shown.product_table(found, self.arrays))
                self._print_missing(found)
        except Stopped:
            self.left_out.append(f"{what}: it was under way when the device stopped")
            raise
        except Exception as error:  # no room, or a library's own kind of failure
            kind = "" if isinstance(error, KernelError) else f"{type(error).__name__}: "
            self.left_out.append(f"{what}: {kind}{error}")
            clock.still_alive(what, error)
        took = {"took": time.monotonic() - begun}
        self.clocks.append({"work": what, "before": before, "after": clocks(self.arrays)} | took)

    def _allowed(self, work: Gemm, way: Contender) -> Contender:
        why = self.refused.get((way.name, work.precision))
        if way.why_not or not why:
            return way
        return Contender(way.name, way.prepare, f"in a trial {why}")

    def facts(self) -> dict[str, Any]:
        """All that is known now, for the record."""
        steps = ladder(self.rows, self.bounds, self.n, self.arrays)
        found = {}
        for package in ("torch", "triton", "cuda-bindings", "ml_dtypes"):
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
        return {
            "arrays": self.arrays,
            "device": self.device,
            "peers": found,
            "settings": {name: os.environ.get(name, "unset") for name in _TF32},
            "rounds at most": self.rounds,
            "seconds at most": self.seconds,
            "without": list(self.without),
            "clocks": self.clocks,
            "ladder": steps,
            "goals": goals(self.rows, self.two, steps),
            "rows": self.rows,
            "two level": self.two,
            "left out": self.left_out,
            "stopped": self.stopped,
        }

    def _say(self, what: str) -> None:
        self.console.print(what, style="dim", highlight=False)

    def _print_missing(self, rows: Sequence[dict[str, Any]]) -> None:
        for line in missing(rows):
            self.console.print(line, highlight=False)

    def _print_layouts(self, job: Contest) -> None:
        if len(job.works) > 1:
            first = job.works[0]
            same = [
                r
                for r in self.rows
                if (r["m"], r["n"], r["k"], r["precision"])
                == (first.m, first.n, first.k, first.precision)
            ]
            if same:
                self.console.print(shown.layouts_table(same, self.arrays))

    def _print_ladder(self) -> None:
        steps = ladder(self.rows, self.bounds, self.n, self.arrays)
        self.console.print(shown.ladder_table(steps, self.device["name"], self.arrays))

    def print_end(self) -> None:
        """The ladder, the goals, what was left out and what the device did."""
        self._print_ladder()
        facts = self.facts()
        if facts["goals"]:
            self.console.print(goals_table(facts["goals"]))
        else:
            self.console.print("No goal could be measured.")
        unsure = max((g["noise"] for g in facts["goals"] if g["noise"] != ""), default=0.0)
        if unsure > _BUSY:
            self.console.print(
                f"The library was up to {100 * unsure:.0f} % faster or slower than itself: this "
                f"machine had other work, and marks within that say little.",
                highlight=False,
            )
        for line in self.left_out:
            self.console.print(f"left out: {line}", highlight=False)
        if self.stopped:
            self.console.print(f"stopped: {self.stopped}", highlight=False)
        for row in self.clocks:
            if row["before"] or row["after"]:
                told = (
                    ", ".join(f"{k} {v:g}" for k, v in row[at].items())
                    for at in ("before", "after")
                )
                before, after = told
                self.console.print(f"{row['work']}: {before}; then {after}", highlight=False)
        where = "on a CPU, which says nothing of GPUs" if self.arrays == "numpy" else "on one GPU"
        rounding = " fp32 is without TF32 for all, tf32 with it." * (self.arrays == "cupy")
        self.console.print(
            f"Measured {where}: {self.device['name']}. Ratios are of medians; the quartiles are "
            f"of the ratios round by round; noise is the library beside itself.{rounding}",
            highlight=False,
        )


def _refusal(arrays: str) -> str:
    """Why nothing can be measured, and what to do; empty if it can."""
    if arrays == "cupy" and not probe().usable:
        return (
            f"bench-tiles measures kernels on a GPU and finds none that it could use: "
            f"{probe().reason}.\nOn a machine with one it needs nothing else; the same steps on "
            f"this CPU, at small sizes: make bench-tiles BENCH_ARGS='--arrays numpy'\n"
            + "\n".join(recorded())
        )
    if rounding := [name for name in _TF32 if os.environ.get(name)]:
        return (
            f"{' and '.join(rounding)} would decide whether cuBLAS rounds float32 to TF32, and "
            f"both are compared here: unset {' '.join(rounding)}"
        )
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--arrays",
        choices=list(JOBS),
        default="cupy",
        help="cupy: on a GPU (default); numpy: the same steps on this CPU, at small sizes",
    )
    parser.add_argument("--seconds", type=float, default=420.0, help="in all (%(default)g)")
    parser.add_argument("--rounds", type=int, default=25, help="at most (%(default)s)")
    parser.add_argument(
        "--without",
        nargs="+",
        default=(),
        metavar="NAME",
        help="contenders to leave out: kernels, torch, Triton",
    )
    parser.add_argument(
        "--record",
        metavar="FILE.json",
        type=Path,
        help="write the numbers there, and a picture of the ladder beside it",
    )
    args = parser.parse_args(arguments)
    console = Console()
    if why := _refusal(args.arrays):
        console.print(why, highlight=False, soft_wrap=True)
        return 1
    bench = Bench(
        args.arrays,
        JOBS[args.arrays],
        args.seconds,
        args.rounds,
        without=args.without,
        console=console,
    )

    def keep(facts: dict[str, Any]) -> None:
        if args.record:
            record(args.record, _MODULE, facts)

    facts = bench.run(keep)
    bench.print_end()
    keep(facts)
    if args.record:
        _draw(facts, args.record.with_suffix(".png"), console)
    if bench.stopped and args.arrays == "cupy":
        sys.stdout.flush()
        os._exit(1)  # an orderly end would wait for the device, which does not answer
    return 1 if bench.stopped else 0


def _draw(facts: dict[str, Any], path: Path, console: Console) -> None:
    picture = shown.figure(facts)
    if picture is None:
        console.print(
            f"No picture of the ladder: nothing is predicted of {facts['device']['name']}."
        )
        return
    picture.savefig(path, dpi=150)
    console.print(f"The ladder under its roofline: {path}")
