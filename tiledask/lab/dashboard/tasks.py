"""All other work as an Activity: the newest tasks, per worker, coloured by their names."""

from collections import Counter
from typing import Any

import numpy as np

from tiledask.lab.dashboard.activity import HEIGHT, Activity, RowBox, interval
from tiledask.lab.dashboard.pipelines import is_done, last_sign, of_run
from tiledask.lab.dashboard.products import ReportedProduct, of_product
from tiledask.lab.dashboard.recorder import Snapshot, Task, prefix
from tiledask.lab.dashboard.training_overview import Overview, Training, of_training
from tiledask.lab.plots.style import colour_named, ink_on
from tiledask.plan.pipelines.timeline import union_length
from tiledask.plan.units import format_seconds

__all__ = ["nothing", "of_tasks", "shown"]

_WINDOW = 60.0
"""Seconds that are drawn: Dask's Task Stream has the rest."""
_AFTER = 1.0, 0.3  # seconds after a run's last sign of life in which tasks are its own; if done


def shown(record: Snapshot) -> Activity | Overview:
    """The newest of all that was recorded: the last run, training or product, or other tasks if
    they came later."""
    lives = _lives(record)
    if not lives:
        return of_tasks(record)
    _, last, _, newest = max(lives, key=lambda life: life[1])
    later = any(t["stop"] > last for task in _not_of_runs(record) for t in task.times)
    # ranks of a training may be slow to report: they are no other work
    own = "rank_function" if isinstance(newest, Training) and not newest.is_over else ""
    running = (r for r in record.running if prefix(r.key) != own)
    if later or any(r.since > last + _AFTER[0] for r in running):
        return of_tasks(record)
    if isinstance(newest, Training):
        return of_training(newest, record.now)
    if isinstance(newest, ReportedProduct):
        return of_product(newest, record.now)
    return of_run(newest, record)


def _lives(record: Snapshot) -> list[tuple[float, float, bool, Any]]:
    """(announced, last heard of, whether it is over, it) of all runs, trainings and products."""
    lives = [(run.announced, last_sign(run), is_done(run), run) for run in record.runs]
    others = *record.trainings, *record.products
    return lives + [(one.announced, one.last, one.is_over, one) for one in others]


def of_tasks(record: Snapshot) -> Activity:
    """The Activity of the tasks of the last minute of work, per worker.

    Tasks of runs and products are left out where there are others. A row's busy time is the
    union of its compute intervals, so that two tasks at once on a worker count once.
    """
    spans = [
        (task.worker, prefix(task.key), t["start"], t["stop"])
        for task in _not_of_runs(record) or record.tasks
        for t in task.times
        if t["action"] == "compute"
    ]
    spans += [(r.worker, prefix(r.key), r.since, record.now) for r in record.running]
    last = max((end for *_, end in spans), default=0.0)
    spans = [span for span in spans if span[3] > last - _WINDOW]
    if not spans:
        return nothing(record)
    rows, place = _rows(record, {worker for worker, *_ in spans} | record.present)
    first = min(start for *_, start, _ in spans)
    makespan, busy = last - first, [0.0] * len(rows)
    for row in range(len(rows)):
        mine = sorted((start, end) for worker, _, start, end in spans if place[worker] == row)
        busy[row] = union_length(np.array(mine)) if mine else 0.0
    idle = [1 - each / makespan if makespan else 0.0 for each in busy]
    facts = [
        ("workers", str(len(rows))),
        ("tasks", f"{len(spans):,}"),
        ("makespan", format_seconds(makespan)),
        ("idle measured", f"{100 * sum(idle) / len(idle):.1f} %"),
    ]
    if running := Counter(prefix(r.key) for r in record.running):
        facts.append(("running now", ", ".join(f"{n} {name}" for name, n in running.items())))
    boxes = [_box(place[w], name, start - first, end - first) for w, name, start, end in spans]
    return Activity(
        "Tasks per worker",
        tuple(facts),
        tuple(rows),
        tuple(boxes),
        (),
        makespan,
        tuple(idle),
        None,
        tuple((colour_named(name), name) for name in dict.fromkeys(box.text for box in boxes)),
    )


def _box(row: int, name: str, start: float, end: float) -> RowBox:
    colour, words = colour_named(name), f"{name}: {interval(start, end)}"
    return RowBox(row, HEIGHT, start, end, name, colour, ink_on(colour), words)


def nothing(record: Snapshot) -> Activity:
    """The Activity of a cluster that has done nothing yet."""
    rows, _ = _rows(record, set(record.present))
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


def _rows(record: Snapshot, addresses: set[str]) -> tuple[list[str], dict[str, int]]:
    """(labels, address -> its row): a worker that came back under its name keeps its row."""
    names = {address: str(record.names.get(address, address)) for address in addresses}
    order = sorted({*names.values()}, key=_by_number)
    short = [name.rpartition("://")[2] for name in order]
    labels = [f"worker {name}" if len(name) <= 6 else name[-22:] for name in short]
    return labels, {address: order.index(name) for address, name in names.items()}


def _by_number(name: str) -> tuple[str, int]:
    words = name.rstrip("0123456789")
    return words, int(name[len(words) :] or 0)
