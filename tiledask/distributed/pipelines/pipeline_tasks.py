"""Each action a pinned Dask task, its turn a real dependency.

    device 0   begin --> F0 ----> F1 ----> ...     ---->  the previous action on the device
                | y       | y                         |   data: activations down, gradients up
    device 1   begin --> F0 ----> F1 ---->            v   ("hand" tasks, where it was made)

The order never rests on priorities, so Dask's task stream is the Gantt chart of the schedule.
"""

import time
from typing import Any

from distributed import Future

from tiledask.distributed.pipelines.actions import (
    ActionInputs,
    ActionOperands,
    PipelineAction,
    StageBlock,
    gradients_of,
    perform,
)
from tiledask.distributed.pipelines.job import Done, Given, PipelineJob
from tiledask.distributed.transport.meeting import meeting, of_run
from tiledask.errors import ClusterLostError
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline
from tiledask.tile.backend import aligned

__all__ = ["run_tasks"]

NAMES = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""Task names on the dashboard; each has its colour there."""


def run_tasks(job: PipelineJob, simulated: Timeline | None) -> Done:
    """What the actions of ``job`` made, each a task of its own."""
    cluster = job.cluster
    with meeting(cluster, job.topic, job.peers, job.patience) as addresses:
        outputs, losses, gradients = _submit(job, job.prepare())
        job.begin(addresses, simulated)
        ends = [*outputs, *losses, *gradients.values()]
        cluster.wait(ends, f"{job.schedule!r}", job.timeout, cancel=True)
    spans, late = job.heard()
    blocks, numbers, sums = (
        cluster.gather(part, "the run's results", job.patience, cancel=True)
        for part in (outputs, losses, gradients.values())
    )
    made = dict(zip(gradients, sums, strict=True))
    return Done([block.array for block in blocks], numbers, made, spans, late, [])


def _submit(
    job: PipelineJob, given: Given
) -> tuple[list[Future[Any]], list[Future[Any]], dict[tuple[int, int], Future[Any]]]:
    """(outputs by micro-batch, losses by micro-batch, gradients by (stage, device)) to wait for.

    All other futures are dropped here, so that activations go as soon as they are used.
    """
    schedule, submit, last = job.schedule, job.cluster.submit, job.schedule.stages - 1
    # all is submitted before anything starts: the scheduler would be slow to answer meanwhile
    turn = {
        d: submit(d, _begin, job.topic, d, job.patience, name="begin")
        for d in range(schedule.devices)
    }
    done: dict[Action, Future[Any]] = {}  # an action's whole result: stays on its device
    hand: dict[Action, Future[Any]] = {}  # the part of it that goes to another stage
    sums: dict[tuple[int, int], Future[Any]] = {}  # (stage, device): its result with the gradients
    used = {t.gets for t in job.turns.values()}
    args: list[Any] = []  # of the actions that are done at once
    block: list[PipelineAction] = []
    for action in job.order:
        kind, s, i = action
        this, device = job.turns[action], job.device(action)
        end = None
        if s == last and given.targets[i] is not None and kind != "W":
            end = (given.targets[i], job.batch.size)
        x = hand.get(this.gets) if this.gets else None
        if kind == "F" and s == 0:
            x = given.inputs[i]
        own = done.get(this.own) if this.own else None
        before = None if kind == "F" else sums.get((s, device))
        block.append(this)
        args += [job.stages[s], x, given.weights[s, device], own, end, before]
        if this.paired:
            continue
        name = NAMES[kind] if len(block) == 1 else "overlapped"
        ran = submit(
            device, _act, job.topic, device, schedule.trains, block, turn[device], *args, name=name
        )
        turn[device] = ran
        for n, each in enumerate(block):
            a = each.action
            done[a] = ran
            if len(block) > 1:
                done[a] = submit(device, _result, ran, n, name="result", beside=True)
            if a.kind in "BW":
                sums[a.stage, device] = done[a]
            if a in used or (a.kind == "F" and a.stage == last):
                hand[a] = submit(device, _hand, done[a], name="hand", beside=True)
                job.sent[hand[a].key] = (TRANSFER, a.stage, a.microbatch)
        block, args = [], []
    ends = [Action("F", last, i) for i in range(schedule.microbatches)]
    losses = [submit(job.device(a), _loss, done[a], name="loss", beside=True) for a in ends]
    gradients = {
        (s, d): submit(d, gradients_of, sums[s, d], name="gradients", beside=True)
        for s, d in sorted(sums)
    }
    return [hand[a] for a in ends], losses, gradients


# -- on the workers -------------------------------------------------------------------------------


def _begin(topic: str, device: int, seconds: float) -> None:
    """Wait for the word. A worker that was replaced meanwhile missed it: the others have begun."""
    try:
        here = of_run(topic, device)
    except ClusterLostError:
        return
    here.wait_for_start(time.monotonic() + seconds)


_ARGS = 6
"""How many arguments each action of a task has: stage, block, weights, own result, end, sums."""


def _act(
    topic: str, device: int, trains: bool, turns: list[PipelineAction], before: Any, *args: Any
) -> Any:
    """The result of an action, or of both of a pair. ``before`` only makes it wait for its turn."""
    parts = []
    for n, turn in enumerate(turns):
        stage, x, weights, own, end, sums = args[n * _ARGS : (n + 1) * _ARGS]
        made = None
        if isinstance(x, StageBlock):
            made, x = x.made, aligned(x.array)
        parts.append(
            ActionInputs(
                turn, stage, x, ActionOperands(weights, own or {}, end, sums, trains), made
            )
        )
    results = perform(topic, device, parts)
    return results if len(results) > 1 else results[0]


def _result(results: list[dict[str, Any]], n: int) -> dict[str, Any]:
    return results[n]


def _hand(result: dict[str, Any]) -> StageBlock:
    return StageBlock(result["hand"], result["made"])


def _loss(result: dict[str, Any]) -> float:
    loss: float = result["loss"]
    return loss
