"""The page as a file: one HTML document with everything inside, to be looked at anywhere."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.distributed.deadlines import DEADLINE
from tiledask.errors import ConfigError, DeadlineError
from tiledask.extras import needed_for
from tiledask.lab.dashboard.activity import Activity, stacked
from tiledask.lab.dashboard.pipelines import of_run, of_timeline
from tiledask.lab.dashboard.products import ProductActivity, of_product
from tiledask.lab.dashboard.recorder import NAME, Snapshot
from tiledask.lab.dashboard.tasks import of_tasks
from tiledask.lab.dashboard.training_overview import Overview, of_training
from tiledask.lab.files import atomic_write
from tiledask.plan.pipelines.causes import CAUSES
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_bytes, format_percent, format_seconds

__all__ = ["report"]

_FEW, _ROW, _LOW_ROW = 12, 44, 24  # pixels of a row in a file: of few, and of more than that
_AROUND = 90  # pixels of a figure beside its rows


def report(path: str | os.PathLike, *what: Any, title: str = "") -> Path:
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
    until = max(
        (t.timeline.makespan for t in timelines), default=0.0
    )  # one time axis compares them
    before: _Shown | None = None
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
            timeline = shown.timeline
            predicts = (
                before is not None
                and (before.timeline.origin, timeline.origin) == ("simulated", "measured")
                and before.timeline.devices == timeline.devices
                and before.timeline.makespan
            )
            if before is not None and predicts:
                past = before.timeline
                predicted = [idle / past.makespan for idle in past.idle_per_device]
                shown = shown._replace(schedule=shown.schedule or before.schedule)
            yield replace(
                of_timeline(
                    timeline,
                    title=f"{shown.what}, {timeline.origin}",
                    predicted=predicted if predicts else None,
                    facts=shown.facts,
                ),
                until=until,
            )
            before = shown


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
    schedule: Schedule | None
    counted: tuple[tuple[str, str], ...]
    """(name, value) of what a run counted besides."""

    @property
    def what(self) -> str:
        """ "1f1b, p = 4, m = 8": the schedule as far as it is known, devices, micro-batches."""
        name = self.schedule.name if self.schedule else ""
        m = 1 + int(self.timeline.microbatch.max(initial=-1))
        numbers = [name, f"p = {self.timeline.devices}", f"m = {m}" if m else "nothing done"]
        return ", ".join(filter(None, numbers))

    @property
    def facts(self) -> list[tuple[str, str]]:
        timeline, schedule = self.timeline, self.schedule
        stages = 1 + int(timeline.stage.max(initial=-1))
        return [
            *([("schedule", schedule.name)] if schedule else []),
            ("devices", str(timeline.devices)),
            *([("stages", str(stages))] if stages != timeline.devices else []),
            ("micro-batches", str(1 + int(timeline.microbatch.max(initial=-1)))),
            ("activations kept at most", str(max(timeline.peak_in_flight, default=0))),
            *self.counted,
        ]


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
    shown = [] if simulated is None else [_Shown(simulated, schedule, ())]
    return [*shown, _Shown(timeline, schedule, tuple(counted))]


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


def _html(activities: list[Activity | Overview], title: str) -> str:
    with needed_for("a report"):
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
    predicted = ["predicted"] * (activity.predicted is not None)
    return [
        "busy",
        "idle",
        "idle share",
        *predicted,
        *(CAUSES[cause] for cause in _causes(activity)),
    ]


def _causes(activity: Activity) -> list[str]:
    """Those that some row was idle for."""
    there = {pause.cause for pause in activity.pauses}
    return [cause for cause in CAUSES if cause in there]


def _table(activity: Activity | Overview) -> list[Sequence[str]]:
    """Per layer: its name and what the head says. Per row: its name, busy and idle seconds, the
    idle share, the predicted one, and the shares of its causes."""
    if isinstance(activity, Overview):
        return list(activity.table)
    shares = activity.predicted or [None] * len(activity.rows)
    parts = {(part.row, part.cause): part.end - part.start for part in stacked(activity)}
    rows = []
    for number, (name, idle) in enumerate(zip(activity.rows, activity.idle, strict=True)):
        seconds = [(1 - idle) * activity.makespan, idle * activity.makespan]
        said = [idle, *([] if (share := shares[number]) is None else [share])]
        said += [parts.get((number, cause), 0.0) for cause in _causes(activity)]
        rows.append([name, *map(format_seconds, seconds), *map(format_percent, said)])
    return rows
