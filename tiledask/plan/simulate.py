"""When each action of a schedule runs: the longest path over turns and data.

start(a) = max( end of the action before a on its device,
                end of each result a needs  [+ latency if it comes from another device] )

Latency is the time a block is on its way; it occupies neither device.
"""

from collections.abc import Sequence

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.needs import checked
from tiledask.plan.schedule import Schedule
from tiledask.plan.timeline import Timeline

__all__ = ["simulate"]

Times = float | Sequence[float] | Sequence[Sequence[float]]
"""Seconds: one number, one per stage, or one per stage and micro-batch."""


def simulate(
    schedule: Schedule,
    forward: Times = 1.0,
    backward: Times | None = None,
    latency: float | Sequence[float] = 0.0,
    backward_input: Times | None = None,
    backward_weight: Times | None = None,
) -> Timeline:
    """The Timeline of ``schedule`` if every action takes exactly the time given.

    forward, backward                 seconds of F and of a full B; backward is 2.0 unless given.
    backward_input, backward_weight   seconds of I and W. Given both, a full B takes their sum
                                      unless ``backward`` says otherwise; given one, the other
                                      is what is left of B; given none, each is half of B.
    latency                           seconds from one stage to the next, either way, if they
                                      are on different devices; one number or one per boundary.

    Each time is a number, a value per stage, or a table [stages][microbatches]. Raises
    ScheduleError for a schedule that cannot run, and for times that are negative, not finite
    or of the wrong shape.

    >>> from tiledask.plan.schedule import schedule
    >>> t = simulate(schedule("1f1b", stages=4, microbatches=8), forward=1.0, backward=2.0)
    >>> t.makespan, round(t.bubble_fraction, 4), t.bubble_overhead, t.peak_in_flight
    (33.0, 0.2727, 0.375, (4, 3, 2, 1))
    """
    waits, order = checked(schedule)
    seconds = _durations(schedule, forward, backward, backward_input, backward_weight)
    delay = _delays(schedule, latency)
    free = [0.0] * schedule.devices
    end: dict = {}
    spans = []
    for action in order:
        kind, s, i = action
        device = schedule.place[s]
        start = max([free[device], *(end[b] + delay[s][b.stage - s] for b in waits[action])])
        end[action] = free[device] = start + seconds[kind][s][i]
        spans.append((device, kind, s, i, start, free[device]))
    return Timeline.of(schedule.devices, spans)


def _delays(schedule: Schedule, latency) -> list[dict[int, float]]:
    """Per stage, the seconds that a result takes from the stage before (-1), itself, behind (1)."""
    boundaries = max(0, schedule.stages - 1)
    values = np.asarray(latency, float)
    if values.ndim and values.shape != (boundaries,):
        raise ScheduleError(
            f"latency must be one number or one per boundary between stages: {boundaries} for "
            f"{schedule.stages} stages, got shape {values.shape}"
        )
    _refuse_impossible(values, "latency")
    crossing = np.diff(schedule.place) != 0
    hop = [0.0, *np.where(crossing, np.broadcast_to(values, boundaries), 0.0).tolist(), 0.0]
    return [{-1: hop[s], 0: 0.0, 1: hop[s + 1]} for s in range(schedule.stages)]


def _durations(schedule, forward, backward, backward_input, backward_weight) -> dict[str, list]:
    """Seconds of each kind as a table [stages][microbatches]."""

    def table(times, name):
        return _table(times, name, schedule.stages, schedule.microbatches)

    given = {"backward_input": backward_input, "backward_weight": backward_weight}
    I, W = (None if times is None else table(times, name) for name, times in given.items())
    if backward is None and I is not None and W is not None:
        B = I + W
    else:
        B = table(2.0 if backward is None else backward, "backward")
    if I is None:
        I = B / 2 if W is None else B - W
    if W is None:
        W = B - I
    for name, times in (("backward_input", I), ("backward_weight", W)):
        if (times < 0).any():
            raise ScheduleError(
                f"the part given is more than the whole: {name} would be {times.min():g} of a "
                f"backward of {B.min():g} seconds; give backward=, or both parts"
            )
    return {
        kind: times.tolist()
        for kind, times in (("F", table(forward, "forward")), ("B", B), ("I", I), ("W", W))
    }


def _table(times: Times, name: str, stages: int, microbatches: int) -> np.ndarray:
    """``times`` as float [stages, microbatches]."""
    try:
        values = np.asarray(times, float)
    except (TypeError, ValueError):
        raise ScheduleError(f"{name} must be numbers of seconds, got {times!r}") from None
    if values.shape not in ((), (stages,), (stages, microbatches)):
        raise ScheduleError(
            f"{name} must be one number, {stages} numbers (one per stage) or a table of "
            f"{stages} x {microbatches} (stage x micro-batch); got shape {values.shape}"
        )
    _refuse_impossible(values, name)
    columns = values[:, None] if values.ndim == 1 else values
    return np.broadcast_to(columns, (stages, microbatches))


def _refuse_impossible(values: np.ndarray, name: str) -> None:
    if not (np.isfinite(values) & (values >= 0)).all():
        wrong = values[~(np.isfinite(values) & (values >= 0))].flat[0]
        raise ScheduleError(f"{name} must be finite and 0 or more seconds, got {wrong:g}")
