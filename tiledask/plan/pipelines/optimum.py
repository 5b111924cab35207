"""The best order there is, for small pipelines: a constraint program, solved by OR-tools.

Every action is an interval on its device's line, where none may overlap:

    rank 0     [F0][F1]      [B0][B1]
    rank 1         [F0][B0][F1][B1]       minimise the last end

subject to the data (each result, and its way, before who needs it) and to memory: from the start
of its F to the end of its B or W an activation takes one of ``memory_limit`` places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import floor, lcm, log10

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.extras import needed_for
from tiledask.plan.pipelines.costs import PerBoundary, Times, costs_of
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.validate import needs, validate

__all__ = ["Optimum", "optimal_schedule"]

_UNITS = 10**6  # times are exact where they share a denominator up to this, or else rounded


@dataclass(frozen=True)
class Optimum:
    """The best order that was found, and how good any order could be."""

    schedule: Schedule
    timeline: Timeline
    """Its simulation."""
    least: float
    """Seconds that no order within the limits goes below, as far as the solver has shown."""
    proven: bool
    """Whether nothing is faster, but for rounding; if not, time ran out."""
    makespan: float
    """Of its timeline."""


def optimal_schedule(
    stages: int,
    microbatches: int,
    forward: Times = 1.0,
    backward: Times | None = None,
    latency: PerBoundary = 0.0,
    backward_input: Times | None = None,
    backward_weight: Times | None = None,
    *,
    split: bool = False,
    place: Sequence[int] | None = None,
    memory_limit: int | Sequence[int] | None = None,
    timeout: float = 60.0,
) -> Optimum:
    """The order with the least makespan, for stages x microbatches up to about 30.

    Times as for `simulate`. ``split``: backwards as I and W. ``place``: the device of each stage
    (default: one each). ``memory_limit``: the most activations on a device, one number or one per
    device. After ``timeout`` seconds the best order so far is returned, and ``proven`` is False.

    Raises ScheduleError for a limit that no order keeps, and if no order at all was found in time.

    >>> best = optimal_schedule(2, 3, forward=1, backward=2, memory_limit=2)
    >>> best.makespan, best.proven, best.schedule.to_text()
    (12.0, True, '0F0,0F1,0B0,0F2,0B1,0B2\\n1F0,1B0,1F1,1B1,1F2,1B2')
    """
    places = tuple(range(stages) if place is None else place)
    devices = 1 + max(places, default=0)
    limits = [memory_limit] * devices if isinstance(memory_limit, int) else memory_limit
    if len(places) != stages or not stages or microbatches < 1:
        raise ScheduleError(
            f"place has the device of each of {stages} stages, of one or more, got {places}, and "
            f"there are {microbatches} micro-batches"
        )
    if limits is not None and (len(limits) != devices or min(limits) < 1):
        raise ScheduleError(
            f"memory_limit is one number of at least 1, or one for each of {devices} devices; "
            f"got {memory_limit}"
        )
    every = product("FIW" if split else "FB", range(stages), range(microbatches))
    actions = [Action(*each) for each in every]
    orders = [[a for a in actions if places[a.stage] == device] for device in range(devices)]
    schedule = Schedule.of(orders, places)
    times = forward, backward, latency, backward_input, backward_weight
    costs = costs_of(schedule, *times)
    seconds = np.stack([costs.work, costs.way])
    # units per second; where they do not make all whole, half a unit is lost on an action or a way
    values, top = np.unique(seconds), float(seconds.max())
    scale = 10.0 ** -floor(log10(top)) if 0 < top < 1 else 1.0
    parts = (Fraction(x).limit_denominator(_UNITS).denominator for x in (values * scale).tolist())
    unit = lcm(*parts) * scale
    rough = top * unit >= 2**40 or unit > _UNITS * scale
    rough |= not np.allclose(values * unit, np.rint(values * unit), rtol=0, atol=1e-6)
    unit = _UNITS / top if rough else unit
    even = not np.ptp(costs.seconds, axis=2).any()  # then micro-batches may come in order
    units = np.rint(seconds * unit).astype(int)
    start, bound, proven = _solve(schedule, units, limits, even, timeout)
    orders = [sorted(order, key=start.__getitem__) for order in orders]
    best = validate(Schedule.of(orders, places, "optimum"), memory_limit=limits)
    timeline, least = simulate(best, *times), (bound - rough * len(schedule)) / unit
    return Optimum(best, timeline, min(least, timeline.makespan), proven, timeline.makespan)


def _solve(
    schedule: Schedule, units: np.ndarray, limits: Sequence[int] | None, even: bool, timeout: float
) -> tuple[dict[Action, int], float, bool]:
    """(starts, the bound that was shown, whether they attain it), in whole units of time."""
    with needed_for("the best order of a pipeline"):
        from ortools.sat.python import cp_model

    model, horizon, (took, ways) = cp_model.CpModel(), int(units.sum()) + 1, units.tolist()
    start = {a: model.new_int_var(0, horizon, f"start {a}") for a in schedule}
    end = {a: start[a] + n for a, n in zip(schedule, took, strict=True)}
    last = model.new_int_var(0, horizon, "makespan")
    for device, order in enumerate(schedule.orders):
        model.add_no_overlap(
            model.new_interval_var(start[a], end[a] - start[a], end[a], str(a)) for a in order
        )
        kept = []
        for f in (f for f in order if f.kind == "F" and limits):
            until = end[f._replace(kind="W" if f._replace(kind="W") in end else "B")]
            size = model.new_int_var(0, horizon, f"kept {f}")
            kept.append(model.new_interval_var(start[f], size, until, f"kept {f}"))
        if limits:
            model.add_cumulative(kept, [1] * len(kept), limits[device])
    for (a, before), way in zip(needs(schedule).items(), ways, strict=True):
        model.add(last >= end[a])
        for b in before:
            model.add(start[a] >= end[b] + (0 if a.stage == b.stage else way))
        later = a._replace(microbatch=a.microbatch + 1)
        if even and later in start:
            model.add(start[later] >= end[a])
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = timeout
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        why = f"was found within {timeout:g} s; give it a longer timeout="
        if status == cp_model.INFEASIBLE:
            why = f"keeps within {limits} activations; allow more, or use fewer stages per device"
        raise ScheduleError(f"no order of {len(schedule)} actions {why}")
    starts = {a: solver.value(variable) for a, variable in start.items()}
    return starts, solver.best_objective_bound, status == cp_model.OPTIMAL
