"""The page in Dask's dashboard: tiledask in its bar, individual-tiledask in JupyterLab's panel.

A `Recorder` collects what it shows: the newest run, or all tasks by worker where those are newer.
Collecting costs one append per task; everything else is done when somebody looks. `report` is the
same page as a file: one HTML document with everything inside, to be looked at anywhere.
"""

import logging
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time
from distributed.utils import log_errors

from tiledask.distributed.cluster.cluster import PAGE
from tiledask.distributed.cluster.tasks import asked
from tiledask.distributed.deadlines import DEADLINE
from tiledask.errors import ConfigError, DeadlineError
from tiledask.extras import needed_for
from tiledask.files import atomic_write
from tiledask.lab.dashboard.views import (
    GONE,
    ReportedRun,
    Task,
    View,
    title_of,
    view_of_run,
    view_of_tasks,
)
from tiledask.plan import html

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed import Scheduler

__all__ = ["Recorder", "report", "view_of"]

KEPT_RUNS, KEPT_TASKS = 12, 4_000
_BARE, _FRAMED = "individual-tiledask", "tiledask"
_EVERY = 250
"""Milliseconds between two looks at the record."""
_SHARE = 0.02
"""Of a core that one open page may take for drawing; sending takes about as much. Seconds in which
the scheduler waits for a core are not drawing, or nothing would be drawn while all cores compute.
"""
_NEWEST = "newest"
_AFTER = 0.5
"""Seconds after a run's end in which tasks are its own."""


class Recorder(SchedulerPlugin):
    """Collects what the page shows, and puts the page into the dashboard when it starts.

    On a cluster that runs already: ``client.register_plugin(tiledask.lab.dashboard.Recorder())``.
    """

    name = PAGE
    idempotent = True

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None
        self.runs: dict[str, ReportedRun] = {}
        self.tasks: deque[Task] = deque(maxlen=KEPT_TASKS)
        self.names: dict[str, str] = {}
        """Of workers, by address."""
        self.notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).stem
        """The one whose cluster this is, if its kernel started it."""
        self.gone: dict[str, float] = {}
        """When a worker of this name has ended, until there is another."""
        self.changes = 0
        """Rises with everything that is collected."""

    async def start(self, scheduler: "Scheduler") -> None:
        """Called by Dask: once with the scheduler, or when the plugin is registered later."""
        self.scheduler = scheduler
        for worker in scheduler.workers:
            self.add_worker(scheduler, worker)
        try:
            with needed_for("it"):
                _put_into(scheduler)
        except Exception as error:  # a page is worth no scheduler
            logging.getLogger(__name__).warning("no page in the dashboard: %s", error)

    def add_worker(self, scheduler: "Scheduler", worker: str) -> None:
        name = self.names[worker] = str(scheduler.workers[worker].name)
        if name in self.gone:
            self.tasks.append(Task(name, GONE, self.gone.pop(name), time()))
            self.changes += 1

    def remove_worker(self, scheduler: "Scheduler", worker: str, **_about: Any) -> None:
        self.gone[self.names.pop(worker, worker)] = time()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if start == "processing" and (times := kwargs.get("startstops")):
            address = kwargs.get("worker", "")
            worker = self.scheduler and self.scheduler.workers.get(address)
            name = str(worker.name if worker else address)
            computed = [t for t in times if t["action"] == "compute"]
            self.tasks.extend(Task(name, key, t["start"], t["stop"]) for t in computed)
            self.changes += 1

    def log_event(self, topic: Any, msg: Any) -> None:
        if not (str(topic).startswith("tiledask-") and isinstance(msg, Mapping) and "run" in msg):
            return
        run, now = msg["run"], time()
        if "kind" in msg:
            about = {name: msg[name] for name in ("kind", "lanes", "facts", "predicted")}
            self.runs[run] = ReportedRun(id=run, begin=now, **about)
            while len(self.runs) > KEPT_RUNS:
                del self.runs[next(iter(self.runs))]
        if run in self.runs:
            self.runs[run].on_event(msg, now)
            self.changes += 1

    @property
    def workers(self) -> list[str]:
        """The names of the workers there are."""
        workers = self.scheduler.workers.values() if self.scheduler else ()
        return [str(worker.name) for worker in workers]


def view_of(recorder: Recorder, choice: str = _NEWEST) -> View:
    """What ``recorder`` has of a run, by its id; of the newest; or of all tasks."""
    now, run = time(), recorder.runs.get(choice)
    if choice == _NEWEST:
        run = max(reversed(recorder.runs.values()), key=lambda run: run.last, default=None)
        if run and (run.state != "running" or run.is_silent(now)):
            begun = max((task.start for task in recorder.tasks), default=0.0)
            run = None if begun > run.last + _AFTER else run
    view = view_of_run(run, now) if run else view_of_tasks(recorder.tasks, recorder.workers)
    view.title = f"{recorder.notebook}: {view.title}".removeprefix(": ")
    return view


