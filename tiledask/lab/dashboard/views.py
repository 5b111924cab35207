"""What is drawn of a run, and of tasks: a View each, boxes in lanes beside their prediction.

run_schedule, td.matmul, td.train  --- announced, report, ended --->  ReportedRun  -->  View
a worker                           --- finishes a task ------------>  Task

time    device 0   [F0][F1]....[B0]      idle    33.3 %  |//..x|     left, right: bars by lane
        device 1   ////[F0][B0]....              25.0 %  |//.| :     (: where it is predicted)

pipeline   the boxes of the matplotlib Gantt
product    panels
training   the loss; seconds, tokens, barriers and bytes of a step
tasks      those of each worker, by name
"""

import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dask.utils import key_split

from tiledask.lab.plots.primitives import HEIGHT, Box, span
from tiledask.lab.plots.style import PALE, RED, colour_named
from tiledask.lab.plots.timelines import KINDS, boxes_of
from tiledask.plan.pipelines.timeline import CAUSES, TRANSFER, Span, Timeline
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["Chart", "ReportedRun", "Task", "View", "title_of", "view_of_run", "view_of_tasks"]

KEPT_SPANS = 4_000
_SILENT = 30.0
"""Seconds without a report after which a run may have ended."""

GONE = "a worker ended, and another began"
"""The key of the time between."""


class Task(NamedTuple):
    """What a worker computed, well or not."""

    worker: str
    """Name: one that comes back has another address."""
    key: Any
    start: float
    stop: float


@dataclass
class ReportedRun:
    """A pipeline, a product or a training, as far as it has reported."""

    id: str
    kind: str
    lanes: list[str]
    facts: dict[str, str]
    predicted: dict[str, Any]
    begin: float
    """Seconds since the epoch, by the scheduler's clock."""
    spans: deque[Any] = field(default_factory=lambda: deque(maxlen=KEPT_SPANS))
    """The last rows, each beginning with its lane."""
    counted: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By lane."""
    state: str = "running"
    last: float = 0.0
    """When it was heard of."""

    def on_event(self, event: Mapping[str, Any], now: float) -> None:
        """Take in what ``event`` reports."""
        self.spans.extend(event.get("spans", ()))
        for lane, numbers in event.get("counted", ()):
            self.counted.setdefault(lane, {}).update(numbers)
        self.state, self.last = event.get("state", self.state), now

    def is_silent(self, now: float) -> bool:
        """Whether it seems to have ended, and has not said so."""
        return self.state == "running" and now - self.last > _SILENT


# -- a view ----------------------------------------------------------------------------------------

IDLE = "idle"
"""How the gid of idle time begins."""
_WINDOW = 60.0
"""Seconds of tasks that are drawn; Dask's Task Stream has the rest."""
_PAUSE = 2.0
"""Seconds in which nothing runs, after which the drawing begins anew."""


class Chart(NamedTuple):
    """One figure of boxes in lanes. A box's ``gid`` says in words what it is."""

    title: str
    label: str
    unit: str
    """Of its numbers: "s" or "%"."""
    lanes: Sequence[str]
    boxes: Sequence[Box]
    marks: Sequence[float] = ()
    """Where each lane is predicted to end."""


@dataclass
class View:
    """What is drawn of a run or of tasks."""

    title: str
    facts: dict[str, str] = field(default_factory=dict)
    charts: dict[str, Chart] = field(default_factory=dict)
    """By place: time and idle."""
    legend: list[tuple[str, Box]] = field(default_factory=list)
    """(what it means, how it looks)."""
    number: str = ""
    """What the number in a box is."""
    loss: tuple[Sequence[int], Sequence[float], float | None] = ((), (), None)
    """Steps, the loss of each, and the best there is."""

    def draw_time(
        self,
        lanes: Sequence[str],
        boxes: Sequence[Box],
        until: float,
        predicted: Sequence[float] | None = None,
        so_far: str = "",
    ) -> None:
        """Add who computes when, and how long each lane is idle: charts, facts and the legend.

        ``boxes`` are in seconds, idle time up to ``until`` among them; ``predicted``: idle shares.
        """
        means: dict[str, Box] = {}
        shares, causes = defaultdict[tuple[int, str], float](float), defaultdict[str, float](float)
        for box in boxes:
            means.setdefault(box.gid, box)
            if box.gid.startswith(IDLE):
                shares[_lane_of(box), box.gid] += 100 * box.at[2] / until
        bars, percent = [], [0.0] * len(lanes)
        for (lane, gid), share in sorted(shares.items()):
            words, at = f"{gid}: {share:.1f} % of the time", (percent[lane], percent[lane] + share)
            bars.append(span(lane, *at, means[gid].colour, gid=words, look=means[gid].look))
            percent[lane] += share
            causes[gid] += share / len(lanes)
        names = [f"{share:.1f} %" if until else "" for share in percent]
        marks = [100 * share for share in predicted or ()]
        drawn = [*boxes] or [span(lane, 0, 1, PALE, gid=IDLE) for lane in range(len(lanes))]
        self.charts["time"] = Chart("Who computes when", "time since the start", "s", lanes, drawn)
        self.charts["idle"] = Chart("Idle share", "idle / makespan", "%", names, bars, marks)
        self.legend += [(gid, box) for gid, box in means.items() if gid not in causes]
        self.legend += [(f"{gid}: {share:.1f} %", means[gid]) for gid, share in causes.items()]
        if until:
            self.facts[f"idle measured{so_far}"] = f"{sum(causes.values()):.1f} %"
        if marks:
            self.facts["idle predicted"] = f"{sum(marks) / len(marks):.1f} %"


