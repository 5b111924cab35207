"""One run of a schedule by an engine: each device a task that loops, or each action a Dask task.

    "loop"     rank 0     [F0]send[F1]send.........recv[B0]      a rank function: no message to the
               rank 1         recv[F0][B0]send recv[F1][B1]      scheduler between two actions

    "tasks"    rank 0     begin --> F0 ----> F1 ----> ...    ---->  the action before it there
                                     | x1     | x1             |    the block that one sends to
               rank 1     begin ---> F0 ----> F1 ---->         v    another device

What a device has lies in its worker while the run lasts. A worker that takes a dead one's place has
none of it and says so; then the schedule runs again. The order of tasks never rests on priorities,
so Dask's task stream is the Gantt chart of the schedule.
"""

import operator
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dask.sizeof import sizeof
from dask.typing import Key
from distributed import Future
from distributed.protocol.serialize import register_generic

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.clocks import now, time_there
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.pipelines.device import (
    Arrival,
    DeviceDone,
    PacedRunner,
    StageKernels,
    at_once,
    sleep_until,
)
from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.transport.endpoint import lost
from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import TRANSFER
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import Op, action_of
from tiledask.plan.program.program import Program

__all__ = ["ENGINES", "PipelineJob"]

LEAD = 0.05
"""Seconds from the word to begin until all do: the word must have reached every device."""
PATIENCE = 20.0
"""Seconds that setting up and reporting may take even if the run's own timeout is shorter."""


@dataclass(frozen=True)
class PipelineJob:
    """One run of a schedule."""

    schedule: Schedule
    program: Program
    cluster: Cluster
    pace: PipelineCosts
    timeout: float
    """Seconds that the actions may take, all together."""
    topic: str = field(default_factory=lambda: f"tiledask-run-{uuid.uuid4().hex}")
    """The run's name, and the topic of its events."""
    sent: dict[Key, tuple[str, int, int]] = field(default_factory=dict)
    """Dask's name of a block -> what a span of its transfer says: kind, stage, micro-batch."""

    @property
    def patience(self) -> float:
        """Seconds for what comes before and after the actions; not less because those are short."""
        return max(self.timeout, PATIENCE)


def run_loops(job: PipelineJob, kernels: Sequence[Future[Any]]) -> list[DeviceDone]:
    """Each device is a rank that goes through its order; blocks are messages between ranks."""
    mesh = Mesh(job.cluster, (job.program.ranks,), slots=range(job.program.ranks))
    given = job.topic, job.program, job.pace
    options: dict[str, Any] = {"timeout": job.timeout, "transport": "posts"}
    return run_ranks(_loop, mesh, *given, per_rank=kernels, **options).results


def run_tasks(job: PipelineJob, kernels: Sequence[Future[Any]]) -> list[DeviceDone]:
    """Each action is a task, and blocks are their results."""
    cluster, topic, patience = job.cluster, job.topic, job.patience
    try:
        cluster.run(_open, topic, timeout=patience)
        ends = _submitted(job, kernels)
        cluster.run(_start, topic, time_there(cluster, patience) + LEAD, timeout=patience)
        return cluster.gather(ends, f"{job.schedule!r}", job.timeout, cancel=True)
    finally:
        with suppress(Exception):  # of a cluster that is gone: nobody is left there
            cluster.run(_close, topic, timeout=10.0)


ENGINES: dict[str, Callable[[PipelineJob, Sequence[Future[Any]]], list[DeviceDone]]] = {
    "tasks": run_tasks,
    "loop": run_loops,
}
"""By name, what runs a job with futures of every device's `StageKernels`."""


# -- tasks -----------------------------------------------------------------------------------------


def _submitted(job: PipelineJob, kernels: Sequence[Future[Any]]) -> list[Future[DeviceDone]]:
    """A task for each action, or two that are done at once; and for each device what it made.

    All other futures are dropped here, so that activations go as soon as they are used.
    """
    program, submit, topic = job.program, job.cluster.submit, job.topic
    # all is submitted before anything starts: the scheduler would be slow to answer meanwhile.
    # the client's own limit comes before theirs
    given = job.patience + job.timeout, program, job.pace
    before = [
        submit(device, _begin, topic, device, *given, mine, name="begin")
        for device, mine in enumerate(kernels)
    ]
    sent: dict[tuple[int, str, int], Future[Any]] = {}  # device it goes to, buffer, micro-batch
    for device, turns in _in_order(job):
        blocks, order = program.role(device).blocks, program.orders[device]
        steps = [order[n] for n in turns]
        came = [
            sent.pop((device, op.buffer, i))
            for block, i, _ in steps
            for op in blocks[block]
            if op.name == "recv"
        ]
        name = KERNELS[action_of(steps[0].block)[0]] if len(steps) == 1 else "overlapped"
        ran = submit(device, _act, topic, device, turns, before[device], *came, name=name)
        before[device] = ran
        for n, (block, i, _) in enumerate(steps):
            for op in (op for op in blocks[block] if op.name == "send"):
                hand = ran
                if len(steps) > 1:
                    hand = submit(device, operator.getitem, ran, n, name="hand", beside=True)
                sent[op["peer"], op.buffer, i] = hand
                job.sent[hand.key] = TRANSFER, action_of(block)[1], i
    return [
        submit(device, _ended, topic, device, last, name="result", beside=True)
        for device, last in enumerate(before)
    ]


