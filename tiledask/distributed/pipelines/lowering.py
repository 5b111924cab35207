"""A program lowered to Dask: a pinned task for each part and frame, its turn a real dependency.

    device 0   begin --> F0 ----> F1 ----> ...     ---->  the part before it on the line
                | x1      | x1                        |   data: what its frame's parts have written
    device 1   begin --> F0 ----> F1 ---->            v   and others send it ("hand" tasks)

The order never rests on priorities, so Dask's task stream is the Gantt chart of the schedule.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from dask.sizeof import sizeof
from distributed import Future
from distributed.protocol.serialize import register_generic

from tiledask.distributed.pipelines.job import Done, PipelineJob
from tiledask.distributed.pipelines.kernels import StageKernels, StagesMade
from tiledask.distributed.pipelines.paced import Arrival, Paced, action_of, perform
from tiledask.distributed.transport.meeting import meeting, of_run
from tiledask.errors import ClusterLostError
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline
from tiledask.plan.program.instructions import Do, ProgramPart, Recv, Send
from tiledask.plan.program.making.of_schedule import KERNELS
from tiledask.plan.program.program import Program
from tiledask.tile.backend import aligned

__all__ = ["run_tasks"]


@dataclass
class StageBlock:
    """What a part sends: activations, or the gradient of its input."""

    array: Any
    made: float
    """When, by the scheduler's clock."""


register_generic(StageBlock)


def _bytes(block: StageBlock) -> int:
    return int(block.array.nbytes)


sizeof.register(StageBlock, _bytes)


def run_tasks(job: PipelineJob, simulated: Timeline | None) -> Done:
    """What the actions of ``job`` made, each a task of its own."""
    cluster = job.cluster
    with meeting(cluster, job.topic, job.peers, job.patience) as addresses:
        ends = _submit(job)
        job.begin(addresses, simulated)
        cluster.wait(ends, f"{job.schedule!r}", job.timeout, cancel=True)
    heard = job.heard()
    return Done(cluster.gather(ends, "the run's results", job.patience, cancel=True), *heard, [])


def _submit(job: PipelineJob) -> list[Future[Any]]:
    """Those of StagesMade to wait for.

    All other futures are dropped here, so that activations go as soon as they are used.
    """
    operands, submit = job.prepare(), job.cluster.submit
    # all is submitted before anything starts: the scheduler would be slow to answer meanwhile
    before = {
        d: submit(d, _begin, job.topic, d, job.patience, name="begin")
        for d in range(job.program.ranks)
    }
    wrote: dict[_Key, Future[Any]] = {}  # a task's whole result: stays on its device
    sent: dict[_Key, Future[Any]] = {}  # by the device that it goes to
    sums: dict[tuple[int, int], Future[Any]] = {}  # (device, stage): its result with the gradients
    ends: list[Future[Any]] = []
    for device, block in _in_order(job.program):
        work: list[Any] = []
        for part, frame in block:
            reads = [n for each in part.instructions if isinstance(each, Do) for n in each.reads]
            keys = [(device, name, frame) for name in reads]
            own = list({wrote[key].key: wrote[key] for key in keys if key in wrote}.values())
            came = {key[1]: sent[key] for key in keys if key in sent}
            given = operands(part.stage, device, [frame])
            gradients = sums.get((device, part.stage)) if part.kind in "BW" else None
            work += [part, frame, given, own, came, gradients]
        paced = job.pace.of(*(action_of(*each) for each in block))
        name = KERNELS[block[0][0].kind] if len(block) == 1 else "overlapped"
        ran = submit(device, _act, job.topic, device, paced, before[device], *work, name=name)
        before[device] = ran
        for n, (part, frame) in enumerate(block):
            mine = ran
            if len(block) > 1:
                mine = submit(device, _result, ran, n, name="result", beside=True)
            for each in part.instructions:
                if isinstance(each, Do):
                    wrote |= {(device, written, frame): mine for written in each.writes}
                elif isinstance(each, Send):
                    hand = submit(device, _hand, mine, each.buffer, name="hand", beside=True)
                    sent[each.peer, each.buffer, frame] = hand
                    job.sent[hand.key] = (TRANSFER, part.stage, frame)
            if part.kind in "BW":
                sums[device, part.stage] = mine
            elif part.kind == "F" and part.stage == job.schedule.stages - 1:
                ends.append(submit(device, _beside, mine, name="loss", beside=True))
    ends += [
        submit(device, _beside, sums[device, s], name="gradients", beside=True)
        for device, s in sorted(sums)
    ]
    return ends


