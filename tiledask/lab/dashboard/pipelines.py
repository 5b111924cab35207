"""What is drawn of a pipeline's run: the boxes of the matplotlib Gantt."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tiledask.lab.dashboard.recorder import ReportedRun, Task
from tiledask.lab.dashboard.views import IDLE, View, facts_of, gaps, lane_of, over_time
from tiledask.lab.plots.primitives import Box
from tiledask.lab.plots.timelines import KINDS, boxes_of
from tiledask.plan.pipelines.causes import CAUSES
from tiledask.plan.pipelines.timeline import TRANSFER, Span, Timeline
from tiledask.plan.units import format_seconds

__all__ = ["pipeline_view"]


def pipeline_view(run: ReportedRun, now: float, tasks: Iterable[Task] = ()) -> View:
    """A pipeline's ``run``; while it goes on, what it has done so far. ``tasks``: for the transfers
    that Dask made."""
    spans, devices = [tuple(span) for span in run.spans], len(run.lanes)
    # an action that ran again, after its worker died, counts as it ran last
    done: dict[Any, Span] = {span[1:4]: span for span in spans if span[1] != TRANSFER}
    moved = [span for span in spans if span[1] == TRANSFER] + [*_by_dask(run, done, tasks)]
    timeline = Timeline.of(devices, [*done.values(), *moved], "measured")
    title, facts, so_far = facts_of(run, now)
    last, drawn = [0.0] * devices, boxes_of(timeline) if done else []
    for box in drawn:
        if box.words:
            last[lane_of(box)] = max(last[lane_of(box)], box.at[0] + box.at[2])
    # what a device waits for that has done all so far nobody knows yet
    drawn = [_in_words(b) for b in drawn if not so_far or b.words or b.at[0] < last[lane_of(b)]]
    known = [box for box in drawn if box.words or box.gid.startswith(IDLE)]
    drawn += gaps(known, devices, timeline.makespan)
    predicted = run.predicted.get("idle")
    charts, idle, legend = over_time(run.lanes, drawn, timeline.makespan, predicted, so_far)
    facts["actions done"] = f"{len(done)} of {run.predicted['actions']}"
    facts[f"makespan{so_far}"] = format_seconds(timeline.makespan)
    return View(title, facts | idle, charts, legend, "the micro-batch")


def _in_words(box: Box) -> Box:
    if box.gid in CAUSES:
        return box._replace(gid=f"{IDLE}, {CAUSES[box.gid]}")
    if box.gid == TRANSFER:
        return box._replace(gid="transfer to the device")
    later = "" if box.gid[1:] == "0" else ", later stage of the device"
    return box._replace(gid=KINDS[box.gid[0]][0] + later)


def _by_dask(run: ReportedRun, done: Mapping[Any, Span], tasks: Iterable[Task]) -> Iterator[Span]:
    """Dask's transfers to the run's devices, each for the action that its device does next."""
    device_of = {address: device for device, address in enumerate(run.workers)}
    turns: list[list[Span]] = [[] for _ in run.lanes]
    for span in sorted(done.values(), key=_begin):
        turns[span[0]].append(span)
    first = min(map(_begin, done.values()), default=float("inf"))
    for task in tasks:
        mine = turns[device_of[task.address]] if task.address in device_of else []
        for t in task.times:
            after = bisect_left(mine, t["stop"], key=_begin)
            if t["action"] == "transfer" and first <= t["start"] and after < len(mine):
                device, kind, stage, number, *_ = mine[after]
                made = stage + {"F": -1, "W": 0}.get(kind, 1)
                yield device, TRANSFER, made, number, t["start"], t["stop"]


def _begin(span: Span) -> float:
    return span[4]
