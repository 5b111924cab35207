"""`make bench-training`: where a training step's time goes on 8 workers, and torch beside it.

A machine of C cores has C x seconds core-seconds in a step. All of them are one of

    compute      CPU of the ranks' threads outside collectives: layers, the optimizer, Python
    transfer     CPU of the ranks' threads in collectives: packing, system calls, copies, sums
    others       CPU of other programs, and what the host took from a virtual machine
    scheduling   the rest: what parallel work costs beside working and sending
      Dask         CPU of the workers' other threads and of the process with client and scheduler
      idle         nothing was running: ranks wait for each other, or have nothing to do
        bubble       as much of it as the pipeline's order alone makes, by simulation
      (what is left of it is the kernel's, and the clocks' error)

Compute that several ranks do alike (norms under tp, the optimizer under dp) is compute: `alone` is
what one rank computes for the same step. Times are of the threads' own clocks, by every Record and
StepTime; those of the machine are the kernel's counters. While others use the machine, a core that
waits is theirs, and idle is smaller than it would be: read it with `others`.

torch's processes (training_peer.py) have the same weights, batches and layouts, one thread each.
The two programs take turns; each measured step counts.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.training import GPT
from tiledask.lab.bench import training_runs as runs
from tiledask.lab.bench.records import goals_table, record
from tiledask.lab.bench.training_cores import idle_on_cores
from tiledask.lab.bench.training_runs import PeerProcesses, RankLayout, TrainingRun
from tiledask.lab.bench.training_shown import peer_table, picture, table

__all__ = ["LAYOUTS", "Pair", "broken_down", "compared", "goals", "main", "measure"]

RANKS = 8
LAYOUTS = (
    RankLayout("dp8", (8, 1, 1)),
    RankLayout("tp8", (1, 8, 1)),
    RankLayout("dp2 tp4", (2, 4, 1)),
    RankLayout("dp2 tp2 pp2, m=4", (2, 2, 2), 4),
    RankLayout("pp8, m=8", (1, 1, 8), 8),
)
ALONE = RankLayout("one rank", (1, 1, 1))
WARM = 1
"""Steps of a training before those that are measured."""
SHARE, SPEED = 0.2, 0.5
"""Goals: the share of scheduling at hidden 512; of torch's speed."""
CLOSE = {"float32": 1e-5, "float64": 1e-12}
"""By how much losses may differ, as a share."""
PATIENCE = 300.0
"""Seconds for 8 workers to start, on a machine that may be busy."""


@dataclass
class Pair:
    """A layout of a model: all runs of both programs."""

    hidden: int
    layout: RankLayout
    ours: list[TrainingRun] = field(default_factory=list)
    torch: list[TrainingRun] = field(default_factory=list)


def measure(
    cluster: Cluster,
    peer: PeerProcesses | None,
    hidden: int,
    layouts: Sequence[RankLayout],
    rounds: int,
    steps: int,
    dtype: str,
    say: Callable[[str], Any],
) -> list[Pair]:
    """Trainings of ``steps`` steps and one to warm up: ours, torch's, ours, torch's, ..."""
    model, pairs = runs.model_of(hidden), [Pair(hidden, layout) for layout in layouts]
    with tempfile.TemporaryDirectory(prefix="tiledask-") as folder:
        arrays = Path(folder) / "arrays.npz"
        if peer is not None:
            runs.write_arrays(arrays, model, steps + WARM, dtype)
        for turn in range(rounds):
            for pair in pairs:
                say(f"hidden {hidden}, {dtype}, {pair.layout.name}, round {turn + 1} of {rounds}")
                pair.ours.append(_ours(cluster, model, pair.layout, steps, dtype))
                if peer is not None:
                    pair.torch.append(
                        peer.train(arrays, model, pair.layout, steps + WARM, WARM, dtype)
                    )
    return pairs


def _ours(cluster: Cluster, model: GPT, layout: RankLayout, steps: int, dtype: str) -> TrainingRun:
    return runs.ours(cluster, model, layout, steps + WARM, WARM, dtype)


def broken_down(pair: Pair, alone: float) -> dict[str, Any]:
    """The step of all runs that others disturbed least, in its parts; ``alone``: core-seconds."""
    every = [step for run in pair.ours for step in run.steps]
    step = min(every, key=lambda s: s.others / s.seconds)
    cores = psutil.cpu_count()
    dp, tp, pp = pair.layout.shape
    bubble = idle_on_cores(pair.layout.schedule, dp * tp, cores) if pp > 1 else 0.0
    whole = cores * step.seconds
    return {
        "hidden": pair.hidden,
        "layout": pair.layout.name,
        "shape": pair.layout.shape,
        **step._asdict(),
        "whole": whole,
        "share": step.share,
        "alone": alone,
        "bubble": bubble * (whole - step.others),
        "every step": [s._asdict() | {"share": s.share} for s in every],
    }


def compared(pair: Pair) -> dict[str, Any]:
    """Ours beside torch's: seconds, core-seconds, bytes and losses."""
    ours, torch = ([s for run in who for s in run.seconds] for who in (pair.ours, pair.torch))
    cpu, their_cpu = ([s for run in who for s in run.cpu] for who in (pair.ours, pair.torch))
    one, other = pair.ours[0], pair.torch[0]
    return {
        "hidden": pair.hidden,
        "layout": pair.layout.name,
        "ours": median(ours),
        "torch": median(torch),
        "speed": median(torch) / median(ours),
        "best speed": min(torch) / min(ours),
        "core speed": median(their_cpu) / median(cpu),
        "core-seconds": [median(cpu), median(their_cpu)],
        "losses": [one.losses, other.losses],
        "losses differ by": max(runs.same(run.losses, other.losses) for run in pair.ours),
        "bytes": sum(one.sent.values()),
        "ring bytes": sum(other.sent.values()),
        "written bytes": other.written,
        "bytes by kind": [one.sent, other.sent],
        "payload by kind": [one.payload, other.payload],
        "all seconds": [[round(s, 4) for s in ours], [round(s, 4) for s in torch]],
    }


