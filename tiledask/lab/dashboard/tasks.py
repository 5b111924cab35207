"""All other work: the tasks of the last minute, per worker. Dask's Task Stream has the rest."""

from collections.abc import Iterable

from dask.utils import key_split

from tiledask.lab.dashboard.recorder import Task
from tiledask.lab.dashboard.views import View, gaps, over_time
from tiledask.lab.plots.primitives import span
from tiledask.lab.plots.style import colour_named
from tiledask.plan.units import format_seconds

__all__ = ["tasks_view"]

_WINDOW = 60.0
_NOTHING = "Nothing has run yet: what td.run_schedule, td.matmul, td.train or Dask do is drawn here"


def tasks_view(tasks: Iterable[Task], workers: Iterable[str]) -> View:
    """Tasks in the rows of their workers. Two at once on a worker count once as busy."""
    spans = [
        (task.worker, str(key_split(task.key)), t["start"], t["stop"])
        for task in tasks
        for t in task.times
        if t["action"] == "compute"
    ]
    last = max((stop for *_, stop in spans), default=0.0)
    spans = [each for each in spans if each[3] > last - _WINDOW]
    first = min((start for _, _, start, _ in spans), default=0.0)
    names = sorted({*workers, *(each[0] for each in spans)}, key=lambda name: (len(name), name))
    boxes = [
        span(names.index(worker), start - first, stop - first, colour_named(name), name, name)
        for worker, name, start, stop in spans
    ]
    lanes = [f"worker {name.rpartition('://')[2][-22:]}" for name in names]
    idle = gaps(boxes, len(names), last - first)
    panels, shares, legend = over_time(lanes, [*idle, *boxes], last - first)
    facts = {"workers": str(len(names)), "tasks": f"{len(spans):,}"}
    facts |= {"makespan": format_seconds(last - first)} | shares if spans else {}
    return View("Tasks per worker" if spans else _NOTHING, facts, panels, legend)
