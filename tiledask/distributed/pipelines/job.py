"""One run of a schedule: who does what next, what it starts from, and what was heard of it."""

import time
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
from tiledask.distributed.pipelines.kernels import StageOperands, StagesMade
from tiledask.distributed.pipelines.paced import Pace
from tiledask.distributed.transport.meeting import begin, meeting
from tiledask.errors import ClusterLostError, DeadlineError
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Span, Timeline
from tiledask.plan.products.placement import split
from tiledask.plan.program.program import Program

__all__ = ["JobDone", "PipelineJob"]

SILENCE = 5.0
"""Seconds without a report, all work being done, after which one is not waited for any more."""
PATIENCE = 20.0
"""Seconds that setting up and reporting may take even if the run's own timeout is shorter."""


def _topic() -> str:
    return f"tiledask-run-{uuid.uuid4().hex}"


class JobDone(NamedTuple):
    """What a run brings back."""

    made: list[StagesMade]
    """By every stage, on every device in their order."""
    spans: list[Span]
    late: float
    moves: list[tuple[int, int, int]]
    """(source, destination, bytes) of what went past Dask."""


@dataclass
class PipelineJob:
    """One run."""

    schedule: Schedule
    program: Program
    stages: Sequence[Any]
    batch: np.ndarray
    target: np.ndarray | None
    cluster: Cluster
    pace: Pace
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
    def peers(self) -> list[set[int]]:
        """The devices with which each device exchanges blocks."""
        found: list[set[int]] = [set() for _ in range(self.program.ranks)]
        for source, to, _ in self.messages:
            found[source].add(to)
            found[to].add(source)
        return found

    @property
    def patience(self) -> float:
        """Seconds for what comes before and after the actions; not less because those are short."""
        return max(self.timeout, PATIENCE)

    def prepare(self) -> list[Future[Any]]:
        """By device, what its stages work with (`StageOperands` by stage), in place there."""
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
        engine: Callable[["PipelineJob"], list[Future[Any]]],
        simulated: Timeline | None,
    ) -> JobDone:
        """What the actions made, submitted by ``engine``, and when they ran."""
        cluster = self.cluster
        try:
            with meeting(cluster, self.topic, self.peers, self.patience) as (addresses, _):
                ends = engine(self)
                with announced(cluster, self.topic, **self._about(addresses, simulated)):
                    begin(cluster, self.topic, self.patience)
                    parts = cluster.gather(ends, f"{self.schedule!r}", self.timeout, cancel=True)
        finally:
            for each in self.kept:
                each.remove()
        moves = [(source, to, n) for to, (_, came) in enumerate(parts) for source, n in came]
        return JobDone([each for made, _ in parts for each in made], *self.heard(), moves)

    def _about(self, addresses: Sequence[str], simulated: Timeline | None) -> dict[str, Any]:
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
            "workers": list(addresses),
        }

    def heard(self) -> tuple[list[Span], float]:
        """(every action and the blocks that it waited for, the longest overrun), once all have
        been reported; they are done already."""
        deadline = time.monotonic() + self.patience
        known, since = 0, time.monotonic()
        while True:
            events = self.cluster.events(self.topic)
            ran = {tuple(e["spans"][0][1:4]): e for e in events}
            if len(ran) == len(self.schedule):
                ended(self.cluster, self.topic)
                spans: list[Span] = [tuple(span) for e in ran.values() for span in e["spans"]]
                return spans, max(e["late"] for e in ran.values())
            if len(ran) > known:
                known, since = len(ran), time.monotonic()
            if time.monotonic() > since + SILENCE:
                raise ClusterLostError(
                    f"{len(ran)} of {len(self.schedule)} actions reported when they ran, and then "
                    f"none for {SILENCE:g} s after all were done: a worker died before it did. Run "
                    f"the schedule again"
                )
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"{len(ran)} of {len(self.schedule)} actions reported when they ran within "
                    f"{self.patience:g} s after all were done; run the schedule again"
                )
            time.sleep(0.01)


def _operands(
    stages: Sequence[tuple[int, Any, dict[int, Any], dict[int, Any]]],
    dtypes: Sequence[str],
    rows: Sequence[tuple[int, int]],
    width: int,
    size: int,
    backend: str,
) -> dict[int, StageOperands]:
    """By stage; micro-batches and targets come from what was kept, which can be read again."""

    def read(which: int, parts: dict[int, Any]) -> dict[int, Any]:
        dtype = dtypes[which]
        return {
            i: read_block(part, (rows[i], (0, width)), dtype, backend) for i, part in parts.items()
        }

    return {
        s: StageOperands(stage, stage.init(backend), read(0, inputs), read(-1, targets), size)
        for s, stage, inputs, targets in stages
    }
