"""`python -m tiledask.lab.bench.idle`: the idle time of every schedule, measured and simulated.

    measured idle share - simulated  =  difference, in points
        transfer                          waiting for a block that was on its way
        overhead                          waiting for an action that could have been running
        knock-on                          waiting for a device that was held up by those two
        rest                              actions that took longer than they were told

Dummies that sleep, so that eight devices can be studied on two cores. To tell the last two apart
the run is replayed: the same actions, each as long as it took, if nothing had held them up. And the
other way round, the simulation is asked again with two measured numbers, the mean overhead of an
action and the mean way of a block: what it then says should be what was measured.
"""

import argparse
import inspect
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.pipelines.run import PipelineRun
from tiledask.errors import ScheduleError
from tiledask.lab.bench.records import goals_table, record, resumed
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline
from tiledask.plan.units import format_seconds

__all__ = ["ScheduleCase", "cases", "main", "measure"]

FORWARD = 0.02
"""Seconds of a forward; a backward takes twice as long, each half of a split one as long."""
LONG = 0.2
"""Seconds of a forward in the comparison of two workers with four."""
POINTS, ACCOUNTED, OVERHEAD, UTILISATION = 2.0, 1.0, 3e-3, 1.0
"""Goals: points from the simulation, or else points that stay unaccounted for; seconds of overhead
per action, in the median; points from 1/2 and from 1/4 utilisation."""
PARTS = ("difference", "transfer", "overhead", "knock-on", "rest")


class ScheduleCase(NamedTuple):
    """A schedule of the table for some devices and micro-batches, or why there is none."""

    name: str
    devices: int
    microbatches: int
    schedule: td.Schedule | None
    refused: str = ""


def cases(
    names: Sequence[str], devices: Sequence[int], microbatches: Sequence[int]
) -> Iterator[ScheduleCase]:
    """Every combination, with as few stages per device as make the schedule what it is.

    That are two for the looped ones, which take as many as one likes: with one, interleaved 1F1B
    is eager 1F1B under another name.

    >>> [(c.name, c.schedule.stages) for c in cases(["1f1b", "interleaved", "zb-v"], [2], [4])]
    [('1f1b', 2), ('interleaved', 4), ('zb-v', 4)]
    """
    for name in names:
        for p in devices:
            for m in microbatches:
                yield _case(name, p, m)


def _case(name: str, p: int, m: int) -> ScheduleCase:
    why, looped = "", "devices" in inspect.signature(td.schedules[name]).parameters
    for per_device in (2, 4) if looped else (1, 2, 4):
        for options in ({}, {"devices": p}):
            try:
                built = td.schedule(name, per_device * p, m, **options)
            except ScheduleError as error:
                if "has no option" not in str(error) and "needs 'devices'" not in str(error):
                    why = why or str(error)
            else:
                if built.devices == p:
                    return ScheduleCase(name, p, m, built)
    return ScheduleCase(name, p, m, None, why or f"not for {p} devices")