def _lane_of(box: Box) -> int:
    """The lane that a box is in; in the lower or upper part, too."""
    return round(box.at[1] + box.at[3] / 2)


def _gaps(busy: Iterable[Box], lanes: int, until: float) -> list[Box]:
    """Idle time whose cause nobody knows: where a lane has no box up to ``until``."""
    found, reach = list[Box](), [0.0] * lanes
    ends = [span(lane, until, until, PALE) for lane in range(lanes)]
    for box in sorted([*busy, *ends], key=lambda box: box.at):
        lane, start = _lane_of(box), min(box.at[0], until)
        if start - reach[lane] > 1e-9 * until:
            found.append(span(lane, reach[lane], start, PALE, gid=IDLE))
        reach[lane] = max(reach[lane], box.at[0] + box.at[2])
    return found


# -- runs ----------------------------------------------------------------------------------------


def title_of(run: ReportedRun, now: float) -> str:
    """What it is, when it began and how it stands."""
    begun = time.strftime("%H:%M:%S", time.localtime(run.begin))
    silent = f"nothing heard for {format_seconds(now - run.last)}"
    return f"{run.kind.capitalize()} of {begun}, {silent if run.is_silent(now) else run.state}"


def view_of_run(run: ReportedRun, now: float) -> View:
    """A run, as far as it has reported."""
    view = View(title_of(run, now), dict(run.facts))
    kinds = {"pipeline": _draw_pipeline, "product": _draw_product, "training": _draw_training}
    kinds[run.kind](view, run, "" if run.state == "done" else " so far")
    return view


# -- a pipeline ------------------------------------------------------------------------------------


def _draw_pipeline(view: View, run: ReportedRun, so_far: str) -> None:
    spans, devices = [tuple(span) for span in run.spans], len(run.lanes)
    # an action that ran again, after its worker died, counts as it ran last
    done: dict[Any, Span] = {span[1:4]: span for span in spans if span[1] != TRANSFER}
    moved = [span for span in spans if span[1] == TRANSFER]
    timeline = Timeline.of(devices, [*done.values(), *moved], "measured")
    last, drawn = [0.0] * devices, boxes_of(timeline) if done else []
    for box in drawn:
        if box.words:
            last[_lane_of(box)] = max(last[_lane_of(box)], box.at[0] + box.at[2])
    # what a device waits for that has done all so far nobody knows yet
    drawn = [_in_words(b) for b in drawn if not so_far or b.words or b.at[0] < last[_lane_of(b)]]
    known = [box for box in drawn if box.words or box.gid.startswith(IDLE)]
    drawn += _gaps(known, devices, timeline.makespan)
    view.facts["actions done"] = f"{len(done)} of {run.predicted['actions']}"
    view.facts[f"makespan{so_far}"] = format_seconds(timeline.makespan)
    view.draw_time(run.lanes, drawn, timeline.makespan, run.predicted.get("idle"), so_far)
    view.number = "the micro-batch"


def _in_words(box: Box) -> Box:
    if box.gid in CAUSES:
        return box._replace(gid=f"{IDLE}, {CAUSES[box.gid]}")
    if box.gid == TRANSFER:
        return box._replace(gid="transfer to the device")
    later = "" if box.gid[1:] == "0" else ", later stage of the device"
    return box._replace(gid=KINDS[box.gid[0]][0] + later)


# -- a product -------------------------------------------------------------------------------------

_WORK = {
    "multiply": "multiplying a panel",
    "sum": "adding partial sums",
    "wait": "waiting for a panel",
    "read": "below: reading from another worker",
}
"""Kind of span -> what it is; the colours are those of `tiledask.lab.plots.slots`."""