def _put_into(scheduler: "Scheduler") -> None:
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
    from distributed.dashboard.components.scheduler import env

    from tiledask.lab.dashboard.board import Board, headline, legend

    recorder: Any = scheduler.plugins.get(PAGE) or Recorder()
    board, choice = Board(view_of(recorder)), Select(value=_NEWEST, width=260)
    above, below = (Div(sizing_mode="stretch_width", margin=(5, 5, 0, 8)) for _ in range(2))
    seen: Any = None
    pause_ends = 0.0

    def draw(now: bool = False) -> None:
        nonlocal seen, pause_ends
        begun, state = thread_time(), (recorder.changes, recorder.workers, choice.value)
        if state == seen or (perf_counter() < pause_ends and not now):
            return
        view = view_of(recorder, choice.value)
        board.show(view)
        above.text, below.text = headline(view), legend(view)
        runs = [
            (r.id, f"{title_of(r, r.last)}: {next(iter(r.facts.values()), '')} on {len(r.lanes)}")
            for r in reversed(recorder.runs.values())
        ]
        choice.options = [(_NEWEST, "the newest"), *runs, ("tasks", "tasks per worker")]
        seen, pause_ends = state, perf_counter() + (thread_time() - begun) * (1 / _SHARE - 1)

    draw()
    choice.on_change("value", lambda attr, old, new: draw(now=True))
    doc.add_periodic_callback(draw, _EVERY)
    doc.add_root(column(above, board.layout, below, choice, sizing_mode="stretch_both"))
    doc.title = "tiledask: who computes when"
    if framed:
        doc.template = env.get_template("simple.html")
        doc.template_variables.update(extra)


# -- the page as a file ----------------------------------------------------------------------------

_SAFE = """{% block preamble %}<meta http-equiv="Content-Security-Policy" content="default-src \
'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:">\
{% endblock %}"""
"""Nothing may be loaded from anywhere; Bokeh makes functions of its own text."""


def report(path: str | os.PathLike[str], cluster: Any, *, title: str = "Who computes when") -> Path:
    """The path of an HTML file with all that the dashboard's page shows; it loads nothing.

    cluster
        Of ``td.start_cluster``, or a Dask client. Shown are its last runs, the newest first, and
        the other tasks of the last minute.
    title
        Of the page.

    Raises ConfigError if there is nothing to show, DeadlineError if the scheduler does not answer
    within 300 seconds.
    """
    client = getattr(cluster, "client", cluster)
    if not hasattr(client, "run_on_scheduler"):
        kind = type(client).__name__
        raise ConfigError(f"report shows a cluster or a Dask client, got {kind}; td.plots draws it")
    try:
        views = asked(client, partial(client._run_on_scheduler, _views_there), DEADLINE)
    except TimeoutError:
        late = f"waited {DEADLINE:g} s for what the scheduler has recorded"
        raise DeadlineError(f"{late}; it is busy or gone, try again") from None
    if not views:
        raise ConfigError(
            "this scheduler has recorded nothing: start it with dask scheduler --preload "
            "tiledask.lab.dashboard, or call client.register_plugin(tiledask.lab.dashboard."
            "Recorder()) before the run"
        )
    # in a process of its own: where the scheduler's pages are drawn, in a thread of this one
    # perhaps, Bokeh converts nothing meanwhile
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code, given = f"from {__name__} import _draw; _draw()", pickle.dumps((title, views))
    command = [sys.executable, "-c", code]
    drawn = subprocess.run(command, input=given, stdout=subprocess.PIPE, env=paths, check=True)
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    return atomic_write(file, drawn.stdout)  # a reader never sees half a page


def _views_there(dask_scheduler: "Scheduler") -> list[View]:
    """Called on the scheduler, which draws nothing: that takes seconds."""
    recorder: Any = dask_scheduler.plugins.get(PAGE)
    if recorder is None or not (recorder.runs or recorder.tasks):
        return []
    return [view_of(recorder, choice) for choice in (*reversed(recorder.runs), "tasks")]


def _draw() -> None:
    """Write the page of the title and the views on standard input to standard output."""
    from bokeh.document import Document
    from bokeh.embed import file_html
    from bokeh.layouts import column
    from bokeh.models import Div
    from bokeh.resources import INLINE

    from tiledask.lab.dashboard.board import Board, headline, legend

    title, views = pickle.load(sys.stdin.buffer)
    document, drawn = Document(), list[Any]()
    date = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z").strip()

    def write(text: str) -> None:
        drawn.append(Div(text=text, sizing_mode="stretch_width"))

    write(f"<h1>{html.words(title)}</h1><p>{date}</p>")
    for view in views:
        rows = max((len(chart.lanes) for chart in view.charts.values()), default=0)
        height = max(180, 90 + rows * (44 if rows <= 12 else 24))  # pixels
        write(f"<hr>{headline(view)}")
        drawn.append(Board(view, height).layout)
        write(legend(view))
    # one root: with each Bokeh goes through all that there is
    document.add_root(column(*drawn, sizing_mode="stretch_width"))
    sys.stdout.buffer.write(file_html(document, INLINE, title, template=_SAFE).encode())