def goals(
    rows: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]], double: Sequence[dict]
) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    found = []
    for row in rows:
        if row["hidden"] == 512:
            goal = f"hidden 512, {row['layout']}: scheduling at most {100 * SHARE:.0f} %"
            found.append((goal, f"{100 * row['share']:.1f} %", row["share"] <= SHARE))
    for row in beside:
        goal = f"hidden {row['hidden']}, {row['layout']}: {SPEED:g} of torch's speed"
        found.append((goal, f"{row['speed']:.2f}", row["speed"] >= SPEED))
    for dtype, some in (("float32", beside), ("float64", double)):
        if some:
            worst = max(row["losses differ by"] for row in some)
            goal = f"{dtype}: torch's losses within {CLOSE[dtype]:g} of ours"
            found.append((goal, f"{worst:.1e}", worst <= CLOSE[dtype]))
    if every := [*beside, *double]:
        same = [row["payload by kind"][0] == row["payload by kind"][1] for row in every]
        words = f"{sum(same)} of {len(same)} layouts"
        found.append(("the same bytes in the same calls", words, all(same)))
    return [dict(zip(("goal", "reached", "met"), each, strict=True)) for each in found]


@dataclass
class TrainingsMeasured:
    """What was measured so far."""

    torch: str | None = None
    """Its version, if it takes part."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    beside: list[dict[str, Any]] = field(default_factory=list)
    double: list[dict[str, Any]] = field(default_factory=list)
    """`beside`, in float64."""
    alone: list[dict[str, Any]] = field(default_factory=list)
    """What one rank takes for the whole step, in either program."""


def main() -> int:
    """Print where the time goes; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", nargs="+", type=int, default=[64, 256, 512], metavar="H")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each training")
    parser.add_argument("--layouts", nargs="+", default=[x.name for x in LAYOUTS], metavar="NAME")
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    parser.add_argument("--picture", metavar="FILE.png", help="also draw the parts there")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    found, load = TrainingsMeasured(), os.getloadavg()[0]
    for found in _measured(args, console):
        if args.record:  # what there is, if a long run is cut off
            model = {
                name.lower(): getattr(runs, name)
                for name in ("LAYERS", "HEADS", "SEQUENCE", "BATCH", "VOCABULARY")
            }
            places = ("record", "picture", "python")
            facts = {
                "arguments": {k: v for k, v in vars(args).items() if k not in places},
                "load before and after": [round(load, 2), round(os.getloadavg()[0], 2)],
                "cores": psutil.cpu_count(),
                "model": model,
                "torch": found.torch,
                "goals": goals(found.rows, found.beside, found.double),
                "rows": found.rows,
                "core-seconds of one rank": found.alone,
                "beside torch": found.beside,
                "in float64": found.double,
            }
            record(Path(args.record), "tiledask.lab.bench.training", facts)
    console.print(table(found.rows))
    if found.beside:
        console.print(peer_table(found.beside))
    if reached := goals(found.rows, found.beside, found.double):
        console.print(goals_table(reached))
    if args.picture:
        picture(found.rows).savefig(args.picture, dpi=150)
    return 0


def _measured(args: argparse.Namespace, console: Console) -> Iterator[TrainingsMeasured]:
    """All of it, and more with every width."""
    found, steps = TrainingsMeasured(), args.steps
    layouts = [layout for layout in LAYOUTS if layout.name in args.layouts]
    with ExitStack() as stack:
        say = console.print
        if console.is_terminal:
            say = stack.enter_context(console.status("starting 8 workers")).update
        cluster = stack.enter_context(
            td.start_cluster(workers=RANKS, device="cpu", quiet=True, timeout=PATIENCE)
        )
        peer = one = None
        if _has_torch(args.python, console):
            peer, one = (stack.enter_context(PeerProcesses(args.python, n)) for n in (RANKS, 1))
            found.torch = peer.version
        for hidden in args.hidden:
            (single,) = measure(cluster, one, hidden, [ALONE], 1, steps, "float32", say)
            alone = min(step.compute for step in single.ours[0].steps)
            theirs = min(single.torch[0].cpu) if single.torch else None
            found.alone.append({"hidden": hidden, "ours": alone, "torch": theirs})
            pairs = measure(cluster, peer, hidden, layouts, args.rounds, steps, "float32", say)
            found.rows += [broken_down(pair, alone) for pair in pairs]
            found.beside += [compared(pair) for pair in pairs if pair.torch]
            yield found
        if peer is not None:
            pairs = measure(cluster, peer, min(args.hidden), layouts, 1, 2, "float64", say)
            found.double = [compared(pair) for pair in pairs]
            yield found


def _has_torch(python: str, console: Console) -> bool:
    """Whether that interpreter has torch with gloo; says how to have one that does."""
    has = "import torch.distributed as d; raise SystemExit(not d.is_gloo_available())"
    if shutil.which(python):
        with suppress(OSError):
            if subprocess.run([python, "-I", "-c", has], capture_output=True).returncode == 0:
                return True
    console.print(
        f"skipped: torch over gloo, which {python} cannot import; give an interpreter that can "
        f"with --python PATH"
    )
    return False


if __name__ == "__main__":
    raise SystemExit(main())