def _draw_product(view: View, run: ReportedRun, so_far: str) -> None:
    ranks, predicted, facts = range(len(run.lanes)), run.predicted, view.facts
    zero = min([run.begin, *(start for *_, start, _ in run.spans)])
    last, drawn, busy = [0.0] * len(ranks), [], []
    for rank, kind, panel, start, stop in run.spans:
        number, at = str(panel) if kind == "multiply" else "", (start - zero, stop - zero)
        row, high = (rank + HEIGHT / 2 + 0.07, 0.08) if kind == "read" else (rank, HEIGHT)
        drawn.append(span(row, *at, colour_named(kind), number, _WORK[kind], height=high))
        busy += drawn[-1:] if kind in ("multiply", "sum") else []
        last[rank] = max(last[rank], at[1])
    until = min(last) if so_far else max(last)  # up to here all ranks have reported what they did
    whole = predicted["seconds"]
    idle = [max(0.0, 1 - each / whole) for each in predicted["busy"] or ()] if whole else None
    done = sum(run.counted.get(rank, {}).get("done", 0) for rank in ranks)
    facts["panels done"] = f"{done} of {sum(predicted['panels'])}"
    facts[f"time{so_far}"] = format_seconds(max(last))
    if whole:
        facts["time predicted"] = format_seconds(whole)
    view.draw_time(run.lanes, [*_gaps(busy, len(ranks), until), *drawn], until, idle, so_far)
    view.number = "the panel"


# -- a training ------------------------------------------------------------------------------------

_RECENT = 10
"""Steps over which seconds and tokens are taken."""


def _draw_training(view: View, run: ReportedRun, so_far: str) -> None:
    """Ranks report each of their steps; of those that all have reported the loss is drawn."""
    said, counted, facts = run.predicted, run.counted.values(), view.facts
    rows: dict[int, dict[int, Any]] = {}
    for rank, _, number, *row in run.spans:
        rows.setdefault(number, {})[rank] = row  # of a step that was done again, the last
    rows = {number: rows[number] for number in sorted(rows) if len(rows[number]) == len(run.lanes)}
    whole = {number: [*zip(*mine.values(), strict=True)] for number, mine in rows.items()}
    view.loss = [*whole], [sum(losses) for losses, *_ in whole.values()], said["floor"]
    facts["steps done"] = f"{max(whole, default=-1) + 1} of {said['steps']}"
    if whole:
        ends = [min(mine["begin"] for mine in counted), *(max(row[-1]) for row in whole.values())]
        ends = ends[-_RECENT - 1 :]
        seconds = (ends[-1] - ends[0]) / (len(ends) - 1) or 1.0
        _, sent, _, barriers, _ = whole[max(whole)]
        facts |= {
            "loss": f"{view.loss[1][-1]:.4f}",
            "time per step": format_seconds(seconds),
            "tokens/s": f"{said['tokens'] / seconds:,.0f}",
            "barriers": f"{max(barriers)} a step",
            "bytes": f"{format_bytes(sum(sent))} a step",
        }


# -- tasks -----------------------------------------------------------------------------------------


def view_of_tasks(tasks: Collection[Task], workers: Iterable[str]) -> View:
    """Tasks in the rows of their workers. Two at once on a worker count once as busy."""
    last = max((task.stop for task in tasks), default=0.0)
    computed = [task for task in tasks if task.stop > last - _WINDOW]
    first, reach = 0.0, float("-inf")
    for task in sorted(computed, key=lambda task: task.start):
        if task.start > reach + _PAUSE:
            first = task.start
        reach = max(reach, task.stop)
    computed = [task for task in computed if task.start >= first]
    workers = sorted({*workers, *(t.worker for t in computed)}, key=lambda w: (len(w), w))
    boxes, gone = list[Box](), list[Box]()
    for task in computed:
        row, at = workers.index(task.worker), (task.start - first, task.stop - first)
        name = str(key_split(task.key))
        if task.key == GONE:
            gone.append(span(row, *at, RED, gid=GONE))
        else:
            boxes.append(span(row, *at, colour_named(name), name, name))
    if not boxes:
        view = View("Nothing has run yet: the first tasks will be drawn here")
    else:
        facts = {"workers": str(len(workers)), "tasks": f"{len(boxes):,}"}
        view = View("Tasks per worker", facts | {"makespan": format_seconds(last - first)})
    lanes = [f"worker {name.rpartition('://')[2][-22:]}" for name in workers]
    drawn = [*_gaps([*boxes, *gone], len(lanes), last - first), *boxes, *gone]
    view.draw_time(lanes, drawn, last - first)
    return view
