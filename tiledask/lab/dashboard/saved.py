"""The page as a file: one HTML document with everything inside, to be looked at anywhere."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError, DeadlineError
from tiledask.lab.dashboard.activity import Activity
from tiledask.lab.dashboard.pipelines import of_run, of_timeline
from tiledask.lab.dashboard.products import ProductActivity, of_product
from tiledask.lab.dashboard.recorder import NAME, Snapshot
from tiledask.lab.dashboard.tasks import of_tasks
from tiledask.lab.dashboard.training_overview import Overview, of_training
from tiledask.lab.report import write_whole
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_seconds

__all__ = ["report"]

_FEW, _ROW, _LOW_ROW = 12, 44, 24  # pixels of a row in a file: of few, and of more than that
_AROUND = 90  # pixels of a figure beside its rows
_DEADLINE = 30.0


def report(path: str | os.PathLike, *what: Any, title: str = "Who computes when") -> Path:
    """The path of an HTML file that shows ``what``; it loads nothing from anywhere.

    what
        One or more of: a cluster of ``td.start_cluster`` or a Dask client, for all that its page
        shows (the last trainings, pipelines and products, the newest first, and the other tasks
        since the last pause);
        a Timeline, or a result that has one (``.timeline``, and perhaps ``.simulated``). A
        measured Timeline after a simulated one of as many devices is shown with its idle shares
        as the prediction. All timelines share one time axis.

    Raises ConfigError if there is nothing to show, DeadlineError if the scheduler does not answer
    within 30 seconds.

    >>> import tempfile, tiledask as td
    >>> simulated = td.simulate(td.schedule("1f1b", stages=2, microbatches=4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = td.report(f"{folder}/run.html", simulated)
    ...     "predicted" in written.read_text(), written.name
    (False, 'run.html')
    """
    clients = [getattr(each, "client", each) for each in what]
    activities = list(_activities(clients))
    if not activities:
        raise ConfigError(
            "report needs 1 thing or more to show, got 0: nothing was passed, or the cluster has "
            "run nothing yet; pass a cluster after a run, or a Timeline"
        )
    path = Path(path)
    page = _undisturbed(lambda: _html(activities, title), clients)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, page.encode("utf-8"))  # a reader never sees half a page


# -- what to show --------------------------------------------------------------------------------


def _activities(what: list) -> Iterator[Activity | Overview]:
    sources = [each if _is_client(each) else _timelines(each) for each in what]
    timelines = [t for source in sources if isinstance(source, list) for t in source]
    until = max((t.makespan for t in timelines), default=0.0)  # one time axis compares them
    before: Timeline | None = None
    for source in sources:
        if not isinstance(source, list):
            record = _fetch(source)
            for training in reversed(record.trainings):
                yield of_training(training, record.now)
            for run in reversed(record.runs):
                yield of_run(run, record)
            for product in reversed(record.products):
                yield of_product(product, record.now)
            if record.tasks or record.running:
                yield of_tasks(record)
            continue
        for timeline in source:
            predicts = (
                before is not None
                and (before.origin, timeline.origin) == ("simulated", "measured")
                and before.devices == timeline.devices
                and before.makespan
            )
            shares = (
                [idle / before.makespan for idle in before.idle_per_device] if predicts else None
            )
            facts = [("devices", str(timeline.devices))]
            yield replace(
                of_timeline(
                    timeline, title=timeline.origin.capitalize(), predicted=shares, facts=facts
                ),
                until=until,
            )
            before = timeline


def _is_client(thing: Any) -> bool:
    return hasattr(thing, "run_on_scheduler")


def _timelines(thing: Any) -> list[Timeline]:
    simulated, timeline = getattr(thing, "simulated", None), getattr(thing, "timeline", thing)
    found = [t for t in (simulated, timeline) if isinstance(t, Timeline)]
    if not isinstance(timeline, Timeline):
        raise ConfigError(
            f"report shows clusters, clients, timelines and what has a .timeline; got "
            f"{type(thing).__name__}. Pass for example td.simulate(schedule)"
        )
    return found


def _fetch(client: Any) -> Snapshot:
    async def fetch() -> Snapshot | None:
        return await asyncio.wait_for(client._run_on_scheduler(_record), _DEADLINE)

    try:
        record = client.sync(fetch)
    except TimeoutError:
        raise DeadlineError(
            f"waited {_DEADLINE:g} s for the scheduler to hand over what it has recorded; it is "
            f"busy or gone, try again"
        ) from None
    if record is None:
        raise ConfigError(
            "this scheduler has recorded nothing: 0 of 1 recorders are there. Start it with "
            "dask scheduler --preload tiledask.lab.dashboard, or call "
            "client.register_plugin(tiledask.lab.dashboard.Recorder()) before the run"
        )
    return record


def _record(dask_scheduler: Any) -> Snapshot | None:
    """Called on the scheduler."""
    recorder = dask_scheduler.plugins.get(NAME)
    return recorder and recorder.record()


# -- the page ------------------------------------------------------------------------------------


def _undisturbed(make: Callable[[], str], what: list) -> str:
    """What ``make()`` returns, called in the thread that draws Dask's own pages, if there is one.

    While one of them is drawn Bokeh converts nothing, whatever the thread: a title would stay a
    word, and the name of a column be taken for a colour. Raises DeadlineError if that thread does
    not come to it.
    """
    from distributed.client import default_client

    try:
        client = next(filter(_is_client, what), None) or default_client()
    except ValueError:  # no cluster in this process
        return make()

    async def there() -> str:
        return make()

    try:
        return make() if client.asynchronous else client.sync(there, callback_timeout=_DEADLINE)
    except TimeoutError:
        raise DeadlineError(
            f"waited {_DEADLINE:g} s for the thread of this process that draws Dask's pages, to "
            f"draw the report there; it is busy, try again"
        ) from None


def _html(activities: list[Activity | Overview], title: str) -> str:
    from bokeh.document import Document
    from bokeh.embed import components
    from bokeh.resources import Resources
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from tiledask.lab.dashboard.board import headline, legend
    from tiledask.lab.dashboard.training_board import training_legend

    figures = [_board(activity).layout for activity in activities]
    document = Document()  # or Bokeh asks for the current one, which may be of any thread's page
    for figure in figures:
        document.add_root(figure)
    script, divisions = components(figures)
    parts = [
        {
            "headline": headline(activity),
            "figure": figure,
            "legend": training_legend(activity)
            if isinstance(activity, Overview)
            else legend(activity),
            "head": _head(activity),
            "rows": _table(activity),
        }
        for activity, figure in zip(activities, divisions, strict=True)
    ]
    jinja = Environment(
        loader=PackageLoader("tiledask.lab.dashboard"), autoescape=True, undefined=StrictUndefined
    )
    return jinja.get_template("saved.html.j2").render(
        title=title,
        subtitle=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z").strip(),
        bokeh=Resources(mode="inline", components=["bokeh"]).render(),
        script=script,
        parts=parts,
    )


def _board(activity: Activity | Overview) -> Any:
    from tiledask.lab.dashboard.board import Board
    from tiledask.lab.dashboard.product_board import ProductBoard
    from tiledask.lab.dashboard.training_board import TrainingBoard

    if isinstance(activity, Overview):
        return TrainingBoard(activity, 2 * _height(max(6, len(activity.layers))))
    if isinstance(activity, ProductActivity):
        return ProductBoard(activity, _height(len(activity.rows)))
    return Board(activity, _height(len(activity.rows)))


def _height(rows: int) -> int:
    return _AROUND + rows * (_ROW if rows <= _FEW else _LOW_ROW)


def _head(activity: Activity | Overview) -> list[str]:
    """What the columns of the table are, but for the first."""
    if isinstance(activity, Overview):
        return ["barriers of a step", "predicted", "bytes of a step", "predicted"]
    return ["busy", "idle", "idle share", *["predicted"] * (activity.predicted is not None)]


def _table(activity: Activity | Overview) -> list[Sequence[str]]:
    """Per layer: its name and what the head says. Per row: its name, busy and idle seconds, the
    idle share, and the predicted one."""
    if isinstance(activity, Overview):
        return list(activity.table)
    shares = activity.predicted or [None] * len(activity.rows)
    rows = []
    for name, idle, share in zip(activity.rows, activity.idle, shares, strict=True):
        seconds = [(1 - idle) * activity.makespan, idle * activity.makespan]
        cells = [name, *map(format_seconds, seconds), f"{idle:.1%}"]
        rows.append(cells if share is None else [*cells, f"{share:.1%}"])
    return rows
