"""When each action of a schedule runs: the longest path over turns and data.

start(a) = max( end of the action before a on its device,
                end of each result a needs  [+ latency if it comes from another device] )

Latency is the time a block is on its way; it occupies neither device.
"""

from collections.abc import Sequence

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.bound import Evidence
from tiledask.plan.longest_path import longest_path
from tiledask.plan.needs import checked
from tiledask.plan.schedule import Schedule
from tiledask.plan.timeline import Timeline

__all__ = ["Times", "arrivals", "durations", "simulate"]

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

    >>> from tiledask.plan.schedules import schedule
    >>> t = simulate(schedule("1f1b", stages=4, microbatches=8), forward=1.0, backward=2.0)
    >>> t.makespan, round(t.bubble_fraction, 4), t.bubble_overhead, t.peak_in_flight
    (33.0, 0.2727, 0.375, (4, 3, 2, 1))
    >>> t.lower_bound, t.bound.why
    (33.0, 'device 3: 3 s until work reaches it, 24 s of work, 6 s from it to the end')
    >>> t.critical_path
    CriticalPath(22 actions, 33 s of compute on 4 devices, 0 s of latency, most on device 3)
    """
    seconds = durations(schedule, forward, backward, backward_input, backward_weight)
    arriving = arrivals(schedule, latency)
    times = None
    if _is_complete(schedule):
        columns = schedule.kind, schedule.stage, schedule.microbatch, schedule.turns
        shape = schedule.stages, schedule.microbatches
        times = longest_path(*columns, seconds, arriving, shape)
    if times is None:
        checked(schedule)  # says what is wrong
        raise AssertionError("a schedule that passes every check did not run")
    return Timeline(
        schedule.devices, schedule.device, schedule.kind, schedule.stage, schedule.microbatch,
        *times, evidence=Evidence(schedule, seconds, arriving),
    )  # fmt: skip


def _is_complete(schedule: Schedule) -> bool:
    """Whether every result is made once, each on the device of its stage."""
    stages, microbatches = schedule.stages, schedule.microbatches
    stage, number, place = schedule.stage, schedule.microbatch, np.array(schedule.place)
    if stage.min(initial=0) < 0 or stage.max(initial=-1) >= stages or number.min(initial=0) < 0:
        return False
    if not np.array_equal(place[stage], schedule.device):
        return False
    each = np.multiply(stage, microbatches, dtype=np.int64) + number

    def times_made(*kinds: int) -> np.ndarray:
        return np.bincount(each[np.isin(schedule.kind, kinds)], minlength=stages * microbatches)

    whole, split = times_made(1), times_made(2)
    expected = 1 if schedule.trains else 0
    return bool(
        (times_made(0) == 1).all()
        and (whole + split == expected).all()
        and np.array_equal(split, times_made(3))
    )


def arrivals(schedule: Schedule, latency) -> np.ndarray:
    """Seconds that a result takes from the stage before and from the one behind: [2, stages]."""
    boundaries = max(0, schedule.stages - 1)
    values = np.asarray(latency, float)
    if values.ndim and values.shape != (boundaries,):
        raise ScheduleError(
            f"latency must be one number or one per boundary between stages: {boundaries} for "
            f"{schedule.stages} stages, got shape {values.shape}"
        )
    _refuse_impossible(values, "latency")
    hops = np.where(np.diff(schedule.place) != 0, np.broadcast_to(values, boundaries), 0.0)
    arriving = np.zeros((2, schedule.stages))
    arriving[0, 1:], arriving[1, :-1] = hops, hops
    return arriving


def durations(schedule, forward, backward, backward_input, backward_weight) -> np.ndarray:
    """Seconds by kind: [4, stages, microbatches], or [4, stages, 1] if all micro-batches agree."""

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
    return np.stack(np.broadcast_arrays(table(forward, "forward"), B, I, W))


def _table(times: Times, name: str, stages: int, microbatches: int) -> np.ndarray:
    """``times`` as float [stages, microbatches], or [stages, 1] if all micro-batches agree."""
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
    return values if values.ndim == 2 else np.broadcast_to(values, stages)[:, None]


def _refuse_impossible(values: np.ndarray, name: str) -> None:
    if not (np.isfinite(values) & (values >= 0)).all():
        wrong = values[~(np.isfinite(values) & (values >= 0))].flat[0]
        raise ScheduleError(f"{name} must be finite and 0 or more seconds, got {wrong:g}")
