"""How long everything in a schedule takes: actions, pairs of them, and the way between stages.

rank 0    [F0][F1][F2]           a block is on its way while both devices go on;
  link       =b0=b1=b2           a link leads from one device to one other, and
rank 1       ..[F0][F1][F2]      carries one block after the other
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan.pipelines.schedule import Schedule

__all__ = ["PerBoundary", "PipelineCosts", "Times", "costs_of", "numbers"]

Times = float | Sequence[float] | Sequence[Sequence[float]]
"""Seconds: one number, one per stage, or one per stage and micro-batch."""
PerBoundary = float | Sequence[float]
"""One number, or one per boundary between stages."""


class PipelineCosts(NamedTuple):
    """Seconds of all that happens in a schedule."""

    seconds: np.ndarray
    """[4, stages, microbatches or 1]: by kind."""
    together: np.ndarray
    """[stages, microbatches or 1]: of a forward and a backward at once; negative for the sum."""
    latency: np.ndarray
    """[pipelines, stages + 1]: on the way over the boundary before each stage; 0 within a device,
    before the first stage and behind the last."""
    carry: np.ndarray
    """The same: for how long a block takes up its link."""

    @property
    def hop(self) -> np.ndarray:
        """[pipelines, stages + 1]: until a result is there, if its link is free."""
        hop: np.ndarray = self.latency + self.carry
        return hop

    def of_actions(self, schedule: Schedule) -> np.ndarray:
        """[actions]: by how much each adds to its device's work; a pair's are its forward's."""
        number = schedule.microbatch if self.seconds.shape[2] > 1 else 0
        work: np.ndarray = self.seconds[schedule.kind, schedule.stage, number]
        if schedule.pairs and (self.together >= 0).any():
            first = np.flatnonzero(schedule.paired)
            number = schedule.microbatch[first] if self.together.shape[1] > 1 else 0
            work[first], work[first + 1] = self.together[schedule.stage[first], number], 0.0
        return work


def costs_of(
    schedule: Schedule,
    forward: Times = 1.0,
    backward: Times | None = None,
    latency: PerBoundary = 0.0,
    backward_input: Times | None = None,
    backward_weight: Times | None = None,
    overlapped: Times | None = None,
    block_bytes: PerBoundary = 0.0,
    bandwidth: PerBoundary = float("inf"),
) -> PipelineCosts:
    """The PipelineCosts of ``schedule``; `simulate` says what each number means.

    Raises ScheduleError for times that are negative, not finite or of the wrong shape.
    """
    stages, microbatches = schedule.stages, schedule.microbatches
    of_stages = {
        (): "one number",
        (stages,): f"{stages} numbers (one per stage)",
        (stages, microbatches): f"a table of {stages} x {microbatches} (stage x micro-batch)",
    }
    of_boundaries = {
        (): "one number",
        (stages - 1,): f"{stages - 1}, one per boundary between stages",
    }

    def table(times: Times, name: str) -> np.ndarray:
        """[stages, microbatches], or [stages, 1] if all micro-batches agree."""
        values = numbers(times, name, of_stages, "seconds").astype(float)
        return values if values.ndim == 2 else np.broadcast_to(values, stages)[:, None]

    halves = backward_input, backward_weight
    I, W = (None if each is None else table(each, "a part of backward") for each in halves)
    if backward is None and I is not None and W is not None:
        B = I + W
    else:
        B = table(2.0 if backward is None else backward, "backward")
    if I is None:
        I = B / 2 if W is None else B - W
    if W is None:
        W = B - I
    if min(I.min(), W.min()) < 0:
        raise ScheduleError(
            f"the part given is more than the whole: a backward of {B.min():g} seconds would "
            f"leave {min(I.min(), W.min()):g} for the other; give backward=, or both parts"
        )
    seconds = np.stack(np.broadcast_arrays(table(forward, "forward"), B, I, W))
    together = np.full((stages, 1), -1.0) if overlapped is None else table(overlapped, "overlapped")
    rate = np.asarray(bandwidth, float)
    if rate.shape not in of_boundaries or not (rate > 0).all():
        raise ScheduleError(
            f"bandwidth must be above 0 bytes/s, {' or '.join(of_boundaries.values())}; got "
            f"{short(bandwidth)}; for a block that takes no time leave block_bytes out"
        )
    places = np.array(schedule.places)
    travels = places[:, 1:] != places[:, :-1]
    delay, carry = (
        np.pad(np.where(travels, each, 0.0), ((0, 0), (1, 1)))
        for each in (
            numbers(latency, "latency", of_boundaries, "seconds"),
            numbers(block_bytes, "block_bytes", of_boundaries, "bytes") / rate,
        )
    )
    return PipelineCosts(seconds, together, delay, carry)


def numbers(values: Any, name: str, shapes: dict[Any, str], unit: str) -> np.ndarray:
    """``values`` as an array of one of ``shapes``, whole numbers as they are.

    Raises ScheduleError for another shape, and for what is not finite or below 0.
    """
    try:
        found = np.asarray(values)
        found = found if found.dtype.kind in "iuf" else np.asarray(values, float)
    except (TypeError, ValueError):
        raise ScheduleError(f"{name} must be numbers of {unit}, got {short(values)}") from None
    if found.shape not in shapes:
        raise ScheduleError(
            f"{name} must be {' or '.join(shapes.values())}; got shape {found.shape}"
        )
    good = np.isfinite(found) & (found >= 0)
    if not good.all():
        wrong = found[~good].flat[0]
        raise ScheduleError(f"{name} must be finite and 0 or more {unit}, got {wrong:g}")
    return found
