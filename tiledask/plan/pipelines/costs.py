"""How long everything in a schedule takes: its actions, and the ways between its devices."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan.pipelines.schedule import Schedule

__all__ = ["PerBoundary", "PipelineCosts", "Times", "costs_of", "numbers"]

Times = float | Sequence[float] | Sequence[Sequence[float]] | np.ndarray
"""Seconds: one number, one per stage, or one per stage and micro-batch."""
PerBoundary = float | Sequence[float] | np.ndarray


class PipelineCosts(NamedTuple):
    """Seconds of all that happens in a schedule."""

    seconds: np.ndarray
    """[4, stages, microbatches]: by kind."""
    hop: np.ndarray
    """[pipelines, stages + 1]: on the way over the boundary before each stage; 0 within a device,
    before the first stage and behind the last."""
    work: np.ndarray
    """[actions]: by how much each adds to its device's work; a pair's are its forward's."""
    way: np.ndarray
    """[actions]: what the result that each waits for takes from another stage."""


def costs_of(
    schedule: Schedule,
    forward: Times = 1.0,
    backward: Times | None = None,
    latency: PerBoundary = 0.0,
    backward_input: Times | None = None,
    backward_weight: Times | None = None,
    overlapped: Times | None = None,
) -> PipelineCosts:
    """The PipelineCosts of ``schedule``; `simulate` says what each number means. Raises
    ScheduleError for times that are negative, not finite or of the wrong shape."""
    shape = stages, microbatches = schedule.stages, schedule.microbatches
    of_stages = {
        (): "one number",
        (stages,): f"{stages} numbers (one per stage)",
        (stages, microbatches): f"a table of {stages} x {microbatches} (stage x micro-batch)",
    }

    def table(times: Times, name: str) -> np.ndarray:
        values = numbers(times, name, of_stages, "seconds").astype(float)
        return np.broadcast_to(values[:, None] if values.ndim == 1 else values, shape)

    halves = backward_input, backward_weight
    I, W = (None if each is None else table(each, "a part of backward") for each in halves)
    if backward is None and I is not None and W is not None:
        B = I + W
    else:
        B = table(2.0 if backward is None else backward, "backward")
    if I is None:
        I = B / 2 if W is None else B - W
    W = B - I if W is None else W
    if min(I.min(initial=0), W.min(initial=0)) < 0:
        raise ScheduleError(f"a part of the backward is more than the whole of {B.min():g} seconds")
    seconds = np.stack([table(forward, "forward"), B, I, W])
    between = {(): "one number", (stages - 1,): f"{stages - 1}, one per boundary between stages"}
    places = np.array(schedule.places)
    delay = numbers(latency, "latency", between, "seconds")
    hop = np.where(places[:, 1:] != places[:, :-1], delay, 0.0)
    hop = np.pad(hop, ((0, 0), (1, 1)))
    kind, stage, number = schedule.kind, schedule.stage, schedule.microbatch
    work, first = seconds[kind, stage, number], np.flatnonzero(schedule.paired)
    if overlapped is not None:
        both = table(overlapped, "overlapped")[stage[first], number[first]]
        work[first], work[first + 1] = both, 0.0
    # F waits for the stage before, others for that behind, W for its own
    way = np.where(kind == 3, 0.0, hop[number % len(places), stage + (kind != 0)])
    return PipelineCosts(seconds, hop, work, way)


def numbers(values: Any, name: str, shapes: dict[Any, str], unit: str) -> np.ndarray:
    """``values`` as an array of one of ``shapes``, whole numbers as they are. Raises ScheduleError
    for another shape, and for what is not finite or below 0."""
    try:
        found = np.asarray(values)
        found = found if found.dtype.kind in "iuf" else np.asarray(values, float)
    except (TypeError, ValueError):
        raise ScheduleError(f"{name} must be numbers of {unit}, got {short(values)}") from None
    if found.shape not in shapes:
        rule = " or ".join(shapes.values())
        raise ScheduleError(f"{name} must be {rule}; got shape {found.shape}")
    if len(wrong := found[~(np.isfinite(found) & (found >= 0))]):
        raise ScheduleError(f"{name} must be finite and 0 or more {unit}, got {wrong[0]:g}")
    return found
