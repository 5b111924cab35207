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
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask.sizeof import sizeof
from dask.typing import Key
from distributed import Future
from distributed.protocol.serialize import register_generic

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.clocks import now, time_there
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.progress import announced, ended
from tiledask.distributed.pipelines.kernels import at_once, operands, shares
from tiledask.distributed.pipelines.paced import Arrival, DeviceDone, PacedLine, sleep_until
from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.transport.endpoint import endpoint_of, opened
from tiledask.distributed.transport.transport import Port
from tiledask.errors import ClusterLostError
from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import topological_order
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import Op
from tiledask.plan.program.program import Program
from tiledask.tile.backend import aligned

__all__ = ["ENGINES", "PipelineJob"]

LEAD = 0.05
"""Seconds from the word to begin until all do: the word must have reached every device."""
PATIENCE = 20.0
"""Seconds that setting up and reporting may take even if the run's own timeout is shorter."""


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
    topic: str = field(default_factory=lambda: f"tiledask-run-{uuid.uuid4().hex}", init=False)
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
        given = shares(self.program, self.stages, self.batch, self.target, cluster.backend)
        ready = [
            cluster.submit(device, operands, *mine, name="weights")
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
        }


def run_loops(job: PipelineJob, operands: list[Future[Any]]) -> list[DeviceDone]:
    """Each device is a rank that goes through its line; blocks are messages between ranks."""
    mesh = Mesh(job.cluster, (job.program.ranks,), slots=range(job.program.ranks))
    given = job.topic, job.program, job.pace
    done = run_ranks(_loop, mesh, *given, per_rank=operands, timeout=job.timeout, transport="posts")
    return done.results


def run_tasks(job: PipelineJob, operands: list[Future[Any]]) -> list[DeviceDone]:
    """Each action is a task, and blocks are their results."""
    cluster, topic, patience = job.cluster, job.topic, job.patience
    with opened(cluster, topic, range(job.program.ranks), patience):
        ends = _submitted(job, operands)
        cluster.run(_start, topic, time_there(cluster, patience) + LEAD, timeout=patience)
        return cluster.gather(ends, f"{job.schedule!r}", job.timeout, cancel=True)


ENGINES = {"tasks": run_tasks, "loop": run_loops}
"""By name, what runs a job: it returns what every device made."""


def _submitted(job: PipelineJob, operands: list[Future[Any]]) -> list[Future[DeviceDone]]:
    """A task for each action, or two that are done at once; and for each device what it made.

    All other futures are dropped here, so that activations go as soon as they are used.
    """
    program, submit = job.program, job.cluster.submit
    seconds = job.patience + job.timeout  # the client's own limit comes first
    # all is submitted before anything starts: the scheduler would be slow to answer meanwhile
    before = [
        submit(
            device, _begin, job.topic, device, job.program, job.pace, seconds, mine, name="begin"
        )
        for device, mine in enumerate(operands)
    ]
    sent: dict[tuple[int, str, int], Future[Any]] = {}  # device that it goes to, buffer, frame
    for device, turns in _in_order(job):
        order, blocks = program.orders[device], program.role(device).blocks
        block = [(blocks[order[n].block], order[n].microbatch) for n in turns]
        came = [
            sent.pop((device, op.buffer, frame))
            for part, frame in block
            for op in part.ops
            if op.name == "recv"
        ]
        name = KERNELS[block[0][0].kind] if len(block) == 1 else "overlapped"
        ran = submit(device, _act, job.topic, device, turns, before[device], *came, name=name)
        before[device] = ran
        for n, (part, frame) in enumerate(block):
            for op in part.ops:
                if op.name == "send":
                    hand = ran
                    if len(block) > 1:
                        hand = submit(device, operator.getitem, ran, n, name="hand", beside=True)
                    sent[op["peer"], op.buffer, frame] = hand
                    job.sent[hand.key] = TRANSFER, part.stage, frame
    return [
        submit(device, _ended, job.topic, device, last, name="result", beside=True)
        for device, last in enumerate(before)
    ]


def _in_order(job: PipelineJob) -> Iterator[tuple[int, list[int]]]:
    """A device and its turns that are done at once, each after what it receives from."""
    blocks = [iter(at_once(order)) for order in job.program.orders]
    begun = [0] * len(blocks)
    for action in topological_order(job.schedule):
        device = job.schedule.holder(action.stage, action.microbatch)
        if not begun[device]:
            turns = next(blocks[device])
            begun[device] = len(turns)
            yield device, turns
        begun[device] -= 1