def _in_order(job: PipelineJob) -> Iterator[tuple[int, list[int]]]:
    """A device and its turns that are done at once, each after what it receives from."""
    for n in job.schedule.steps:
        device = int(job.schedule.device[n])
        turn = n - int(job.schedule.turns[device])
        yield device, [turn, turn + 1] if job.schedule.paired[n] else [turn]


@dataclass
class _StageBlock:
    """What an action sends: activations, or the gradient of its input."""

    array: Any
    made: float
    """When, by the scheduler's clock."""


register_generic(_StageBlock)
sizeof.register(_StageBlock, lambda block: int(block.array.nbytes))


class TaskRunner(PacedRunner):
    """Blocks are results of tasks."""

    blocks: Iterator[_StageBlock] = iter(())
    """What the task was given."""
    next = 0
    """The turn that was not begun."""

    def act(self, turns: Sequence[int], blocks: Sequence[_StageBlock]) -> list[_StageBlock | None]:
        """What each of a task's actions sends. Dask runs a task again whose result a lost worker
        had: what it used is gone here, so the schedule runs again."""
        if turns[0] != self.next:
            raise lost(self.index, "what it had sent is asked for again")
        self.next = turns[-1] + 1
        self.blocks, self.sends = iter(blocks), dict[int, Any]()
        self.do(turns)
        sends, self.sends = self.sends, {}
        return [_StageBlock(sends[t], self.end) if t in sends else None for t in turns]

    def send(self, op: Op, array: Any) -> None:
        self.sends[self.turn] = array

    def receive(self, op: Op) -> Arrival:
        block = next(self.blocks)
        return Arrival(block.array, block.made)


@dataclass
class _Run:
    """What a worker has of a run while that lasts; one that took another's place has none."""

    started: threading.Event = field(default_factory=threading.Event)
    moment: float = 0.0
    """At which it begins, by the scheduler's clock."""
    runner: Any = None


_runs: dict[str, _Run] = {}
"""By topic."""


def _run_of(topic: str, device: int) -> _Run:
    if topic not in _runs:
        raise lost(device)
    return _runs[topic]


def _open(topic: str) -> None:
    _runs[topic] = _Run()


def _start(topic: str, moment: float) -> None:
    """Let the tasks of a run begin at a moment."""
    if topic in _runs:
        _runs[topic].moment = moment
        _runs[topic].started.set()


def _close(topic: str) -> None:
    """Forget a run; a task that still waits for its beginning ends."""
    if topic in _runs:
        _runs.pop(topic).started.set()


def _begin(topic: str, device: int, seconds: float, *given: Any) -> None:
    run = _run_of(topic, device)
    run.runner = TaskRunner(topic, device, *given)
    if run.started.wait(seconds):
        sleep_until(run.moment)


def _act(topic: str, device: int, turns: Sequence[int], before: Any, *blocks: Any) -> Any:
    """What is sent, of two actions at once a list; ``before`` only makes it wait for its turn."""
    sent = _run_of(topic, device).runner.act(turns, blocks)
    return sent if len(turns) > 1 else sent[0]


def _ended(topic: str, device: int, last: Any) -> DeviceDone:
    done: DeviceDone = _run_of(topic, device).runner.done()
    return done


# -- loops -----------------------------------------------------------------------------------------


class _LoopRunner(PacedRunner):
    """Blocks are messages, which say when they were made and sent."""

    def __init__(
        self, rank: Rank, topic: str, program: Program, pace: Any, kernels: dict[int, StageKernels]
    ) -> None:
        self.port = rank.transport.port(tuple(range(rank.ranks)), "blocks")
        self.early: dict[tuple[str, int], Arrival] = {}
        """By buffer and micro-batch, of what came and was not used."""
        super().__init__(topic, rank.index, program, pace, kernels)

    def run(self) -> bool:
        port = self.port
        start = CollectiveCall(self.index, "start", port.members, 0, "", ())
        sleep_until(port.meet(start, lambda: now() + LEAD))
        for turns in at_once(self.order):
            action = str(self.action(turns[0]))
            begun = port.enter(CollectiveCall(self.index, "step", port.members, 0, action, ()))
            self.do(turns)
            port.leave(begun)
        return True

    def send(self, op: Op, array: Any) -> None:
        self.port.put(op["peer"], [array], (self.end, now()), lend=True)

    def receive(self, op: Op) -> Arrival:
        """Messages come in the order of their sender; what is early is kept."""
        peer, wanted = op["peer"], (op.buffer, self.microbatch)
        coming = self._arriving.setdefault(peer, self.program.sent(peer, self.index))
        while wanted not in self.early:
            buffer, microbatch = next(coming)
            (message,) = self.port.get((peer,))
            self.moves.append((peer, message.nbytes))
            made, left = message.call
            self.early[buffer, microbatch] = Arrival(message.parts[0], made, (left, message.there))
        return self.early.pop(wanted)


def _loop(rank: Rank, *given: Any) -> DeviceDone:
    """A rank's way through its order."""
    runner = _LoopRunner(rank, *given)
    runner.run()
    return runner.done()
