"""One batch through stages that stand on workers: its order, its run, and who waits meanwhile.

worker 1   [B1↑] .    .    .    .   [B1↓]      one works,
worker 2    .   [B2↑] .    .   [B2↓] .         the others wait
worker 3    .    .   [B3↑][B3↓] .    .
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import tiledask as td
from tiledask.lab.table import Claim
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.pipelines.timeline import COMPUTE, Timeline

if TYPE_CHECKING:
    from tiledask.distributed.cluster.cluster import Cluster
    from tiledask.distributed.pipelines.run import PipelineRun

__all__ = ["NEARLY", "added", "executed", "flow", "idle_rows", "meanwhile", "one_batch"]

ENOUGH = 0.9
"""Of the utilisation that it should have: a run that has less is repeated."""
NEARLY = ("ratio", 0.75, 1.05)
"""A measured utilisation over that of the arithmetic: what else a machine does adds idle time and
takes none away. Twice as many workers, or one at a time instead of all, are far outside."""
ARROWS = {"F": "↑", "B": "↓"}


def one_batch(place: Sequence[int], backward: bool = True) -> td.Schedule:
    """The Schedule of one batch through stages of which ``place`` says the worker, from 0: up
    through all of them and, with ``backward``, down again.

    >>> print(one_batch([0, 0, 1]).to_text())
    0F0,1F0,1B0,0B0
    2F0,2B0
    """
    up = [Action("F", stage, 0) for stage in range(len(place))]
    down = [Action("B", stage, 0) for stage in reversed(range(len(place)))] * backward
    orders = [[a for a in up + down if place[a.stage] == worker] for worker in sorted({*place})]
    return td.Schedule.of(orders, place, "one batch")


def executed(cluster: "Cluster", schedule: td.Schedule, **times: Any) -> "PipelineRun":
    """The run of ``schedule`` whose actions keep their workers for these ``times``: of up to
    three, the one that other work on the machine disturbs least."""
    run = partial(td.run_schedule, schedule, cluster=cluster, engine="loop", **times)
    return _least_idle(run, 1 - ENOUGH * td.simulate(schedule, **times).utilisation)


def _least_idle(run: Callable[[], "PipelineRun"], enough: float) -> "PipelineRun":
    """The least idle of up to three runs; no more than it takes to idle ``enough`` or less."""
    runs = [run()]
    while runs[-1].timeline.bubble_fraction > enough and len(runs) < 3:
        runs.append(run())
    return min(runs, key=lambda each: each.timeline.bubble_fraction)


def flow(timeline: Timeline) -> str:
    """The blocks in the order in which they began: "B1↑ B2↑ B2↓ B1↓"."""
    spans = [i for i in np.argsort(timeline.start, kind="stable") if timeline.kind[i] in COMPUTE]
    return " ".join(f"B{timeline.stage[i] + 1}{ARROWS[str(timeline.kind[i])]}" for i in spans)


def meanwhile(timeline: Timeline, worker: int, kind: str = "F") -> dict[int, str]:
    """What each other worker does in the middle of all that ``worker`` does of this ``kind``:
    "idle", or its actions; workers from 0.

    >>> meanwhile(td.simulate(one_batch([0, 1, 2])), 1)
    {0: 'idle', 2: 'idle'}
    """
    mine = (timeline.device == worker) & (timeline.kind == kind)
    moments = (timeline.start[mine] + timeline.end[mine]) / 2
    return {
        other: ", ".join(sorted({timeline.state(other, moment) for moment in moments}))
        for other in range(timeline.devices)
        if other != worker
    }


def added(numbers: Iterable[float]) -> str:
    """A sum as it is written: "0.3 + 0.1 = 0.4"."""
    terms = list(numbers)
    return f"{' + '.join(f'{n:g}' for n in terms)} = {sum(terms):g}"


def idle_rows(
    busy: Sequence[float], makespan: float, simulated: Timeline, measured: Timeline, name: str = ""
) -> list[Claim]:
    """Claims of makespan, utilisation, idle time of all workers and of each, where they are to be
    ``busy`` so many seconds of ``makespan``, one at a time."""
    start, p = f"{name}: " * bool(name), len(busy)
    work, both = sum(busy), (simulated, measured)
    each = zip(busy, simulated.idle_per_device, measured.idle_per_device, strict=True)
    return [
        Claim(f"{start}time of the batch", makespan, *(t.makespan for t in both), unit="seconds"),
        Claim(
            f"{start}utilisation",
            work / (p * makespan),
            *(t.utilisation for t in both),
            unit="percent",
            rule=NEARLY,
        ),
        Claim(
            f"{start}idle time of all",
            p * makespan - work,
            *(t.idle for t in both),
            unit="seconds",
        ),
        Claim(f"{start}workers busy beside another", 0, *map(_beside, both), rule="equal"),
        *(
            Claim(f"{start}worker {i} idles", makespan - b, s, m, "seconds", note=f"busy {b:g} s")
            for i, (b, s, m) in enumerate(each, 1)
        ),
    ]


def _beside(timeline: Timeline) -> int:
    """How many workers compute in the middle of what another does."""
    states = [meanwhile(timeline, w, k) for w in range(timeline.devices) for k in ARROWS]
    return sum(state not in ("idle", "") for each in states for state in each.values())