# -- on the workers -------------------------------------------------------------------------------


class _LoopLine(PacedLine):
    """Blocks are messages, which say when they were made and sent."""

    def __init__(self, port: Port, topic: str, *given: Any) -> None:
        self.port = port
        self.early: dict[tuple[str, int], Arrival] = {}
        """By buffer and micro-batch, of what came and was not used."""
        super().__init__(topic, port.transport.box, *given)

    def run(self) -> bool:
        for turns in at_once(self.order):
            label = str(self.action(turns[0]))
            step = CollectiveCall(self.index, "step", self.port.members, 0, label, ())
            begun = self.port.enter(step)
            self.at_once(turns)
            self.port.leave(begun)
        return True

    def _message(self, op: Op, x: int) -> Callable[[list[Any]], None]:
        peer, name, port = op["peer"], op.buffer, self.port
        if op.name == "send":
            return lambda env: port.put(peer, [env[x]], (self.end, now()), lend=True)

        def take(env: list[Any]) -> None:
            """Messages come in the order of their sender; what is early is kept."""
            coming = self._arriving.setdefault(peer, self.program.sent(peer, self.index))
            while env[x] is None:
                _, buffer, microbatch = next(coming)
                (message,) = port.get((peer,))
                self.moves.append((peer, message.nbytes))
                made, sent = message.call
                self.early[buffer, microbatch] = made, ((sent, message.there),)
                self._env(microbatch)[self._slots[buffer]] = aligned(message.parts[0])
            self.arrivals[self.turn] = self.early.pop((name, self.microbatch))

        return take


@dataclass
class _StageBlock:
    """What an action sends: activations, or the gradient of its input."""

    array: Any
    made: float
    """When, by the scheduler's clock."""


register_generic(_StageBlock)
sizeof.register(_StageBlock, lambda block: int(block.array.nbytes))


class _TaskLine(PacedLine):
    """Blocks are results of tasks."""

    blocks: Iterator[_StageBlock]
    """What the task was given."""
    sends: dict[int, Any]
    """By turn, what it sends."""
    begun = 0
    """Turns that were begun."""

    def act(self, turns: Sequence[int], blocks: Sequence[_StageBlock]) -> list[_StageBlock | None]:
        """What each of a task's actions sends. Dask runs a task again whose result a lost worker
        had: what it used is gone here, and all is begun anew."""
        if turns[0] < self.begun:
            raise ClusterLostError(f"a worker was lost with what rank {self.index} sent it")
        self.begun = turns[-1] + 1
        self.blocks, self.sends = iter(blocks), {}
        self.at_once(turns)
        sends, self.sends = self.sends, {}
        return [_StageBlock(sends[t], self.end) if t in sends else None for t in turns]

    def _message(self, op: Op, x: int) -> Callable[[list[Any]], None]:
        def send(env: list[Any]) -> None:
            self.sends[self.turn] = env[x]

        def take(env: list[Any]) -> None:
            block = next(self.blocks)
            self.arrivals[self.turn] = block.made, ()
            env[x] = aligned(block.array)

        return send if op.name == "send" else take


def _loop(rank: Rank, topic: str, *given: Any) -> DeviceDone:
    """A rank's way through its line."""
    port = rank.transport.port(tuple(range(rank.ranks)), "blocks")
    line = _LoopLine(port, topic, *given)
    start = CollectiveCall(rank.index, "start", port.members, 0, "", ())
    sleep_until(port.meet(start, lambda: now() + LEAD))
    line.run()
    return line.done()


def _start(run: str, moment: float) -> None:
    """Let the tasks of a run begin at a moment of the scheduler's clock."""
    with suppress(ClusterLostError):  # of a worker that is no device
        endpoint_of(run, 0).put("start", moment)


def _begin(run: str, device: int, program: Program, pace: Any, seconds: float, mine: Any) -> None:
    here = endpoint_of(run, device)
    here.local = _TaskLine(run, here, program, pace, mine)
    if here.wait(None, time.monotonic() + seconds, ["start"]):
        sleep_until(here.parcels["start"])


def _act(run: str, device: int, turns: Sequence[int], before: Any, *blocks: Any) -> Any:
    """What is sent, of two actions at once a list; ``before`` only makes it wait for its turn."""
    sent = endpoint_of(run, device).local.act(turns, blocks)
    return sent if len(turns) > 1 else sent[0]


def _ended(run: str, device: int, last: Any) -> DeviceDone:
    done: DeviceDone = endpoint_of(run, device).local.done()
    return done