def measure(
    case: ScheduleCase, cluster: Cluster, engine: str, rounds: int = 1, forward: float = FORWARD
) -> dict[str, Any]:
    """What was found of ``case``: shares of device-time, points, seconds; the median round."""
    runs = [
        td.run_schedule(
            case.schedule, cluster=cluster, forward=forward, backward=2 * forward, engine=engine
        )
        for _ in range(rounds)
    ]
    ordered = sorted(runs, key=lambda run: run.timeline.bubble_fraction)
    run = ordered[len(ordered) // 2]
    measured, replayed, simulated = (
        100 * t.bubble_fraction for t in (run.timeline, run.replayed, run.simulated)
    )
    transfer = _share(run.timeline, run.timeline.exposed_transfer)
    overhead = _share(run.timeline, run.timeline.overhead)
    waits, again = run.timeline.waits, 100 * _with_delays(run, forward)
    return {
        "schedule": case.name,
        "devices": case.devices,
        "stages": case.schedule.stages,
        "microbatches": case.microbatches,
        "engine": engine,
        "rounds": rounds,
        "measured idle %": measured,
        "simulated idle %": simulated,
        "difference points": measured - simulated,
        "transfer points": transfer,
        "overhead points": overhead,
        "knock-on points": measured - replayed - transfer - overhead,
        "rest points": replayed - simulated,
        "simulated with delays %": again,
        "unexplained points": measured - again,
        "true idle %": _share(run.timeline, run.timeline.true_idle),
        "overhead per action": run.timeline.overhead_per_action,
        "overhead per action, 90 %": float(np.quantile(waits.overhead, 0.9)),
        "overheads": waits.overhead.round(6).tolist(),
        "clock error": run.clock_error,
        "latest action": run.late,
        "load": run.load.wanted,
        "cores of others": run.load.others,
    }


def _with_delays(run: PipelineRun, forward: float) -> float:
    """The idle share by simulation if each action waits for the mean overhead, each block is on
    its way for the mean of the blocks, and neither counts as work."""
    timeline, schedule = run.timeline, run.simulated.evidence.schedule
    late = float(timeline.waits.overhead.mean())
    ways = (timeline.end - timeline.start)[timeline.kind == TRANSFER]
    latency = float(ways.mean()) if len(ways) else 0.0
    F, B, half = forward + late, 2 * forward + late, forward + late
    again = td.simulate(schedule, F, B, latency, half, half, overlapped=3 * forward + late)
    return 1 - run.simulated.busy / (again.devices * again.makespan)


def _share(timeline: Timeline, seconds: float) -> float:
    return 100 * seconds / (timeline.devices * timeline.makespan or 1.0)


def _near(row: dict[str, Any]) -> bool:
    return abs(row["difference points"]) <= POINTS


def _accounted(row: dict[str, Any]) -> bool:
    """Whether transfer, overhead, and the waiting that they caused, are all of the difference."""
    return _near(row) or abs(row["rest points"]) <= ACCOUNTED


def _directly(row: dict[str, Any]) -> bool:
    """Whether transfer and overhead are, where they occurred."""
    return _near(row) or abs(row["knock-on points"] + row["rest points"]) <= ACCOUNTED


def _explained(row: dict[str, Any]) -> bool:
    """Whether the simulation with the mean overhead and the mean way says what was measured."""
    return _near(row) or abs(row["unexplained points"]) <= ACCOUNTED


def two_and_four(cluster: Cluster, engine: str) -> list[dict[str, Any]]:
    """Utilisation of 2 and of 4 workers that work one after the other; 1/p by arithmetic."""
    rows = []
    for p in (2, 4):
        run = td.run_schedule(
            td.schedule("naive", p, 2),
            cluster=cluster,
            engine=engine,
            forward=LONG,
            backward=2 * LONG,
        )
        used = 100 * run.timeline.utilisation
        rows.append(
            {
                "workers": p,
                "engine": engine,
                "utilisation %": used,
                "predicted %": 100 / p,
                "met": abs(used - 100 / p) <= UTILISATION,
            }
        )
    return rows


def main() -> int:
    """Print what was measured; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", nargs="+", default=list(td.schedules), metavar="NAME")
    parser.add_argument("--devices", nargs="+", type=int, default=[2, 4, 8], metavar="P")
    parser.add_argument("--microbatches", nargs="+", type=int, default=[1, 4, 8, 16], metavar="M")
    parser.add_argument("--engine", default="loop", choices=["loop", "tasks"])
    parser.add_argument("--forward", type=float, default=FORWARD, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each; the median counts")
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)  # the table is wide
    every = list(cases(args.schedules, args.devices, args.microbatches))
    wanted = [case for case in every if case.schedule is not None]
    rows: list[dict[str, Any]] = []
    warm: set[int] = set()

    def ask(case: ScheduleCase) -> dict[str, Any]:
        if case.devices not in warm:  # connections are made once
            measure(case, cluster, args.engine, 1, args.forward)
            warm.add(case.devices)
        return measure(case, cluster, args.engine, args.rounds, args.forward)

    with (
        resumed("idle", console.print) as known,
        td.start_cluster(workers=max(4, *args.devices), device="cpu", quiet=True) as cluster,
        Progress(console=console, transient=True) as progress,
    ):
        bar = progress.add_task("", total=len(wanted))
        for case in wanted:
            progress.update(bar, description=f"{case.name}, p={case.devices} m={case.microbatches}")
            known_as = {"case": case[:3], "engine": args.engine, "forward": args.forward}
            rows.append(known.once(partial(ask, case), rounds=args.rounds, **known_as))
            progress.advance(bar)
        pair = known.once(partial(two_and_four, cluster, args.engine), pair=args.engine)
    console.print(_table(rows, args.forward))
    console.print(_refused(every))
    goals = _goals(rows, pair)
    console.print(goals_table(goals))
    if args.record:
        overheads = [o for row in rows for o in row.pop("overheads")]
        facts = {
            "arguments": vars(args),
            "goals": goals,
            "overhead per action, all": {
                str(q): float(np.quantile(overheads, q / 100)) for q in (10, 50, 90, 99)
            },
            "two and four workers": pair,
            "refused": [
                (c.name, c.devices, c.microbatches, c.refused) for c in every if c.schedule is None
            ],
            "rows": rows,
        }
        record(Path(args.record), "tiledask.lab.bench.idle", facts)
    return 0


def _goals(rows: list[dict[str, Any]], pair: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    near, directly, explained, accounted = (
        sum(map(f, rows)) for f in (_near, _directly, _explained, _accounted)
    )
    overhead = float(np.median([o for row in rows for o in row["overheads"]]))
    return [
        *(
            {"goal": what, "reached": f"{met} of {len(rows)}", "met": met == len(rows)}
            for what, met in (
                (f"idle within {POINTS:g} points of simulation", near),
                (f"... or all but {ACCOUNTED:g} point is transfer and overhead", directly),
                (f"... or simulated to {ACCOUNTED:g} point with their means", explained),
                (f"... or all but {ACCOUNTED:g} point is those and their knock-on", accounted),
            )
        ),
        {
            "goal": f"overhead per action at most {format_seconds(OVERHEAD)}, median",
            "reached": format_seconds(overhead),
            "met": overhead <= OVERHEAD,
        },
        *(
            {
                "goal": f"{row['workers']} workers one after the other: {row['predicted %']:g} % "
                f"used, within {UTILISATION:g} point",
                "reached": f"{row['utilisation %']:.2f} %",
                "met": row["met"],
            }
            for row in pair
        ),
    ]


def _table(rows: list[dict[str, Any]], forward: float) -> Table:
    table = Table(
        title=f"idle share of device-time in %, actions of {format_seconds(forward)} and "
        f"{format_seconds(2 * forward)}, engine {rows[0]['engine'] if rows else ''}",
        caption="difference = transfer + overhead + knock-on + rest, in points; unexplained = "
        "measured - simulated with the mean overhead and the mean way of a block",
    )
    columns = {
        "schedule": "left",
        "p": "right",
        "m": "right",
        "measured": "right",
        "simulated": "right",
        **dict.fromkeys((*PARTS, "unexplained"), "right"),
        "overhead\nper action": "right",
        "": "left",
    }
    for name, side in columns.items():
        table.add_column(name, justify=side, no_wrap=True, min_width=2)
    for row in rows:
        tests = {
            "near": _near,
            "directly": _directly,
            "explained": _explained,
            "accounted": _accounted,
        }
        table.add_row(
            row["schedule"],
            str(row["devices"]),
            str(row["microbatches"]),
            f"{row['measured idle %']:.1f}",
            f"{row['simulated idle %']:.1f}",
            *(f"{row[f'{part} points']:+.2f}" for part in (*PARTS, "unexplained")),
            format_seconds(row["overhead per action"]),
            next((word for word, holds in tests.items() if holds(row)), "✗"),
        )
    return table


def _refused(every: Sequence[ScheduleCase]) -> str:
    """The combinations that were skipped, one line for each schedule and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for case in every:
        if case.schedule is None:
            where = f"p={case.devices} m={case.microbatches}"
            reasons.setdefault((case.name, case.refused), []).append(where)
    lines = [f"{name} {', '.join(where)}: {why}" for (name, why), where in reasons.items()]
    return "\n".join(["refused by their schedule:", *lines] if lines else ["none refused"])


if __name__ == "__main__":
    raise SystemExit(main())
