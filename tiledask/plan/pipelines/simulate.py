"""When each action of a schedule runs: its Timeline if every action takes the time given.

start(a)       max( end of the action before a on its device,
                    end of each result a needs  [+ its way, if it comes from another device] )
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan.pipelines.costs import PerBoundary, PipelineCosts, Times, costs_of
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedule as by_name
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.validate import runnable

__all__ = ["simulate", "timed"]


def _or_named(simulated: Callable[..., Timeline]) -> Callable[..., Timeline]:
    """``simulated``, and of a schedule's name and numbers too."""
    times = tuple(signature(simulated).parameters)[1:]

    @wraps(simulated)
    def either(schedule: Schedule | str, *numbers: Any, **options: Any) -> Timeline:
        if isinstance(schedule, str):
            given = {name: options.pop(name) for name in times if name in options}
            return simulated(by_name(schedule, *numbers, **options), **given)
        return simulated(schedule, *numbers, **options)

    return either


@_or_named
def simulate(
    schedule: Schedule,
    forward: Times = 1.0,
    backward: Times | None = None,
    latency: PerBoundary = 0.0,
    backward_input: Times | None = None,
    backward_weight: Times | None = None,
    *,
    overlapped: Times | None = None,
) -> Timeline:
    """The Timeline of ``schedule`` if every action takes exactly the time given.

    ``simulate("1f1b", 4, 8, forward=1.0)`` makes the schedule by its name and numbers; times then
    have their names.

    forward, backward                 seconds of F and of a full B; backward is 2.0 unless given.
    backward_input, backward_weight   seconds of I and W, each half of B if none is given. A full B
                                      takes their sum unless ``backward`` says otherwise; if one
                                      is given the other is what is left of B.
    overlapped                        seconds of a forward and a backward that a device does at
                                      once (DualPipe), per forward; their sum unless given.
    latency                           seconds from one stage to the next, either way, if they
                                      are on different devices.

    Each time is a number, a value per stage, or a table [stages][microbatches]; latency a number,
    or a value per boundary between stages. Raises ScheduleError for a schedule that cannot run
    (DeadlockError where devices wait in a circle), and for times that are negative, not finite or
    of the wrong shape.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> t = simulate(schedule("1f1b", stages=4, microbatches=8), forward=1.0, backward=2.0)
    >>> t.makespan, round(t.bubble_fraction, 4), t.bubble_overhead, t.peak_in_flight
    (33.0, 0.2727, 0.375, (4, 3, 2, 1))
    """
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"a schedule is as td.schedule('1f1b', 4, 8), got {short(schedule)}")
    halves = backward_input, backward_weight
    costs = costs_of(runnable(schedule), forward, backward, latency, *halves, overlapped)
    return timed(schedule, costs)


def timed(schedule: Schedule, costs: PipelineCosts) -> Timeline:
    """The Timeline of a schedule that runs."""
    work, first = costs.work.copy(), np.flatnonzero(schedule.paired)
    work[first], work[first + 1] = work[first] + work[first + 1], 0.0
    took, way = work.tolist(), costs.way.tolist()
    start, end = [0.0] * len(took), [0.0] * (len(took) + 1)  # the last is of nothing
    before, maker, second = schedule.waits
    for n in schedule.steps:
        free, begin = end[before[n]], end[maker[n]] + way[n]
        if begin < free:
            begin = free
        if second[n] >= 0:
            begin = max(begin, end[second[n]] + way[n + 1])
        start[n] = begin
        end[n] = begin + took[n]
    starts, ends = np.array(start), np.array(end[:-1])
    starts[first + 1], ends[first + 1] = starts[first], ends[first]
    columns = schedule.device, schedule.kind, schedule.stage, schedule.microbatch
    return Timeline(schedule.devices, *columns, starts, ends, schedule=schedule, costs=costs)
