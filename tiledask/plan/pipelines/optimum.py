"""The best order there is, for small pipelines: a constraint program, solved by OR-tools.

Every action is an interval on its device's line, where none may overlap:

    rank 0     [F0][F1]      [B0][B1]
    rank 1         [F0][B0][F1][B1]       minimise the last end

subject to the data (each result, and its way, before who needs it) and to memory: from the start
of its F to the end of its B or W an activation takes one of ``memory_limit`` places.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.extras import needed_for
from tiledask.plan.pipelines.bound import lower_bound
from tiledask.plan.pipelines.needs import validate
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.simulate import Times, durations, simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.transfers.links import Links, PerLink
from tiledask.plan.units import format_seconds

__all__ = ["Optimum", "optimal_schedule"]

_UNITS = 10**6
"""The solver works on integers: times are exact where they share a denominator up to this, and
otherwise rounded to that part of the longest."""


@dataclass(frozen=True, repr=False)
class Optimum:
    """The best order that was found, and how good any order could be."""

    schedule: Schedule
    timeline: Timeline
    """Its simulation."""
    least: float
    """Seconds that no order within the limits goes below, as far as the solver has shown."""
    proven: bool
    """Whether nothing is faster (but for rounding, see _UNITS); if not, time ran out."""

    @property
    def makespan(self) -> float:
        return self.timeline.makespan

    def __repr__(self) -> str:
        word = "the optimum" if self.proven else f"none below {format_seconds(self.least)}"
        return f"Optimum({self.schedule!r}, {format_seconds(self.makespan)}: {word})"


def optimal_schedule(
    stages: int,
    microbatches: int,
    forward: Times = 1.0,
    backward: Times | None = None,
    latency: PerLink = 0.0,
    backward_input: Times | None = None,
    backward_weight: Times | None = None,
    *,
    split: bool = False,
    place: Sequence[int] | None = None,
    memory_limit: int | Sequence[int] | None = None,
    timeout: float = 60.0,
) -> Optimum:
    """The Optimum: the order with the least makespan, for stages x microbatches up to about 30.

    Times as for `simulate`. ``split``: backwards as I and W. ``place``: the device of each stage
    (default: one each). ``memory_limit``: the most activations on a device, one number or one per
    device. After ``timeout`` seconds the best order so far is returned, and ``proven`` is False.

    Raises ScheduleError for a limit that no order keeps, and if no order at all was found in time.

    >>> best = optimal_schedule(2, 3, forward=1, backward=2, memory_limit=2)
    >>> best.makespan, best.proven, best.schedule.to_text()
    (12.0, True, '0F0,0F1,0B0,0F2,0B1,0B2\\n1F0,1B0,1F1,1B1,1F2,1B2')
    """
    place = tuple(range(stages)) if place is None else tuple(place)
    all_of_it = _unordered(stages, microbatches, place, split)
    seconds = durations(all_of_it, forward, backward, backward_input, backward_weight)
    links = Links.of(all_of_it, latency)
    arriving = links.arriving[:, 0]
    # units per second, and whether that makes all times whole numbers
    values = {x for table in (seconds, arriving) for x in table.ravel().tolist()}
    exact = lcm(*(Fraction(x).limit_denominator(_UNITS).denominator for x in values))
    is_exact = exact <= _UNITS and max(values) * exact < 2**40
    unit = exact if is_exact else _UNITS / max(values)
    error = 0 if is_exact else len(all_of_it)  # half a unit for an action, half for its way
    least = lower_bound(all_of_it, seconds, links, np.full((stages, 1), -1.0)).seconds
    devices, limit = all_of_it.devices, memory_limit
    limits: list[int] | None = None
    if limit is not None:
        limits = list(limit) if isinstance(limit, Iterable) else [limit] * devices
        if len(limits) != devices or min(limits) < 1:
            raise ScheduleError(
                f"memory_limit is one number of at least 1, or one for each of {devices} devices; "
                f"got {limit}: a device keeps at least the activation that it works on"
            )
    found = _solve(
        all_of_it,
        np.rint(seconds * unit).astype(int),
        np.rint(arriving * unit).astype(int),
        limits,
        int(least * unit - error),
        timeout,
    )
    times = forward, backward, latency, backward_input, backward_weight
    return Optimum(
        found.schedule,
        simulate(found.schedule, *times),
        max(least, (found.least - error) / unit),
        found.proven,
    )


def _unordered(stages: int, microbatches: int, place: tuple[int, ...], split: bool) -> Schedule:
    """Every action on its device, in some order."""
    if len(place) != stages or not stages or microbatches < 1:
        raise ScheduleError(
            f"place names the device of each of {stages} stages, got {len(place)}; and there must "
            f"be at least one micro-batch, got {microbatches}"
        )
    orders: list[list[Action]] = [[] for _ in range(1 + max(place))]
    for kind in "FIW" if split else "FB":
        for s, device in enumerate(place):
            orders[device] += [Action(kind, s, i) for i in range(microbatches)]
    return Schedule.of(orders, place, "optimum")


_Times = dict[Action, Any]
"""The solver's variable of each action."""


