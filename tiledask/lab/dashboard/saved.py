"""The page as a file: one HTML document with everything inside, to be looked at anywhere."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.distributed.deadlines import DEADLINE
from tiledask.errors import ConfigError, DeadlineError
from tiledask.extras import needed_for
from tiledask.files import atomic_write
from tiledask.lab.dashboard.activity import Activity
from tiledask.lab.dashboard.pipelines import of_run, of_timeline
from tiledask.lab.dashboard.products import ProductActivity, of_product
from tiledask.lab.dashboard.recorder import NAME, Snapshot
from tiledask.lab.dashboard.tasks import of_tasks
from tiledask.lab.dashboard.training_overview import Overview, of_training
from tiledask.plan import html
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_bytes

__all__ = ["report"]

_FEW, _ROW, _LOW_ROW = 12, 44, 24  # pixels of a row in a file: of few, and of more than that
_AROUND = 90  # pixels of a figure beside its rows


def report(path: str | os.PathLike[str], *what: Any, title: str = "") -> Path:
    """The path of an HTML file that shows ``what``; it loads nothing from anywhere.

    what
        One or more of: a cluster of ``td.start_cluster`` or a Dask client, for all that its page
        shows (the last trainings, pipelines and products, the newest first, and the other tasks
        since the last pause);
        a Timeline, or a result that has one (``.timeline``, and perhaps ``.simulated``). A
        measured Timeline after a simulated one of as many devices is shown with its idle shares
        as the prediction. All timelines share one time axis.
    title
        Of the page; without one, what is shown.

    Raises ConfigError if there is nothing to show, DeadlineError if the scheduler does not answer
    within 300 seconds.

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
    page = _undisturbed(lambda: _html(activities, title or _title(activities)), clients)
    path.parent.mkdir(parents=True, exist_ok=True)
    return atomic_write(path, page.encode("utf-8"))  # a reader never sees half a page


# -- what to show --------------------------------------------------------------------------------


def _activities(what: list) -> Iterator[Activity | Overview]:
    sources = [each if _is_client(each) else _timelines(each) for each in what]
    timelines = [t for source in sources if isinstance(source, list) for t in source]
    # one time axis compares them
    until = max((t.timeline.makespan for t in timelines), default=0.0)
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
        for shown in source:
            timeline, predicted = shown.timeline, None
            origins = before and (before.origin, timeline.origin, before.devices)
            if origins == ("simulated", "measured", timeline.devices) and before.makespan:
                predicted = [idle / before.makespan for idle in before.idle_per_device]
            title = f"{shown.name}, {timeline.origin}"
            drawn = of_timeline(timeline, title=title, predicted=predicted, facts=shown.facts)
            yield replace(drawn, until=until)
            before = timeline


def _title(activities: list[Activity | Overview]) -> str:
    """The schedule, if all that is shown is timelines of one; else what any page shows."""
    parts = [activity.title.rpartition(", ") for activity in activities]
    names = {name for name, _, how in parts if how in ("simulated", "measured")}
    alone = len(names) == 1 and all(name in names for name, *_ in parts)
    return names.pop() if alone else "Who computes when"


def _is_client(thing: Any) -> bool:
    return hasattr(thing, "run_on_scheduler")


class _Shown(NamedTuple):
    """A Timeline, and what is known of where it comes from."""

    timeline: Timeline
    name: str
    """ "1f1b, p = 4, m = 8": the schedule as far as it is known, devices, micro-batches."""
    facts: list[tuple[str, str]]


def _timelines(thing: Any) -> list[_Shown]:
    simulated, timeline = getattr(thing, "simulated", None), getattr(thing, "timeline", thing)
    if not isinstance(timeline, Timeline):
        raise ConfigError(
            f"report shows clusters, clients, timelines and what has a .timeline; got "
            f"{type(thing).__name__}. Pass for example td.simulate(schedule)"
        )
    every = [simulated, timeline, getattr(thing, "replayed", None)]
    schedule = next((t.evidence.schedule for t in every if t is not None and t.evidence), None)
    traffic, memory = getattr(thing, "traffic", None), getattr(thing, "memory", None)
    counted = []
    if traffic is not None:
        counted.append(("bytes between devices, predicted", format_bytes(traffic.predicted.total)))
        if traffic.measured is not None:
            counted.append(("measured", format_bytes(traffic.measured.total)))
    if memory is not None:
        counted.append(("memory of the fullest device", format_bytes(memory.peak)))
    if (load := getattr(thing, "load", None)) is not None:
        counted.append(("machine meanwhile", str(load)))
    shown = [] if simulated is None else [_shown(simulated, schedule)]
    return [*shown, _shown(timeline, schedule, counted)]


