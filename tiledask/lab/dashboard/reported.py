"""What runs have reported, on the scheduler: one kind of event makes a ReportedRun.

run_schedule, td.matmul, td.train  --- announced, report, ended --->  ReportedRun
a worker                           --- finishes a task ------------>  Task

The events are those of `tiledask.distributed.cluster.progress`.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["ReportedRun", "Task"]

KEPT_SPANS = 4_000
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
