"""A program lowered to Dask: a pinned task for each turn of a line, its turn a real dependency.

    rank 0     begin --> F0 ----> F1 ----> ...     ---->  the turn before it on the line
                | x1      | x1                        |   data: the block that one sends to another
    rank 1     begin --> F0 ----> F1 ---->            v

A task is given its device's line, the number of its turn, and the blocks that came for its frame
so far, one after the other: all else the device has. A worker that takes a dead one's place has
nothing else, and goes through the frame's earlier turns again. What moves is the whole result of a
task, so that nobody takes a part for it; what else a turn makes, a task beside it takes.

The order never rests on priorities, so Dask's task stream is the Gantt chart of the schedule.
"""

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dask.sizeof import sizeof
from distributed import Future
from distributed.protocol.serialize import register_generic

from tiledask.distributed.pipelines.job import Done, PipelineJob
from tiledask.distributed.pipelines.kernels import StageOperands, StageRunner, StagesMade, at_once
from tiledask.distributed.pipelines.paced import Arrival, Pace, perform
from tiledask.distributed.transport.meeting import meeting, of_run
from tiledask.errors import ClusterLostError
from tiledask.plan.pipelines.needs import topological_order
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline
from tiledask.plan.program.making.pipeline import KERNELS
from tiledask.plan.program.ops import Block, Op, ProgramData
from tiledask.plan.program.program import Program
from tiledask.tile.backend import aligned

__all__ = ["run_tasks"]


@dataclass
class StageBlock:
    """What a part sends: activations, or the gradient of its input."""

    array: Any
    made: float
    """When, by the scheduler's clock."""
    said: dict[str, Any] | None = None
    """What was reported of the action that made it."""


register_generic(StageBlock)
sizeof.register(StageBlock, lambda block: int(block.array.nbytes))


def run_tasks(job: PipelineJob, simulated: Timeline | None) -> Done:
    """What the actions of ``job`` made, each a task of its own."""
    cluster = job.cluster
    with meeting(cluster, job.topic, job.peers, job.patience) as (addresses, _):
        ends = _submit(job)
        with job.begun(addresses, simulated):
            cluster.wait(ends, f"{job.schedule!r}", job.timeout, cancel=True)
    heard = job.heard()
    made = cluster.gather(ends, "the run's results", job.patience, cancel=True)
    return Done([each for here in made for each in here], *heard, [])


def _submit(job: PipelineJob) -> list[Future[Any]]:
    """What each device makes beside blocks, to wait for.

    All other futures are dropped here, so that activations go as soon as they are used.
    """
    program, submit = job.program, job.cluster.submit
    # all is submitted before anything starts: the scheduler would be slow to answer meanwhile
    lines = []
    for device, operands in enumerate(job.prepare()):
        own = device, operands, job.topic, program.alone(device), job.pace
        lines.append(submit(device, _begin, job.patience, *own, name="begin"))
    before = lines.copy()
    sent: dict[_Key, Future[Any]] = {}  # by the device that it goes to
    came: dict[tuple[int, int], list[Future[Any]]] = {}  # by device and frame: all that was sent
    sums: dict[tuple[int, int], Future[Any]] = {}  # by device and stage: with the gradients so far
    ends: list[list[Future[Any]]] = [[] for _ in lines]  # by device: with an output
    for device, turns in _in_order(job):
        line, block = lines[device], _block(program, device, turns)
        blocks, summed = list[list[Future[Any]]](), list[list[Future[Any]]]()
        for part, frame in block:
            arrived = came.setdefault((device, frame), [])
            arrived += [sent.pop(key) for key in _messages("recv", device, [(part, frame)])]
            blocks.append(arrived)
            so_far = sums.get((device, part.stage)) if part.kind in "BW" else None
            summed.append([] if so_far is None else [so_far])
        # the task's result is what is sent, of a pair a list of that; if nothing is, what is made
        alone, sends = len(block) == 1, bool(_messages("send", device, block))
        given = [*chain(*blocks), *(summed[0] if alone and not sends else [])]
        name = KERNELS[block[0][0].kind] if alone else "overlapped"
        ran = submit(device, _act, line, turns[0], before[device], *given, name=name)
        before[device] = ran
        for n, (part, frame) in enumerate(block):
            hand = made = ran
            for key in _messages("send", device, [(part, frame)]):
                if not alone:
                    hand = submit(device, operator.getitem, ran, n, name="hand", beside=True)
                sent[key], job.sent[hand.key] = hand, (TRANSFER, part.stage, frame)
            output = part.kind == "F" and part.stage == job.schedule.stages - 1
            if (output or part.kind in "BW") and (sends or not alone):
                name, given = "loss" if output else "gradients", [*blocks[n], *summed[n]]
                made = submit(device, _beside, line, turns[n], ran, *given, name=name, beside=True)
            if output:
                ends[device].append(made)
            elif part.kind in "BW":
                sums[device, part.stage] = made
    for device, stage in sorted(sums):
        ends[device].append(sums[device, stage])
    return [
        submit(device, _on_host, *made, name="result", beside=True)
        for device, made in enumerate(ends)
        if made
    ]


_Key = tuple[int, str, int]
"""Device, buffer, frame."""
_Block = list[tuple[Block, int]]
"""Parts and their frames that are done at once."""


