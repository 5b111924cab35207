"""What runs have reported, on the scheduler: one kind of event makes a ReportedRun.

run_schedule, td.matmul, td.train  --- announced, report, ended --->  ReportedRun
a worker                           --- finishes a task ------------>  Task

The events are those of `tiledask.distributed.cluster.progress`. Collecting costs one append per
task; everything else is done when somebody looks.
"""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time

from tiledask.distributed.cluster.cluster import PAGE
from tiledask.extras import needed_for

if TYPE_CHECKING:
    from distributed import Scheduler

__all__ = ["Recorder", "ReportedRun", "Task"]

KEPT_RUNS, KEPT_SPANS, KEPT_TASKS = 12, 4_000, 4_000
_SILENT = 30.0
"""Seconds without a report after which a run may have ended."""


class Task(NamedTuple):
    """What a worker did for a task, well or not."""

    worker: str
    """Name: one that comes back has another address."""
    address: str
    key: Any
    action: str
    """"compute", "transfer", ..."""
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
    workers: list[str] = field(default_factory=list)
    """The address of each lane's worker, where that matters."""
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
        self.changes = 0
        """Rises with everything that is collected."""

    async def start(self, scheduler: "Scheduler") -> None:
        """Called by Dask: once with the scheduler, or when the plugin is registered later."""
        self.scheduler = scheduler
        try:
            with needed_for("it"):
                from tiledask.lab.dashboard.page import put_into

                put_into(scheduler)
        except Exception as error:  # a page is worth no scheduler
            logging.getLogger(__name__).warning("no page in the dashboard: %s", error)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if start == "processing" and (times := kwargs.get("startstops")):
            address = kwargs.get("worker", "")
            worker = self.scheduler and self.scheduler.workers.get(address)
            about = str(worker.name if worker else address), address, key
            self.tasks.extend(Task(*about, t["action"], t["start"], t["stop"]) for t in times)
            self.changes += 1

    def log_event(self, topic: Any, msg: Any) -> None:
        if not (str(topic).startswith("tiledask-") and isinstance(msg, Mapping) and "run" in msg):
            return
        run, now = msg["run"], time()
        if "kind" in msg:
            about = {name: msg[name] for name in ("kind", "lanes", "facts", "predicted")}
            workers = msg.get("workers", [])
            self.runs[run] = ReportedRun(id=run, begin=now, workers=workers, **about)
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
