"""All other work as an Activity: the tasks since the last pause, per worker, by their names."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tiledask.lab.dashboard.activity import HEIGHT, Activity, Box, interval, transfer_box
from tiledask.lab.dashboard.pipelines import is_done, last_sign, of_run
from tiledask.lab.dashboard.products import ReportedProduct, of_product
from tiledask.lab.dashboard.recorder import ReportedRun, Snapshot, Task, prefix
from tiledask.lab.dashboard.training_overview import Overview, Training, of_training
from tiledask.lab.plots.style import INK, colour_named, ink_on
from tiledask.plan.pipelines.timeline import union_length
from tiledask.plan.units import format_seconds

__all__ = ["nothing", "of_tasks", "shown"]

_PAUSE = 2.0  # seconds without any task, after which tasks belong to something new
_AFTER = 1.0, 0.3  # seconds after a run's last sign of life in which tasks are its own; if done
_LEGEND = 12
"""Names of tasks in the legend, those that took longest."""


def shown(record: Snapshot) -> Activity | Overview:
    """The newest of all that was recorded: the last run, training or product, or other tasks if
    they came later."""
    drawn = _lives(record)
    if not drawn:
        return of_tasks(record)
    _, last, _, newest = max(drawn, key=lambda life: life[1])
    later = any(t["stop"] > last for task in _not_of_runs(record) for t in task.times)
    # beside the last, whatever is no rank of a training that may be slow to report
    beside = any(
        r.since > last + _AFTER[0]
        and not (
            isinstance(newest, Training) and not newest.is_over and prefix(r.key) == "rank_function"
        )
        for r in record.running
    )
    if later or beside:
        return of_tasks(record)
    if isinstance(newest, Training):
        return of_training(newest, record.now)
    if isinstance(newest, ReportedProduct):
        return of_product(newest, record.now)
    return of_run(newest, record)


def _lives(
    record: Snapshot,
) -> list[tuple[float, float, bool, ReportedRun | Training | ReportedProduct]]:
    """(announced, last heard of, whether it is over, it) of all runs, trainings and products."""
    lives = [(run.announced, last_sign(run), is_done(run), run) for run in record.runs]
    others = *record.trainings, *record.products
    return lives + [(one.announced, one.last, one.is_over, one) for one in others]


def of_tasks(record: Snapshot) -> Activity:
    """The Activity of the tasks since the last pause, per worker, coloured by their names.

    Tasks of runs and products are left out where there are others. A row's busy time is the
    union of its compute intervals, so that two tasks at once on a worker count once.
    """
    spans, moved = _since_the_pause(record, _not_of_runs(record) or record.tasks)
    if not spans:
        return nothing(record)
    rows, place = _rows(record, {worker for worker, *_ in spans} | record.present)
    first, last = min(s[2] for s in spans), max(s[3] for s in spans)
    spans = [(place[w], key, start - first, end - first) for w, key, start, end in spans]
    names, others = _longest(spans)
    makespan = last - first
    idle = [1 - busy / makespan if makespan else 0.0 for busy in _busy(spans, len(rows))]
    running = Counter(prefix(r.key) for r in record.running)
    facts = [
        ("workers", str(len(rows))),
        ("tasks since the last pause", f"{len(spans):,}"),
        ("makespan", format_seconds(makespan)),
        ("idle measured", f"{100 * sum(idle) / len(idle):.1f} %"),
    ]
    if running:
        facts.append(("running now", ", ".join(f"{n} {name}" for name, n in running.items())))
    legend = [(colour_named(name), name) for name in names]
    transfers = [
        transfer_box(place[w], start - first, end - first)
        for w, start, end in moved
        if w in place and first <= start <= end <= last
    ]
    if transfers:
        legend.append((INK, "transfer to the worker"))
    return Activity(
        "Tasks per worker",
        tuple(facts),
        tuple(rows),
        tuple(_task_boxes(spans)),
        tuple(transfers),
        makespan,
        tuple(idle),
        None,
        tuple(legend),
        f"The legend has the {len(names)} names that took longest; point at a box of the "
        f"{others} others."
        if others
        else "",
    )


def nothing(record: Snapshot) -> Activity:
    """The Activity of a cluster that has done nothing yet."""
    rows, _ = _rows(record, record.present)
    return Activity(
        "Nothing has run yet",
        (("workers", str(len(rows))),),
        tuple(rows),
        (),
        (),
        0.0,
        tuple(0.0 for _ in rows),
        None,
        (),
        "Run a pipeline with td.run_schedule(...), a product with td.matmul(...), or any Dask "
        "work: it is drawn here while it runs.",
    )


def _not_of_runs(record: Snapshot) -> list[Task]:
    """The tasks that ran outside of all runs, trainings and products."""
    lives = [(first, last + _AFTER[done]) for first, last, done, _ in _lives(record)]

    def free(task: Task) -> bool:
        begun, ended = min(t["start"] for t in task.times), max(t["stop"] for t in task.times)
        return not any(begun <= last and first <= ended for first, last in lives)

    return [task for task in record.tasks if free(task)]


def _since_the_pause(record: Snapshot, tasks: Sequence[Task]) -> tuple[list, list]:
    """(computations, transfers) since no worker computed for _PAUSE seconds.

    Computations are (worker, key, start, end), transfers (worker, start, end).
    """
    computed = list(_in_turn(tasks))
    computed += [(r.worker, r.key, min(r.since, record.now), record.now) for r in record.running]
    if not computed:
        return [], []
    computed.sort(key=lambda span: span[2])
    reach = np.maximum.accumulate([end for *_, end in computed])
    starts = np.array([start for *_, start, _ in computed])
    pauses = np.flatnonzero(starts[1:] - reach[:-1] > _PAUSE)
    kept = computed[int(pauses[-1]) + 1 if len(pauses) else 0 :]
    moved = [
        (task.worker, t["start"], t["stop"])
        for task in tasks
        for t in task.times
        if t["action"] == "transfer"
    ]
    return kept, moved


def _in_turn(tasks: Sequence[Task]) -> Iterator[tuple]:
    """The computations of ``tasks``; those of one thread one after the other, as they ran.

    Dask corrects a worker's clock at each heartbeat, by what that one says. So a task may seem to
    begin before the one before it in its thread had ended, by up to the error of both corrections;
    then it begins where that one ends. By more than that they did run at once: coroutines.
    """
    error: dict[str, float] = {}
    for task in tasks:
        error[task.worker] = max(error.get(task.worker, 0.0), task.error)
    computed = [
        (task.worker, task.thread, t["start"], t["stop"], task.key)
        for task in tasks
        for t in task.times
        if t["action"] == "compute"
    ]
    until: dict[tuple, float] = {}
    for worker, thread, start, stop, key in sorted(computed, key=lambda c: c[2:4]):
        before = until.get((worker, thread), -math.inf)
        if start < before <= start + 2 * error[worker]:
            start, stop = before, max(before, stop)
        until[worker, thread] = max(before, stop)
        yield worker, key, start, stop


def _busy(spans: list[tuple], rows: int) -> list[float]:
    per_row: list[list] = [[] for _ in range(rows)]
    for row, _, start, end in spans:
        per_row[row].append((start, end))
    return [union_length(np.array(sorted(i))) if i else 0.0 for i in per_row]


# -- rows and boxes ------------------------------------------------------------------------------


def _rows(record: Snapshot, addresses: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """(labels, address -> its row): a worker that came back under its name keeps its row."""
    names = {address: record.names.get(address, address) for address in addresses}
    order = sorted(set(names.values()), key=_by_number)
    row = {name: r for r, name in enumerate(order)}
    short = [str(name).rpartition("://")[2] for name in order]
    labels = [f"worker {name}" if len(name) <= 6 else name[-22:] for name in short]
    return labels, {address: row[name] for address, name in names.items()}


def _by_number(name: Any) -> tuple:
    number = re.fullmatch(r"(.*?)(\d*)", str(name))
    return number[1], int(number[2] or 0)


def _longest(spans: list[tuple]) -> tuple[list[str], int]:
    """(the names of the tasks that took longest, in the order of the first task; how many others
    there are)."""
    seconds: Counter = Counter()
    for _, key, start, end in sorted(spans, key=lambda s: s[2]):
        seconds[prefix(key)] += end - start
    longest = {name for name, _ in seconds.most_common(_LEGEND)}
    return [name for name in seconds if name in longest], len(seconds) - len(longest)


def _task_boxes(spans: list[tuple]) -> Iterator[Box]:
    """A box per task; those that overlap on a worker share its row's height."""
    per_row: dict[int, list[tuple]] = {}
    for row, key, start, end in spans:
        per_row.setdefault(row, []).append((start, end, key))
    for row, tasks in per_row.items():
        for group in _overlapping(sorted(tasks, key=lambda t: t[:2])):
            lanes: list[float] = []  # when each becomes free
            placed = []
            for start, end, key in group:
                lane = next((i for i, until in enumerate(lanes) if until <= start), len(lanes))
                lanes[lane : lane + 1] = [end]
                placed.append((lane, key, start, end))
            for spot in placed:
                yield _task_box(row, *spot, len(lanes))


def _overlapping(tasks: list[tuple]) -> Iterator[list[tuple]]:
    """``tasks``, ordered by start, in groups between which nothing runs."""
    group: list[tuple] = []
    reach = -math.inf
    for task in tasks:
        if task[0] >= reach and group:
            yield group
            group = []
        group.append(task)
        reach = max(reach, task[1])
    if group:
        yield group


def _task_box(row: int, lane: int, key: Any, start: float, end: float, lanes: int) -> Box:
    name, height = prefix(key), HEIGHT / lanes
    colour = colour_named(name)
    middle = row - HEIGHT / 2 + height * (lane + 0.5)
    words = f"{name}: {interval(start, end)}"
    return Box(middle, height, start, end, name, colour, ink_on(colour), words)
