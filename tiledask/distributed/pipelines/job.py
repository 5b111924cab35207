"""One run of a schedule: who does what next, what it starts from, and what was heard of it."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from dask.typing import Key
from distributed import Future

from tiledask.distributed.arrays.array import read_block
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.progress import RUNS
from tiledask.distributed.pipelines.actions import PipelineAction
from tiledask.distributed.transport.meeting import begin
from tiledask.errors import DeadlineError
from tiledask.plan.pipelines.needs import Needs
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.timeline import TRANSFER, Span, Timeline
from tiledask.plan.products.placement import split

__all__ = ["Done", "Given", "PipelineJob"]

_FOLLOWED = 4_000
"""Actions of a run up to which its announcement says when each is predicted."""
PATIENCE = 20.0
"""Seconds that setting up and reporting may take even if the run's own timeout is shorter."""


@dataclass(frozen=True)
class Given:
    """What a run starts from, as futures of what is in place on its devices."""

    weights: dict[tuple[int, int], Future[Any]]
    """(stage, device) -> the weights there."""
    inputs: Sequence[Future[Any]]
    """The rows of each micro-batch, on the device of its first stage."""
    targets: Sequence[Future[Any] | None]
    """The targets of each micro-batch, on the device of its last stage; None: no training."""


@dataclass(frozen=True)
class Done:
    """What an engine brings back."""

    outputs: list[Any]
    """The last stage's output for each micro-batch."""
    losses: list[float]
    """The loss of each micro-batch."""
    gradients: dict[tuple[int, int], list[dict[str, Any]]]
    """(stage, device) -> the sum over the micro-batches that passed there."""
    spans: list[Span]
    late: float
    moves: list[tuple[int, int, int]]
    """(source, destination, bytes) of what went past Dask."""


