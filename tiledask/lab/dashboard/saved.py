"""The page as a file: one HTML document with everything inside, to be looked at anywhere."""

import os
import pickle
import subprocess
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledask.distributed.cluster.cluster import PAGE, RUNNING
from tiledask.distributed.cluster.tasks import asked
from tiledask.distributed.deadlines import DEADLINE
from tiledask.errors import ConfigError, DeadlineError
from tiledask.files import atomic_write
from tiledask.lab.dashboard.page import view_of
from tiledask.lab.dashboard.views import View
from tiledask.plan import html

if TYPE_CHECKING:
    from distributed import Scheduler

__all__ = ["report"]

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
    for each in RUNNING:
        if each.client is client:
            each.await_page()
    try:
        views = asked(client, partial(client._run_on_scheduler, _views_there), DEADLINE)
    except TimeoutError:
        raise DeadlineError(
            f"waited {DEADLINE:g} s for the scheduler to send what it has recorded; it is busy or "
            f"gone, try again"
        ) from None
    if not views:
        raise ConfigError(
            "this scheduler has recorded nothing: start it with dask scheduler --preload "
            "tiledask.lab.dashboard, or call client.register_plugin(tiledask.lab.dashboard."
            "Recorder()) before the run"
        )
    # in a process of its own: where the scheduler's pages are drawn, in a thread of this one
    # perhaps, Bokeh converts nothing meanwhile
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command, given = [sys.executable, "-m", __name__], pickle.dumps((title, views))
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


def page_of(title: str, views: list[View]) -> str:
    """The page as HTML."""
    from bokeh.document import Document
    from bokeh.embed import file_html
    from bokeh.layouts import column
    from bokeh.models import Div
    from bokeh.resources import INLINE

    from tiledask.lab.dashboard.board import Board, headline, legend

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
    page: str = file_html(document, INLINE, title, template=_SAFE)
    return page


if __name__ == "__main__":
    sys.stdout.buffer.write(page_of(*pickle.load(sys.stdin.buffer)).encode())
