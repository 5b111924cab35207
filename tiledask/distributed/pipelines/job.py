"""One run of a schedule: what it starts from, and what its devices bring back."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from dask.typing import Key
from distributed import Future

from tiledask.distributed.arrays.array import read_block
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.progress import announced, ended
from tiledask.distributed.cluster.spool import KeptArray
from tiledask.distributed.pipelines.kernels import StageKernels, StagesMade
from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Span, Timeline
from tiledask.plan.products.placement import split
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
    late: list[float]
    """How much longer each action took than its time."""
    moves: list[tuple[int, int]]
    """(source, bytes) of what came past Dask."""


@dataclass
class PipelineJob:
    """One run."""

    schedule: Schedule
    program: Program
    stages: Sequence[Any]
    batch: np.ndarray
    target: np.ndarray | None
    cluster: Cluster
    pace: PipelineCosts
    timeout: float
    """Seconds that the actions may take, all together."""
    topic: str = field(default_factory=_topic)
    """The run's name, and the topic of its events."""
    sent: dict[Key, tuple[str, int, int]] = field(default_factory=dict)
    """Dask's name of a block -> what a span of its transfer says: kind, stage, micro-batch."""
    kept: list[KeptArray] = field(default_factory=list)
    """Batch and target, for its tasks, until it is over."""

    def again(self, timeout: float) -> "PipelineJob":
        """The same run from its start, under another name."""
        return replace(self, timeout=timeout, topic=_topic(), sent={}, kept=[])

    @property
    def messages(self) -> Iterator[tuple[int, int, int]]:
        """(from, to, micro-batch) of every block that goes to another device."""
        for device, order in enumerate(self.program.orders):
            blocks = self.program.role(device).blocks
            for step in order:
                for op in blocks[step.block].ops:
                    if op.name == "send":
                        yield device, op["peer"], step.microbatch

    @property
    def patience(self) -> float:
        """Seconds for what comes before and after the actions; not less because those are short."""
        return max(self.timeout, PATIENCE)

    def prepare(self) -> list[Future[Any]]:
        """By device, what its stages work with (`StageKernels` by stage), in place there."""
        cluster, last, ready = self.cluster, self.schedule.stages - 1, list[Future[Any]]()
        arrays = [a for a in (self.batch, self.target) if a is not None]
        self.kept += [cluster.keep(each) for each in arrays]
        dtypes = [each.dtype.name for each in arrays]
        rows = split(0, len(self.batch), self.schedule.microbatches)
        width = self.batch.shape[1]
        for device, actions in enumerate(self.schedule.orders):
            stages = []
            for s in sorted({action.stage for action in actions}):
                frames = sorted({i for _, stage, i in actions if stage == s})
                targets = frames if s == last and len(arrays) > 1 else []
                inputs = frames if s == 0 else []
                parts = [
                    {i: array.part(device, (rows[i], (0, width))) for i in wanted}
                    for array, wanted in ((self.kept[0], inputs), (self.kept[-1], targets))
                ]
                stages.append((s, self.stages[s], *parts))
            given = stages, dtypes, rows, width, self.batch.size, cluster.backend
            ready.append(cluster.submit(device, _operands, *given, name="weights"))
        cluster.wait(ready, "weights and micro-batches", self.patience, cancel=True)
        return ready

    def run(
        self,
        engine: Callable[["PipelineJob", list[Future[Any]]], list[DeviceDone]],
        simulated: Timeline | None,
    ) -> list[DeviceDone]:
        """By device, what its actions made; ``engine`` runs them with what was prepared."""
        cluster = self.cluster
        try:
            operands = self.prepare()
            with announced(cluster, self.topic, **self._about(simulated)):
                done = engine(self, operands)
        finally:
            for each in self.kept:
                each.remove()
        ended(cluster, self.topic)
        return done

    def _about(self, simulated: Timeline | None) -> dict[str, Any]:
        """What is announced of the run."""
        schedule = self.schedule
        predicted: dict[str, Any] = {"actions": len(schedule)}
        if simulated is not None:
            whole = simulated.makespan or 1.0
            predicted["idle"] = [each / whole for each in simulated.idle_per_device]
        return {
            "kind": "pipeline",
            "lanes": [f"device {d + 1}" for d in range(schedule.devices)],
            "facts": {"schedule": schedule.name, "micro-batches": str(schedule.microbatches)},
            "predicted": predicted,
            "workers": [self.cluster.address(d) for d in range(schedule.devices)],
        }


def _operands(
    stages: Sequence[tuple[int, Any, dict[int, Any], dict[int, Any]]],
    dtypes: Sequence[str],
    rows: Sequence[tuple[int, int]],
    width: int,
    size: int,
    backend: str,
) -> dict[int, StageKernels]:
    """By stage; micro-batches and targets come from what was kept, which can be read again."""

    def read(which: int, parts: dict[int, Any]) -> dict[int, Any]:
        dtype = dtypes[which]
        return {
            i: read_block(part, (rows[i], (0, width)), dtype, backend) for i, part in parts.items()
        }

    return {
        s: StageKernels(stage, stage.init(backend), read(0, inputs), read(-1, targets), size)
        for s, stage, inputs, targets in stages
    }
