"""One run of a schedule: what it starts from, and what its devices bring back."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from dask.typing import Key
from distributed import Future

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.progress import announced, ended
from tiledask.distributed.pipelines.kernels import StagesMade, operands, shares
from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Span, Timeline
from tiledask.plan.program.program import Program

__all__ = ["DeviceDone", "PipelineJob"]

PATIENCE = 20.0
"""Seconds that setting up and reporting may take even if the run's own timeout is shorter."""


def _topic() -> str:
    return f"tiledask-run-{uuid.uuid4().hex}"


class DeviceDone(NamedTuple):
    """What a device brings back."""

    made: list[StagesMade]
    """By every stage."""
    spans: list[Span]
    """Of its actions, and of the blocks that they waited for."""
    late: float
    """The longest that an action took beyond its time."""
    moves: list[tuple[int, int]]
    """(source, bytes) of what came past Dask."""


@dataclass
class PipelineJob:
    """One run. `dataclasses.replace` makes another, with a name of its own."""

    schedule: Schedule
    program: Program
    stages: Sequence[Any]
    batch: np.ndarray
    target: np.ndarray | None
    cluster: Cluster
    pace: PipelineCosts
    simulated: Timeline | None
    timeout: float
    """Seconds that the actions may take, all together."""
    topic: str = field(default_factory=_topic, init=False)
    """The run's name, and the topic of its events."""
    sent: dict[Key, tuple[str, int, int]] = field(default_factory=dict, init=False)
    """Dask's name of a block -> what a span of its transfer says: kind, stage, micro-batch."""

    @property
    def patience(self) -> float:
        """Seconds for what comes before and after the actions; not less because those are short."""
        return max(self.timeout, PATIENCE)

    def run(
        self, engine: Callable[["PipelineJob", list[Future[Any]]], list[DeviceDone]]
    ) -> list[DeviceDone]:
        """By device, what its actions made; ``engine`` runs them with the operands of its stages:
        futures of what is in place there."""
        cluster = self.cluster
        given = shares(self.program, self.stages, self.batch, self.target)
        ready = [
            cluster.submit(device, operands, *mine, cluster.backend, name="weights")
            for device, mine in enumerate(given)
        ]
        cluster.wait(ready, "weights and micro-batches", self.patience, cancel=True)
        with announced(cluster, self.topic, **self._about()):
            done = engine(self, ready)
        ended(cluster, self.topic)
        return done

    def _about(self) -> dict[str, Any]:
        """What is announced of the run."""
        schedule = self.schedule
        predicted: dict[str, Any] = {"actions": len(schedule)}
        if self.simulated is not None:
            whole = self.simulated.makespan or 1.0
            predicted["idle"] = [each / whole for each in self.simulated.idle_per_device]
        return {
            "kind": "pipeline",
            "lanes": [f"device {d + 1}" for d in range(schedule.devices)],
            "facts": {"schedule": schedule.name, "micro-batches": str(schedule.microbatches)},
            "predicted": predicted,
            "workers": [self.cluster.address(d) for d in range(schedule.devices)],
        }
