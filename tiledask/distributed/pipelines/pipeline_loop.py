"""Each device one task that goes through its actions; blocks are posted from worker to worker.

device 0   [F0]post[F1]post.........take[B0]      no message to the scheduler, and none
device 1       take[F0][B0]post take[F1][B1]      from it, between two actions
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from distributed import get_worker

from tiledask.distributed.pipelines.actions import (
    ActionInputs,
    ActionOperands,
    PipelineAction,
    gradients_of,
    perform,
)
from tiledask.distributed.pipelines.job import Done, PipelineJob
from tiledask.distributed.transport.meeting import meeting, of_run
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.tile.backend import aligned
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["run_loops"]


def run_loops(job: PipelineJob, simulated: Timeline | None) -> Done:
    """What the actions of ``job`` made, each device's in a loop of its own."""
    schedule, last = job.schedule, job.schedule.stages - 1
    with meeting(job.cluster, job.topic, job.peers, job.patience) as addresses:
        given, loops = job.prepare(), []
        limit = job.patience + job.timeout  # the client's own comes first
        for device, order in enumerate(schedule.orders):
            turns = [job.turns[action] for action in order]
            mine = sorted(s for s, d in given.weights if d == device)
            weights = {s: given.weights[s, device] for s in mine}
            stages = {s: job.stages[s] for s in mine}
            inputs = {a.microbatch: given.inputs[a.microbatch] for a in order if a.stage == 0}
            targets = {a.microbatch: given.targets[a.microbatch] for a in order if a.stage == last}
            plan = _Plan(job.topic, device, limit, turns, last, job.batch.size, schedule.trains)
            loops.append(
                job.cluster.submit(
                    device, _loop, plan, stages, weights, inputs, targets, name="pipeline_loop"
                )
            )
        job.begin(addresses, simulated)
        parts = job.cluster.gather(loops, f"{schedule!r}", job.timeout, cancel=True)
    spans, late = job.heard()
    outputs: dict[int, Any] = {}
    losses: dict[int, float] = {}
    gradients: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for device, part in enumerate(parts):
        outputs |= part["outputs"]
        losses |= part["losses"]
        gradients |= {(s, device): sums for s, sums in part["gradients"].items()}
    moves = [
        (source, device, size)
        for device, part in enumerate(parts)
        for source, size in part["moves"]
    ]
    numbers = range(schedule.microbatches)
    return Done(
        [outputs[i] for i in numbers], [losses[i] for i in numbers], gradients, spans, late, moves
    )


# -- on the workers -------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """What a device's loop is told beside its arrays."""

    topic: str
    device: int
    seconds: float
    """Until it gives up."""
    turns: Sequence[PipelineAction]
    last: int
    """The model's last stage."""
    size: int
    """Elements of the whole batch."""
    trains: bool


def _loop(
    plan: _Plan,
    stages: dict[int, Any],
    weights: dict[int, Any],
    inputs: dict[int, Any],
    targets: dict[int, Any],
) -> dict[str, Any]:
    """All actions of a device, in their order; what others do not take from it is its result."""
    deadline, worker = time.monotonic() + plan.seconds, get_worker()
    here = of_run(plan.topic, plan.device)
    uses = _uses(plan.turns)
    results: dict[Action, dict[str, Any]] = {}
    outputs: dict[int, Any] = {}
    losses: dict[int, float] = {}
    sums: dict[int, dict[str, Any]] = {}
    here.wait_for_start(deadline)
    parts: list[ActionInputs] = []  # that are done at once
    for turn in plan.turns:
        here.check()
        kind, s, i = turn.action
        made = sent = None
        x = inputs[i] if kind == "F" and s == 0 else None
        if turn.gets is not None and turn.gets in results:
            x = results[turn.gets]["hand"]
        elif turn.gets is not None:
            parcel = here.take(turn.gets, deadline)
            x, made, sent = parcel.block, parcel.made, (parcel.sent, parcel.there)
        target = targets[i] if s == plan.last else None
        end = None if target is None else (aligned(target), plan.size)
        own = results.get(turn.own, {}) if turn.own else {}
        work = ActionOperands(weights[s], own, end, sums.get(s), plan.trains)
        parts.append(ActionInputs(turn, stages[s], aligned(x), work, made, sent))
        if turn.paired:
            continue
        for part, result in zip(parts, perform(plan.topic, plan.device, parts), strict=True):
            ran = part.turn
            kind, s, i = ran.action
            for other in ran.sends:
                here.post(worker, other, ran.action, result["hand"], result["made"])
            if kind == "F" and s == plan.last:
                outputs[i], losses[i] = off_device(result["hand"]), result["loss"]
            if kind in "BW":
                sums[s] = result
            if ran.action in uses:
                results[ran.action] = result
            for used in (ran.own, ran.gets):
                if used is not None and used in results:
                    uses[used] -= 1
                    if not uses[used]:
                        del results[used]
        parts = []
    gradients = {s: gradients_of(result) for s, result in sums.items()}
    return {"outputs": outputs, "losses": losses, "gradients": gradients, "moves": here.moves}


def _uses(turns: Sequence[PipelineAction]) -> dict[Action, int]:
    """How many actions of this device use the result of each."""
    uses: dict[Action, int] = {}
    for turn in turns:
        for used in (turn.own, turn.gets):
            if used is not None:
                uses[used] = uses.get(used, 0) + 1
    return uses