def _block(program: Program, rank: int, turns: Sequence[int]) -> _Block:
    order, blocks = program.orders[rank], program.role(rank).blocks
    return [(blocks[order[n].block], order[n].microbatch) for n in turns]


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


def _messages(kind: str, rank: int, block: _Block) -> list[_Key]:
    """By where they go."""
    return [
        (op["peer"] if kind == "send" else rank, op.buffer, frame)
        for part, frame in block
        for op in part.ops
        if op.name == kind
    ]


# -- on the workers -------------------------------------------------------------------------------


class TaskLine(StageRunner):
    """A device's line, and what its frames' turns have left for the turns to come."""

    def __init__(
        self,
        device: int,
        operands: dict[int, StageOperands],
        topic: str,
        program: ProgramData,
        pace: Pace,
    ) -> None:
        self.own = device, operands, topic, program, pace
        self.blocks: dict[int, StageBlock] = {}
        """By turn: what came for it."""
        self.sends: dict[int, Any] = {}
        """By turn: what it sends, until its task is over."""
        self.beside: dict[int, StagesMade] = {}
        """By turn: what it made beside buffers, until somebody takes it."""
        super().__init__(None, program, operands)
        self._ways: dict[int, list[int]] = {}
        for turn, step in enumerate(self.order):
            self._ways.setdefault(step.microbatch, []).append(turn)
        self._reached: dict[int, int] = {}
        """By frame: the last of its turns that was gone through."""
        self._turn = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskLine, self.own  # what its frames have left can be made again

    def arrived(self, turn: int, given: Sequence[Any]) -> tuple[dict[int, StageBlock], Any]:
        """(by turn, the blocks of a frame up to a turn; the rest of what was given)."""
        came = {}
        for each in self._until(turn):
            block = self.role.blocks[self.order[each].block]
            if any(op.name == "recv" for op in block.ops):
                came[each], *given = given
                came[each].array = aligned(came[each].array)
        return came, given

    def ready(self, turn: int) -> None:
        """Have the frame as this turn finds it: if it is not here, by its turns up to then."""
        frame, earlier = self.order[turn].microbatch, self._until(turn)[:-1]
        if self._reached.get(frame) != (earlier[-1] if earlier else None):
            self._envs.pop(frame, None)
            for each in earlier:
                self.go(each)
                del self.beside[each]

    def go(self, turn: int) -> None:
        """Go through a turn."""
        name, frame, _ = self.order[turn]
        self._turn, self._reached[frame] = turn, turn
        self._go(turn, self._bound[turn])
        self._leave(turn)
        stage = self.role.blocks[name].stage
        self.beside[turn] = self.kernels[stage].taken(stage)

    def again(self, turn: int, came: dict[int, StageBlock]) -> StagesMade:
        """What a turn made beside buffers on a worker that is gone."""
        other = TaskLine(*self.own)
        other.blocks = came
        other.ready(turn)
        other.go(turn)
        return other.beside[turn]

    def _until(self, turn: int) -> list[int]:
        way = self._ways[self.order[turn].microbatch]
        return way[: way.index(turn) + 1]

    def _message(self, op: Op, x: int) -> Callable[[list[Any]], None]:
        def send(env: list[Any]) -> None:
            self.sends[self._turn] = env[x]

        def take(env: list[Any]) -> None:
            env[x] = self.blocks[self._turn].array

        return send if op.name == "send" else take


sizeof.register(TaskLine, lambda line: int(sizeof(line.own[1])))


def _begin(seconds: float, device: int, operands: Any, topic: str, *own: Any) -> TaskLine:
    """The device's line, at the word to begin. A worker that was replaced meanwhile missed it: the
    others have begun."""
    line = TaskLine(device, operands, topic, *own)
    try:
        here = of_run(topic, device)
    except ClusterLostError:
        return line
    here.wait_for_start(time.monotonic() + seconds)
    return line


def _act(line: TaskLine, first: int, before: Any, *given: Any) -> Any:
    """What a turn sends, or made if it sends nothing; of a pair a list of what is sent.

    ``before`` only makes it wait for its turn."""
    device, _, topic, program, pace = line.own
    turns = [first, first + 1] if program.orders[0][first].paired else [first]
    arrivals: list[Arrival | None] = []
    for turn in turns:
        came, given = line.arrived(turn, given)
        line.blocks |= came
        block = came.get(turn)
        arrivals.append(None if block is None else Arrival(block.made, said=block.said))
        line.ready(turn)

    def work() -> None:
        for turn in turns:
            line.go(turn)

    end, said = perform(topic, device, pace, [*map(line.action, turns)], arrivals, work)
    line.blocks.clear()
    blocks = [
        StageBlock(line.sends.pop(turn), end, event) if turn in line.sends else None
        for turn, event in zip(turns, said, strict=True)
    ]
    if len(turns) > 1:
        return blocks
    return blocks[0] or line.beside.pop(first).after(*given)


def _beside(line: TaskLine, turn: int, ran: Any, *given: Any) -> StagesMade:
    """What a turn that ``ran`` made beside what it sent."""
    came, before = line.arrived(turn, given)
    made = line.beside.pop(turn, None)
    return (line.again(turn, came) if made is None else made).after(*before)


def _on_host(*made: StagesMade) -> list[StagesMade]:
    return [each.host() for each in made]
