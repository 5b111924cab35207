"""One action of a schedule, as a worker does it: wait for its block, work, keep the device, report.

A forward and a backward at once are done one after the other, and count as one from start to end.

block made        block there
   |---- latency ----|
   '------ sent -----|start ===== work =====.... paced ....|end
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from dask.sizeof import sizeof
from distributed import get_worker
from distributed.protocol.serialize import register_generic

from tiledask.distributed.cluster.clocks import now
from tiledask.plan.pipelines.schedule import Action
from tiledask.tile.backend import synchronize
from tiledask.tile.backend import to_numpy as off_device
from tiledask.tile.functions import mean_square, mean_square_grad

__all__ = [
    "DO",
    "ActionInputs",
    "ActionOperands",
    "PipelineAction",
    "StageBlock",
    "added",
    "gradients_of",
    "perform",
]

REPORT_AFTER = 0.02
"""Seconds after its end at which an action is reported."""


class PipelineAction(NamedTuple):
    """What a device has to do next, and what for."""

    action: Action
    own: Action | None
    """The action of the same stage whose result it uses."""
    gets: Action | None
    """The action of another stage whose block it uses."""
    sends: tuple[int, ...]
    """The other devices that use its block."""
    seconds: float
    """How long it occupies the device, of a pair both together; 0: as long as its work takes."""
    latency: float
    """Seconds for which the block that it uses is on its way at least."""
    paired: bool
    """Whether it is done at once with the device's next action."""


@dataclass
class StageBlock:
    """What an action hands to another stage: activations, or the gradient of its input."""

    array: Any
    made: float
    """When, by the scheduler's clock."""


register_generic(StageBlock)


def _bytes(block: StageBlock) -> int:
    return int(block.array.nbytes)


sizeof.register(StageBlock, _bytes)


class ActionOperands(NamedTuple):
    """What an action works with beside its stage and its block."""

    weights: Any
    own: dict[str, Any]
    """The result of ``turn.own``; empty without one."""
    end: tuple[Any, int] | None
    """On the last stage: the target of the micro-batch, and the elements of the whole batch."""
    sums: dict[str, Any] | None
    """The result of the stage's last action with gradients."""
    trains: bool


class ActionInputs(NamedTuple):
    """An action, and all that it takes."""

    turn: PipelineAction
    stage: Any
    x: Any
    """Activations or the gradient that come in."""
    work: ActionOperands
    made: float | None = None
    """When ``x`` was made, if it comes from elsewhere."""
    sent: tuple[float, float] | None = None
    """(start, end) of the way of ``x``, if that is known here."""


def perform(topic: str, device: int, parts: Sequence[ActionInputs]) -> list[dict[str, Any]]:
    """The result of each of the actions that are done at once, usually one.

    An event on ``topic`` says when they ran.
    """
    for part in parts:
        _sleep_until(_there(part))
    seconds = sum(part.turn.seconds for part in parts)
    start = now()
    results = [DO[part.turn.action.kind](part.stage, part.x, part.work) for part in parts]
    for result in results:
        synchronize(
            result["hand"] if "hand" in result else next(iter(result["gradients"][0].values()))
        )
    worked = now()
    # a paced device is free after its time to the instant; a thread that the system wakes later
    # is no work of that device, but overhead before its next action
    end = max(worked, start + seconds)
    _sleep_until(end)
    for part, result in zip(parts, results, strict=True):
        result["made"] = end
        ways = [part.sent] if part.sent else []
        if part.turn.latency and part.made is not None:
            ways.append((part.made, _there(part)))
        event = {
            "action": tuple(part.turn.action),
            "device": device,
            "start": start,
            "end": end,
            "late": max(0.0, worked - start - seconds) if seconds else 0.0,
            # a way begins by another worker's clock, and by their error it may seem to end before
            "arriving": [
                (part.turn.gets.stage, min(left, there), there)
                for left, there in ways
                if part.turn.gets
            ],
        }
        worker = get_worker()
        # later, because a worker's messages go out 2 ms apart: the news that this action is done,
        # for which another device may be waiting, shall not queue behind its time of day
        worker.loop.add_callback(
            worker.loop.call_later, REPORT_AFTER, worker.log_event, topic, event
        )
    return results


def _there(part: ActionInputs) -> float:
    """The moment from which its block can be used."""
    return 0.0 if part.made is None else part.made + part.turn.latency


SPIN = 3e-4
"""Seconds before a moment in which a thread watches the clock: a sleep ends about so much late."""


def _sleep_until(moment: float) -> None:
    while (left := moment - now()) > 0:
        time.sleep(max(0.0, left - SPIN))


# -- the four kinds -------------------------------------------------------------------------------


def _forward(stage: Any, x: Any, work: ActionOperands) -> dict[str, Any]:
    y, saved = stage.forward(work.weights, x)
    loss = float(mean_square(y, *work.end)) if work.end else 0.0
    return {"hand": y, "saved": saved if work.trains else None, "loss": loss}


def _backward_input(stage: Any, dy: Any, work: ActionOperands) -> dict[str, Any]:
    if work.end:
        dy = mean_square_grad(work.own["hand"], *work.end)
    dx, saved = stage.backward_input(work.weights, work.own["saved"], dy)
    return {"hand": dx, "saved": saved}


def _backward_weight(stage: Any, _: Any, work: ActionOperands) -> dict[str, Any]:
    gradients = stage.backward_weight(work.own["saved"])
    if work.sums is not None:  # new arrays: what was summed before may be needed again
        gradients = added(work.sums["gradients"], gradients)
    return {"gradients": gradients}


def _backward(stage: Any, dy: Any, work: ActionOperands) -> dict[str, Any]:
    both = _backward_input(stage, dy, work)
    return {"hand": both["hand"], **_backward_weight(stage, None, work._replace(own=both))}


DO: dict[str, Callable[..., dict[str, Any]]] = {
    "F": _forward,
    "B": _backward,
    "I": _backward_input,
    "W": _backward_weight,
}
"""By kind of action: what a stage does, with what comes in and its operands."""


def added(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The gradients of a stage, one dict per layer, from two parts of them."""
    return [{name: a[name] + b[name] for name in b} for a, b in zip(first, second, strict=True)]


def gradients_of(result: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    """The gradients in an action's result, in NumPy."""
    return [{name: off_device(g) for name, g in layer.items()} for layer in result["gradients"]]
