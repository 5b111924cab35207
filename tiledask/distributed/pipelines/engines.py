"""The two engines of a schedule: each device one task that loops, or each action a Dask task.

    "loop"     rank 0     [F0]post[F1]post.........take[B0]      no message to the scheduler, and
               rank 1         take[F0][B0]post take[F1][B1]      none from it, between two actions

    "tasks"    rank 0     begin --> F0 ----> F1 ----> ...    ---->  the action before it there
                                     | x1     | x1             |    the block that one sends to
               rank 1     begin ---> F0 ----> F1 ---->         v    another device

All that a device has lies in the run's meeting. A worker that takes a dead one's place has none of
it and says so; then the schedule runs again. The order of tasks never rests on priorities, so
Dask's task stream is the Gantt chart of the schedule.
"""

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from dask.sizeof import sizeof
from distributed import Future, get_worker
from distributed.protocol.serialize import register_generic

from tiledask.distributed.pipelines.job import DeviceDone, PipelineJob
from tiledask.distributed.pipelines.kernels import StageKernels, StageRunner, at_once
from tiledask.distributed.pipelines.paced import Arrival, perform
from tiledask.distributed.transport.meeting import Meeting, of_run
from tiledask.errors import ClusterLostError
from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.needs import topological_order
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.pipelines.timeline import TRANSFER, Span
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import Op
from tiledask.plan.program.program import Program
from tiledask.tile.backend import aligned

__all__ = ["ENGINES"]


def submit_loops(job: PipelineJob) -> list[Future[DeviceDone]]:
    """A task for each device."""
    return [
        job.cluster.submit(device, _loop, job.topic, device, *given, name="pipeline_loop")
        for device, given in enumerate(_given(job))
    ]


def submit_tasks(job: PipelineJob) -> list[Future[DeviceDone]]:
    """A task for each action, or two that are done at once; and for each device what it made.

    All other futures are dropped here, so that activations go as soon as they are used.
    """
    program, submit = job.program, job.cluster.submit
    # all is submitted before anything starts: the scheduler would be slow to answer meanwhile
    before = [
        submit(device, _begin, job.topic, device, *given, name="begin")
        for device, given in enumerate(_given(job))
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


ENGINES = {"tasks": submit_tasks, "loop": submit_loops}
"""By name, what submits a job: futures of what every device made."""


def _given(job: PipelineJob) -> Iterator[tuple[Any, ...]]:
    """By device, what its line is made of."""
    seconds = job.patience + job.timeout  # the client's own limit comes first
    for operands in job.prepare():
        yield job.program, job.pace, seconds, operands


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


class _DeviceLine(StageRunner):
    """All actions of a device, in their order and their time."""

    def __init__(
        self,
        here: Meeting,
        program: Program,
        pace: PipelineCosts,
        seconds: float,
        operands: dict[int, StageKernels],
    ) -> None:
        self.here, self.worker, self.pace = here, get_worker(), pace
        self.deadline = time.monotonic() + seconds
        self.turn, self.end = 0, 0.0
        """The turn under way; the end of what was done last."""
        self.spans: list[Span] = []
        """Of all that was done."""
        self.late = 0.0
        """The longest that an action took beyond its time."""
        self.arrivals: list[Arrival | None] = []
        """Of the blocks that what is under way uses."""
        super().__init__(SimpleNamespace(index=here.device), program, operands)

    def at_once(self, turns: Sequence[int]) -> None:
        """Do the actions of turns that are done at once, usually one."""
        here = self.here
        here.check()
        actions, self.arrivals = [self.action(turn) for turn in turns], []
        for turn in turns:
            self.arrivals.append(None)
            self._some(turn, kind="recv")
        work = partial(self._some, *turns, kind="")
        given = self.pace, actions, self.arrivals, work
        self.end, spans, late = perform(here.run, here.device, *given)
        self.spans += spans
        self.late = max(self.late, late)
        self._some(*turns, kind="send")
        for turn in turns:
            self._leave(turn)

    def done(self) -> DeviceDone:
        """What it brings back."""
        return DeviceDone(self.made(), self.spans, self.late, self.here.moves)

    def _some(self, *turns: int, kind: str) -> None:
        """Do the messages of a kind; "": the kernels."""
        for self.turn in turns:
            calls = self._bound[self.turn]
            some = [each for each in calls if kind == ("" if each[0].is_kernel else each[0].name)]
            self._go(self.turn, some)


class _LoopLine(_DeviceLine):
    """Blocks are posted from worker to worker."""

    def run(self) -> bool:
        for turns in at_once(self.order):
            self.at_once(turns)
        return True

    def _message(self, op: Op, x: int) -> Callable[[list[Any]], None]:
        here, peer, name = self.here, op["peer"], op.buffer
        if op.name == "send":
            return lambda env: here.post(
                self.worker, peer, self.action(self.turn), env[x], self.end
            )
        makers = {
            frame: Action(part.kind, part.stage, frame)
            for part, buffer, frame in self.program.sent(peer, self.index)
            if buffer == name
        }

        def take(env: list[Any]) -> None:
            block, made, sent, there = here.take(makers[self.microbatch], self.deadline)
            self.arrivals[-1] = Arrival(made, (sent, there))
            env[x] = aligned(block)

        return take


@dataclass
class _StageBlock:
    """What an action sends: activations, or the gradient of its input."""

    array: Any
    made: float
    """When, by the scheduler's clock."""


register_generic(_StageBlock)
sizeof.register(_StageBlock, lambda block: int(block.array.nbytes))


class _TaskLine(_DeviceLine):
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
            self.arrivals[-1] = Arrival(block.made)
            env[x] = aligned(block.array)

        return send if op.name == "send" else take


def _loop(run: str, device: int, *given: Any) -> DeviceDone:
    line = _LoopLine(of_run(run, device), *given)
    line.here.wait_for_start(line.deadline)
    line.run()
    return line.done()


def _begin(run: str, device: int, *given: Any) -> None:
    here = of_run(run, device)
    here.door = _TaskLine(here, *given)
    here.wait_for_start(here.door.deadline)


def _act(run: str, device: int, turns: Sequence[int], before: Any, *blocks: Any) -> Any:
    """What is sent, of two actions at once a list; ``before`` only makes it wait for its turn."""
    sent = of_run(run, device).door.act(turns, blocks)
    return sent if len(turns) > 1 else sent[0]


def _ended(run: str, device: int, last: Any) -> DeviceDone:
    done: DeviceDone = of_run(run, device).door.done()
    return done