@dataclass(frozen=True)
class _Found:
    schedule: Schedule
    least: float
    proven: bool


def _solve(
    schedule: Schedule,
    seconds: np.ndarray,
    arriving: np.ndarray,
    limits: list[int] | None,
    least: int,
    timeout: float,
) -> _Found:
    with needed_for("the best order of a pipeline"):
        from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    horizon = int(seconds.max(axis=2).sum() * schedule.microbatches + arriving.sum() * 2 + 1)
    varies = seconds.shape[2] > 1
    start: _Times = {}
    end: _Times = {}
    interval: _Times = {}
    for a in schedule:
        took = int(seconds[KINDS.index(a.kind), a.stage, a.microbatch if varies else 0])
        start[a] = model.new_int_var(0, horizon, f"start {a}")
        end[a] = start[a] + took
        interval[a] = model.new_fixed_size_interval_var(start[a], took, str(a))
    for order in schedule.orders:
        model.add_no_overlap([interval[a] for a in order])
    for a in schedule:
        for b, hop in _data(a, start, arriving):
            model.add(start[a] >= end[b] + int(hop))
        later = a._replace(microbatch=a.microbatch + 1)
        if not varies and later in start:  # equal micro-batches may as well come in order
            model.add(start[later] >= end[a])
    if limits:
        _limit_memory(model, schedule, start, end, limits, horizon)
    last = model.new_int_var(least, horizon, "makespan")
    for a in schedule:
        model.add(last >= end[a])
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = timeout
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        raise ScheduleError(
            f"no order keeps within {limits} activations per device; allow more, or use fewer "
            f"stages per device"
        )
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise ScheduleError(
            f"no order of {len(schedule)} actions was found within {timeout:g} s; give it longer "
            f"with timeout=, or fewer micro-batches"
        )
    orders = (sorted(order, key=lambda a: solver.value(start[a])) for order in schedule.orders)
    best = validate(Schedule.of(orders, schedule.place, "optimum"), memory_limit=limits)
    return _Found(best, solver.best_objective_bound, status == cp_model.OPTIMAL)


def _data(a: Action, there: Any, arriving: np.ndarray) -> list[tuple[Action, int]]:
    """(action, time on its way) of each result that ``a`` uses."""
    kind, s, i = a
    if kind == "F":
        needs = [(Action("F", s - 1, i), arriving[0, s])]
    elif kind == "W":
        needs = [(Action("I", s, i), 0)]
    else:
        behind = Action(kind, s + 1, i), arriving[1, s]
        needs = [(Action("F", s, i), 0), behind]
    return [(b, hop) for b, hop in needs if b in there]


def _limit_memory(
    model: Any, schedule: Schedule, start: _Times, end: _Times, limits: list[int], horizon: int
) -> None:
    last = "W" if (schedule.kind == KINDS.index("W")).any() else "B"
    for order, limit in zip(schedule.orders, limits, strict=True):
        kept = []
        for a in order:
            if a.kind == "F":
                until = end[a._replace(kind=last)]
                size = model.new_int_var(0, horizon, f"kept {a}")
                kept.append(model.new_interval_var(start[a], size, until, f"kept {a}"))
        model.add_cumulative(kept, [1] * len(kept), limit)