_Key = tuple[int, str, int]
"""Device, buffer, frame."""
_Block = list[tuple[ProgramPart, int]]
"""Parts and their frames that are done at once."""


def _in_order(program: Program) -> Iterator[tuple[int, _Block]]:
    """What every device does at once, each after what it receives from."""
    left = {
        rank: deque(
            [(program.role(rank).parts[line.part[t]], int(line.frame[t])) for t in turns]
            for turns in line.at_once
        )
        for rank, line in enumerate(program.lines)
    }
    sent: set[_Key] = set()
    while any(left.values()):
        for rank, blocks in left.items():
            if blocks and _messages(Recv, rank, blocks[0]) <= sent:
                block = blocks.popleft()
                sent |= _messages(Send, rank, block)
                yield rank, block


def _messages(kind: type, rank: int, block: _Block) -> set[_Key]:
    """By where they go."""
    return {
        (each.peer if isinstance(each, Send) else rank, each.buffer, frame)
        for part, frame in block
        for each in part.instructions
        if isinstance(each, Send | Recv) and isinstance(each, kind)
    }


# -- on the workers -------------------------------------------------------------------------------


def _begin(topic: str, device: int, seconds: float) -> None:
    """Wait for the word. A worker that was replaced meanwhile missed it: the others have begun."""
    try:
        here = of_run(topic, device)
    except ClusterLostError:
        return
    here.wait_for_start(time.monotonic() + seconds)


class _PartMade(NamedTuple):
    """What a part makes of a frame."""

    buffers: dict[str, Any]
    beside: StagesMade
    end: float
    """When it was over."""


def _act(topic: str, device: int, paced: Paced, before: Any, *work: Any) -> Any:
    """What a part makes, or both of a pair. ``before`` only makes it wait for its turn."""
    kernels, buffers, arrivals = [], list[dict[str, Any]](), list[Arrival | None]()
    rows = [work[n : n + 6] for n in range(0, len(work), 6)]
    for part, _, operands, own, came, gradients in rows:
        sums = gradients and gradients.beside.gradients[part.stage]
        kernels.append(StageKernels(*operands))
        kernels[-1].sums = sums
        buffers.append({name: x for made in own for name, x in made.buffers.items()})
        buffers[-1] |= {name: aligned(block.array) for name, block in came.items()}
        arrivals.append(next((Arrival(block.made) for block in came.values()), None))

    def do() -> None:
        for (part, frame, *_), kernel, env in zip(rows, kernels, buffers, strict=True):
            for each in part.instructions:
                if isinstance(each, Do):
                    made = kernel.run(each, frame, [env[name] for name in each.reads])
                    env |= dict(zip(each.writes, made, strict=True))

    end = perform(topic, device, paced, arrivals, do)
    results = [
        _PartMade(_written(part, env), kernel.made(part.stage), end)
        for (part, *_), kernel, env in zip(rows, kernels, buffers, strict=True)
    ]
    return results if len(results) > 1 else results[0]


def _written(part: ProgramPart, env: dict[str, Any]) -> dict[str, Any]:
    return {n: env[n] for each in part.instructions if isinstance(each, Do) for n in each.writes}


def _result(results: list[_PartMade], n: int) -> _PartMade:
    return results[n]


def _hand(result: _PartMade, name: str) -> StageBlock:
    return StageBlock(result.buffers[name], result.end)


def _beside(result: _PartMade) -> StagesMade:
    return result.beside.host()