def _shown(timeline: Timeline, schedule: Schedule | None, counted: Iterable = ()) -> _Shown:
    name, m = schedule.name if schedule else "", 1 + int(timeline.microbatch.max(initial=-1))
    numbers = [name, f"p = {timeline.devices}", f"m = {m}" if m else "nothing done"]
    facts = [("schedule", name)] if name else []
    facts += [("devices", str(timeline.devices)), ("micro-batches", str(m))]
    facts += [("activations kept at most", str(max(timeline.peak_in_flight, default=0))), *counted]
    return _Shown(timeline, ", ".join(filter(None, numbers)), facts)


def _fetch(client: Any) -> Snapshot:
    for cluster in RUNNING:
        if cluster.client is client:
            cluster.await_page()

    async def fetch() -> Snapshot | None:
        return await asyncio.wait_for(client._run_on_scheduler(_record), DEADLINE)

    try:
        record = client.sync(fetch)
    except TimeoutError:
        raise DeadlineError(
            f"waited {DEADLINE:g} s for the scheduler to hand over what it has recorded; it is "
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
        return make() if client.asynchronous else client.sync(there, callback_timeout=DEADLINE)
    except TimeoutError:
        raise DeadlineError(
            f"waited {DEADLINE:g} s for the thread of this process that draws Dask's pages, to "
            f"draw the report there; it is busy, try again"
        ) from None


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src \
'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
body {{ margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 90rem; color: #1d1f21;
  background: #fff; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Arial, sans-serif; }}
section {{ margin: 1.6rem 0 2.2rem; padding-top: .9rem; border-top: 1px solid #d9dce1; }}
div.wide {{ overflow-x: auto; }}
</style>
{bokeh}
</head>
<body>
<h1>{title}</h1>
<p>{date}</p>
{sections}
{script}
</body>
</html>
"""
"""Nothing may be loaded from anywhere; Bokeh makes functions of its own text."""


def _html(activities: list[Activity | Overview], title: str) -> str:
    with needed_for("a report"):
        from bokeh.document import Document
        from bokeh.embed import components
        from bokeh.resources import Resources

    from tiledask.lab.dashboard.board import headline, legend
    from tiledask.lab.dashboard.training_board import training_legend

    figures = [_board(activity).layout for activity in activities]
    document = Document()  # or Bokeh asks for the current one, which may be of any thread's page
    for figure in figures:
        document.add_root(figure)
    script, divisions = components(figures)
    sections = []
    for activity, figure in zip(activities, divisions, strict=True):
        words = training_legend if isinstance(activity, Overview) else legend
        wide = f"<div class='wide'>{figure}</div>"
        sections.append(f"<section>{headline(activity)}{wide}{words(activity)}</section>")
    return _PAGE.format(
        title=html.words(title),
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z").strip(),
        bokeh=Resources(mode="inline", components=["bokeh"]).render(),
        sections="\n".join(sections),
        script=script,
    )


def _board(activity: Activity | Overview) -> Any:
    from tiledask.lab.dashboard.board import Board
    from tiledask.lab.dashboard.product_board import ProductBoard
    from tiledask.lab.dashboard.training_board import TrainingBoard

    if isinstance(activity, Overview):
        return TrainingBoard(activity, 2 * _height(max(6, len(activity.layers))))
    board = ProductBoard if isinstance(activity, ProductActivity) else Board
    return board(activity, _height(len(activity.rows)))  # type: ignore[arg-type]


def _height(rows: int) -> int:
    return _AROUND + rows * (_ROW if rows <= _FEW else _LOW_ROW)
