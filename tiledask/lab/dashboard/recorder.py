"""Collecting for the page, on the scheduler: the last runs and products, the last tasks.

run_schedule --- announces itself ---> topic "tiledask-runs" ---\\
td.matmul    --- announces itself ---> the same, and its ranks --+
a worker     --- reports an action --> the topic of its run  ----+--> Collector --> Snapshot
a rank       --- reports its steps --> that of its training -----+
a worker     --- finishes a task ----> its times (startstops) --/

Collecting costs one append per task; everything else is done when somebody looks.
"""

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dask.utils import key_split
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time

from tiledask.distributed.cluster.cluster import PAGE
from tiledask.distributed.cluster.progress import RUNS
from tiledask.distributed.cluster.progress import TOPIC as PANELS
from tiledask.distributed.training.progress import TOPIC as TRAINING_TOPIC
from tiledask.lab.dashboard.products import ReportedProduct
from tiledask.lab.dashboard.training_overview import Training

if TYPE_CHECKING:
    from distributed import Scheduler

__all__ = [
    "NAME",
    "RUN_TOPIC",
    "Collector",
    "ReportedRun",
    "Running",
    "Snapshot",
    "Task",
    "prefix",
]

NAME = PAGE
"""Of the plugin, on the scheduler."""
RUN_TOPIC = "tiledask-run-"
"""How the topic of every run begins."""

KEPT_RUNS, KEPT_ACTIONS, KEPT_TASKS, KEPT_NAMES = 6, 4_000, 4_000, 1_000
_LONG = 1.0  # seconds: workers tell what they are computing twice a second, and no oftener


class Task(NamedTuple):
    """A task that a worker has finished, well or not."""

    worker: str
    """Address."""
    key: Any
    times: list[dict[str, Any]]
    """What it did when: {"action": "compute" | "transfer" | ..., "start":, "stop":}, seconds."""


class Running(NamedTuple):
    """A task that a worker has been computing for more than a second."""

    worker: str
    key: Any
    since: float


@dataclass
class ReportedRun:
    """A pipeline's run as it told of itself."""

    topic: str
    announced: float
    """Seconds since the epoch, by the scheduler's clock."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Its announcement: schedule, devices, microbatches, actions, workers, predicted_idle and,
    span by span, predicted."""
    events: deque[Any] = field(default_factory=lambda: deque(maxlen=KEPT_ACTIONS))
    """The last actions, as reported."""
    count: int = 0
    """Actions ever reported."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of all that was collected up to ``now``."""

    now: float
    runs: tuple[ReportedRun, ...]
    """Oldest first."""
    tasks: tuple[Task, ...]
    names: Mapping[str, Any]
    """Address -> name, of every worker there was."""
    present: frozenset[str]
    """Addresses of the workers there are."""
    running: tuple[Running, ...] = ()
    trainings: tuple[Training, ...] = ()
    """Oldest first."""
    products: tuple[ReportedProduct, ...] = ()
    """Oldest first."""


class Collector(SchedulerPlugin):
    """Collects what the page shows; a `tiledask.lab.dashboard.Recorder` opens the page too."""

    name = NAME
    idempotent = True

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None
        self.runs: dict[str, ReportedRun] = {}
        self.trainings: dict[str, Training] = {}
        self.products: dict[str, ReportedProduct] = {}
        self.tasks: deque[Task] = deque(maxlen=KEPT_TASKS)
        self.names: dict[str, Any] = {}
        self.changes = 0
        """Rises with everything that is collected."""

    async def start(self, scheduler: "Scheduler") -> None:
        """Called by Dask: once with the scheduler, or when the plugin is registered later."""
        self.scheduler = scheduler
        for address in scheduler.workers:
            self.add_worker(scheduler, address)

    # -- collecting -----------------------------------------------------------

    def add_worker(self, scheduler: "Scheduler", worker: str) -> None:
        self.names[worker] = scheduler.workers[worker].name
        self.changes += 1
        while len(self.names) > KEPT_NAMES:
            del self.names[next(iter(self.names))]

    def remove_worker(self, scheduler: "Scheduler", worker: str, **_: Any) -> None:
        self.changes += 1

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if start == "processing" and (times := kwargs.get("startstops")):
            self.tasks.append(Task(kwargs.get("worker", ""), key, times))
            self.changes += 1

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == RUNS:
            if isinstance(msg, Mapping) and isinstance(msg.get("run"), str):
                if msg["run"].startswith(TRAINING_TOPIC):
                    self._add(self.trainings, Training, msg)
                elif "algorithm" in msg:
                    self._add(self.products, ReportedProduct, msg)
                else:
                    self._run(msg["run"]).about = msg
        elif topic == PANELS:
            known = self.products.get(msg.get("run")) if isinstance(msg, Mapping) else None
            self.changes += known is not None and known.heard(msg, time())
        elif topic in self.trainings:
            self.changes += self.trainings[topic].heard(msg, time())
        elif isinstance(topic, str) and topic.startswith(RUN_TOPIC):
            run = self._run(topic)
            run.events.append(msg)
            run.count += 1

    def _run(self, topic: str) -> ReportedRun:
        self.changes += 1
        if topic not in self.runs:
            self.runs[topic] = ReportedRun(topic, time())
            while len(self.runs) > KEPT_RUNS:
                del self.runs[next(iter(self.runs))]
        return self.runs[topic]

    def _add(self, to: dict[str, Any], kind: Any, about: Mapping[str, Any]) -> None:
        """Keep the training or product that ``about`` announces, if it does."""
        with suppress(KeyError, TypeError, ValueError, IndexError):
            to[about["run"]] = kind.announced_by(about, time())
            self.changes += 1
        while len(to) > KEPT_RUNS:
            del to[next(iter(to))]

    # -- looking --------------------------------------------------------------

    def record(self) -> Snapshot:
        """A copy of what there is now."""
        workers = self.scheduler.workers if self.scheduler else {}
        runs = [
            ReportedRun(r.topic, r.announced, r.about, r.events.copy(), r.count)
            for r in self.runs.values()
        ]
        return Snapshot(
            time(),
            tuple(runs),
            tuple(self.tasks),
            dict(self.names),
            frozenset(workers),
            tuple(self._running()),
            tuple(t.copy() for t in self.trainings.values()),
            tuple(p.copy() for p in self.products.values()),
        )

    def is_computing(self) -> bool:
        """Whether a task has been running for long: the picture grows although nothing ends."""
        return bool(self._running())

    def _running(self) -> list[Running]:
        workers = self.scheduler.workers.values() if self.scheduler else ()
        return [
            Running(ws.address, ts.key, ws.last_seen - seconds)
            for ws in workers
            for ts, seconds in ws.executing.items()
            if seconds > _LONG and ts in ws.processing
        ]


def prefix(key: Any) -> str:
    """The name that a task shares with its like: "multiply" of "multiply-3f2a..."."""
    return str(key_split(key))