@dataclass
class PipelineJob:
    """One run."""

    schedule: Schedule
    waits: Needs
    """What each action needs."""
    order: Sequence[Action]
    """All actions, each after those before it on its device and those it needs."""
    stages: Sequence[Any]
    batch: np.ndarray
    target: np.ndarray | None
    cluster: Cluster
    seconds: np.ndarray
    """[4, stages, microbatches or 1]: for which each action occupies its device."""
    together: np.ndarray
    """[stages, microbatches or 1]: of a forward and a backward at once; -1 for the sum."""
    arriving: np.ndarray
    """[2, replicas, stages]: seconds that a result is on its way at least, from the stage before
    and from the stage behind."""
    timeout: float
    """Seconds that the actions may take, all together."""
    topic: str = field(default_factory=lambda: f"tiledask-run-{uuid.uuid4().hex}")
    """The run's name, and the topic of its events."""
    sent: dict[Key, tuple[str, int, int]] = field(default_factory=dict)
    """Dask's name of a block -> what a span of its transfer says: kind, stage, micro-batch."""

    def device(self, action: Action) -> int:
        """Where ``action`` is done."""
        return self.schedule.holder(action.stage, action.microbatch)

    @cached_property
    def turns(self) -> dict[Action, PipelineAction]:
        """What each action is, uses and makes."""
        users: dict[Action, list[Action]] = {}
        for action, before in self.waits.items():
            for b in before:
                users.setdefault(b, []).append(action)
        pairs = np.flatnonzero(self.schedule.paired).tolist()
        firsts = {self.schedule.action(at): self.schedule.action(at + 1) for at in pairs}
        seconds = {action: self._seconds(action) for action in self.order}
        for first, second in firsts.items():
            both = _entry(self.together[first.stage], first.microbatch)
            if both >= 0:
                seconds[first], seconds[second] = both, 0.0
        return {a: self._turn(a, users.get(a, []), seconds[a], a in firsts) for a in self.order}

    def _seconds(self, action: Action) -> float:
        table = self.seconds[KINDS.index(action.kind), action.stage]
        return _entry(table, action.microbatch)

    def _turn(
        self, action: Action, users: list[Action], seconds: float, paired: bool
    ) -> PipelineAction:
        kind, s, i = action
        own = next((b for b in self.waits[action] if b.stage == s), None)
        gets = next((b for b in self.waits[action] if b.stage != s), None)
        there = {self.device(user) for user in users} - {self.device(action)}
        far = gets is not None and self.device(gets) != self.device(action)
        replica = i % self.schedule.replicas
        return PipelineAction(
            action,
            own,
            gets,
            tuple(sorted(there)),
            seconds,
            float(self.arriving[0 if kind == "F" else 1, replica, s]) if far else 0.0,
            paired,
        )

    @property
    def peers(self) -> list[set[int]]:
        """The devices with which each device exchanges blocks."""
        found: list[set[int]] = [set() for _ in range(self.schedule.devices)]
        for action, turn in self.turns.items():
            for other in turn.sends:
                found[self.device(action)].add(other)
                found[other].add(self.device(action))
        return found

    @property
    def patience(self) -> float:
        """Seconds for what comes before and after the actions; not less because those are short."""
        return max(self.timeout, PATIENCE)

    def prepare(self) -> Given:
        """Weights, micro-batches and targets, in place on their devices."""
        submit, last = self.cluster.submit, self.schedule.stages - 1
        weights = {
            (s, d): submit(d, _init, self.stages[s], self.cluster.backend, name="weights")
            for s, d in sorted({(a.stage, self.device(a)) for a in self.order})
        }
        targets: Sequence[Future[Any] | None] = [None] * self.schedule.microbatches
        if self.target is not None:
            targets = self._rows(self.target, last)
        given = Given(weights, self._rows(self.batch, 0), targets)
        ready = [*weights.values(), *given.inputs, *(f for f in given.targets if f is not None)]
        self.cluster.wait(ready, "weights and micro-batches", self.patience, cancel=True)
        return given

    def _rows(self, array: np.ndarray, stage: int) -> list[Future[Any]]:
        """The micro-batches of ``array`` where ``stage`` is, from a file: readable again."""
        parts = split(0, len(self.batch), self.schedule.microbatches)
        path, columns = self.cluster.keep(array), (0, array.shape[1])
        return [
            self.cluster.submit(
                self.schedule.holder(stage, i),
                read_block,
                path,
                (part, columns),
                array.dtype.name,
                self.cluster.backend,
                name="micro-batch",
            )
            for i, part in enumerate(parts)
        ]

    def begin(self, addresses: Sequence[str], simulated: Timeline | None) -> None:
        """Announce the run, and let its devices begin."""
        schedule = self.schedule
        idle = spans = None
        if simulated is not None:
            idle = [each / (simulated.makespan or 1.0) for each in simulated.idle_per_device]
            if len(simulated) <= _FOLLOWED:
                names = ("device", "kind", "stage", "microbatch", "start", "end")
                columns = (getattr(simulated, name).tolist() for name in names)
                spans = list(zip(*columns, strict=True))
        self.cluster.client.log_event(
            RUNS,
            {
                "run": self.topic,
                "schedule": schedule.name,
                "devices": schedule.devices,
                "microbatches": schedule.microbatches,
                "actions": len(schedule),
                "workers": {str(d): address for d, address in enumerate(addresses)},
                "predicted_idle": idle,
                "predicted": spans,
            },
        )
        begin(self.cluster, self.topic, self.patience)

    def heard(self) -> tuple[list[Span], float]:
        """(every action and the blocks that it waited for, the longest overrun), once all have
        been reported; they are done already."""
        deadline = time.monotonic() + self.patience
        while True:
            events = self.cluster.client.get_events(self.topic) or ()
            # an action that ran again, after its worker died, counts as it ran last
            ran = {tuple(e["action"]): e for _, e in events}
            if len(ran) == len(self.schedule):
                spans = [(e["device"], *e["action"], e["start"], e["end"]) for e in ran.values()]
                spans += [
                    (e["device"], TRANSFER, stage, e["action"][2], start, stop)
                    for e in ran.values()
                    for stage, start, stop in e["arriving"]
                ]
                return spans, max(e["late"] for e in ran.values())
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"{len(ran)} of {len(self.schedule)} actions reported when they ran within "
                    f"{self.patience:g} s after all were done; run the schedule again"
                )
            time.sleep(0.01)


def _entry(row: np.ndarray, microbatch: int) -> float:
    """The entry of a row of [microbatches or 1]."""
    return float(row[microbatch if len(row) > 1 else 0])


def _init(stage: Any, backend: str) -> Any:
    return stage.init(backend)
