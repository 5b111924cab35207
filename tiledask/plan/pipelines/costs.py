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
    of = "seconds", schedule.stages, "stage", schedule.microbatches
    halves = backward_input, backward_weight
    I, W = (None if each is None else numbers(each, "a part of backward", *of) for each in halves)
    if backward is None and I is not None and W is not None:
        B = I + W
    else:
        B = numbers(2.0 if backward is None else backward, "backward", *of)
    if I is None:
        I = B / 2 if W is None else B - W
    W = B - I if W is None else W
    if min(I.min(initial=0), W.min(initial=0)) < 0:
        raise ScheduleError(f"a part of the backward is more than the whole of {B.min():g} seconds")
    seconds = np.stack([numbers(forward, "forward", *of), B, I, W], dtype=float)
    places = np.array(schedule.places)
    delay = numbers(latency, "latency", "seconds", len(places[0]) - 1, "boundary between stages")
    hop = np.where(places[:, 1:] != places[:, :-1], delay, 0.0)
    hop = np.pad(hop, ((0, 0), (1, 1)))
    kind, stage, number = schedule.kind, schedule.stage, schedule.microbatch
    work, first = seconds[kind, stage, number], np.flatnonzero(schedule.paired)
    if overlapped is not None:
        both = numbers(overlapped, "overlapped", *of)[stage[first], number[first]]
        work[first], work[first + 1] = both, 0.0
    # F waits for the stage before, others for that behind, W for its own
    way = np.where(kind == 3, 0.0, hop[number % len(places), stage + (kind != 0)])
    return PipelineCosts(seconds, hop, work, way)


def numbers(
    values: Any, name: str, unit: str, count: int, each: str, microbatches: int | None = None
) -> np.ndarray:
    """``values``, one number or one per ``each``, as an array [count]; with ``microbatches``, or a
    table, as [count, microbatches]. Whole numbers stay as they are. Raises ScheduleError for
    another shape, and for what is not finite or below 0."""
    shape: tuple[int, ...] = (count,)
    rule = f"one number or {count}, one per {each}"
    if microbatches is not None:
        shape = count, microbatches
        rule += f", or a table of {count} x {microbatches} ({each} x micro-batch)"
    try:
        found = np.asarray(values)
        found = found if found.dtype.kind in "iuf" else np.asarray(values, float)
    except (TypeError, ValueError):
        raise ScheduleError(f"{name} must be numbers of {unit}, got {short(values)}") from None
    if found.shape not in ((), (count,), shape):
        raise ScheduleError(f"{name} must be {rule}; got shape {found.shape}")
    if len(wrong := found[~(np.isfinite(found) & (found >= 0))]):
        raise ScheduleError(f"{name} must be finite and 0 or more {unit}, got {wrong[0]:g}")
    return np.broadcast_to(found[:, None] if found.ndim == 1 < len(shape) else found, shape)
