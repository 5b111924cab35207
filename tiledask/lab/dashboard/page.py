"""The page in Dask's dashboard: tiledask in its bar, individual-tiledask in JupyterLab's panel.

It shows the newest run, or all tasks by worker where those are newer.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from time import perf_counter, thread_time, time
from typing import TYPE_CHECKING, Any

from dask.utils import key_split
from distributed.utils import log_errors

from tiledask.distributed.cluster.cluster import PAGE
from tiledask.lab.dashboard.pipelines import pipeline_view
from tiledask.lab.dashboard.products import product_view
from tiledask.lab.dashboard.recorder import Collector, Task
from tiledask.lab.dashboard.trainings import training_view
from tiledask.lab.dashboard.views import View, facts_of, gaps, over_time
from tiledask.lab.plots.primitives import span
from tiledask.lab.plots.style import colour_named
from tiledask.plan.units import format_seconds

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed import Scheduler

__all__ = ["every_view", "put_into", "view_of"]

_BARE, _FRAMED = "individual-tiledask", "tiledask"
_EVERY = 250
"""Milliseconds between two looks at the record."""
_SHARE = 0.02
"""Of a core that one open page may take for drawing; sending takes about as much. Seconds in which
the scheduler waits for a core are not drawing, or nothing would be drawn while all cores compute.
"""
_NEWEST, _TASKS = "newest", "tasks"
_NOTHING = "Nothing has run yet: what td.run_schedule, td.matmul, td.train or Dask do is drawn here"
_WINDOW = 60.0
"""Seconds of tasks that are drawn; Dask's Task Stream has the rest."""
_AFTER = 0.5
"""Seconds after a run's end in which tasks are its own."""


def view_of(recorder: Collector, choice: str = _NEWEST) -> View:
    """What ``recorder`` has of a run, by its id; of the newest; or of all tasks."""
    now, run = time(), recorder.runs.get(choice)
    if choice == _NEWEST:
        run = max(reversed(recorder.runs.values()), key=lambda run: run.last, default=None)
        if run and run.is_over(now):
            begins = (t["start"] for task in recorder.tasks for t in task.times)
            run = None if max(begins, default=0.0) > run.last + _AFTER else run
    if run is None:
        return _tasks_view(recorder.tasks, recorder.workers)
    if run.kind == "pipeline":
        return pipeline_view(run, now, recorder.tasks)
    return product_view(run, now) if run.kind == "product" else training_view(run, now)


def every_view(recorder: Collector) -> Iterator[View]:
    """What it has of every run, the newest first, and of the tasks."""
    for choice in (*reversed(recorder.runs), _TASKS):
        yield view_of(recorder, choice)


def _choices(recorder: Collector) -> list[tuple[str, str]]:
    runs = [(run.id, facts_of(run, run.last)[0]) for run in reversed(recorder.runs.values())]
    return [(_NEWEST, "the newest, whatever it is"), *runs, (_TASKS, "tasks per worker")]


def _tasks_view(tasks: Iterable[Task], workers: Iterable[str]) -> View:
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
    charts, shares, legend = over_time(lanes, [*idle, *boxes], last - first)
    facts = {"workers": str(len(names)), "tasks": f"{len(spans):,}"}
    facts |= {"makespan": format_seconds(last - first)} | shares if spans else {}
    return View("Tasks per worker" if spans else _NOTHING, facts, charts, legend)


def put_into(scheduler: "Scheduler") -> None:
    """Put the page into the dashboard of ``scheduler``, if it has one without it.

    Bokeh's server takes no pages after it was made, so a second one with the same pages and this
    one is put before it. Both stop with the scheduler.
    """
    import dask
    from bokeh.server.tornado import BokehTornado
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import applications, template_variables
    from tornado.ioloop import IOLoop

    servers = getattr(scheduler.http_application, "applications", [])
    dashboards = [server for server in servers if isinstance(server, BokehTornado)]
    if not dashboards or f"/{_FRAMED}" in dashboards[0].app_paths:
        return
    pages = {f"/{_FRAMED}": partial(_page, True), f"/{_BARE}": partial(_page, False)}
    words = template_variables(scheduler)  # the lists in it are those of every page
    words["pages"].insert(1, _FRAMED)
    words["plots"].append({"url": _BARE, "name": "Tiledask"})
    # whoever may open the other pages may open this one
    allowed = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
    with dask.config.set({allowed: sorted(dashboards[0].websocket_origins)}):
        ours = BokehApplication({**applications, **pages}, scheduler, dashboards[0].prefix, words)
    ours.initialize(IOLoop.current())
    ours.start()
    servers.insert(0, ours)


@log_errors
def _page(framed: bool, scheduler: "Scheduler", extra: dict[str, Any], doc: "Document") -> None:
    """Fill ``doc``, one open page, and keep it up to date."""
    from bokeh.layouts import column
    from bokeh.models import Div, Select

    from tiledask.lab.dashboard.board import Board, headline, legend

    recorder: Any = scheduler.plugins.get(PAGE) or Collector()
    board = Board(view_of(recorder))
    above, below = Div(), Div()
    choice = Select(title="show", value=_NEWEST, options=_choices(recorder), width=260)
    for div in (above, below):
        div.update(sizing_mode="stretch_width", margin=(5, 5, 0, 8))
    seen: dict[str, Any] = {"state": None, "next": 0.0}

    def draw() -> None:
        begun, state = thread_time(), (recorder.changes, recorder.workers, choice.value)
        if state == seen["state"] or perf_counter() < seen["next"]:
            return
        view = view_of(recorder, choice.value)
        board.show(view)
        above.text, below.text = headline(view), legend(view)
        choice.options = _choices(recorder)
        pause = (thread_time() - begun) * (1 / _SHARE - 1)
        seen.update(state=state, next=perf_counter() + pause)

    def chosen(attr: str, old: str, new: str) -> None:
        seen["next"] = 0.0
        draw()

    draw()
    choice.on_change("value", chosen)
    doc.add_periodic_callback(draw, _EVERY)
    doc.add_root(column(above, board.layout, below, choice, sizing_mode="stretch_both"))
    doc.title = "tiledask: who computes when"
    if framed:
        from distributed.dashboard.components.scheduler import env

        doc.template = env.get_template("simple.html")
        doc.template_variables.update(extra)
