"""From rows of a trace to the plan behind them: guess a schedule, read its times off, simulate.

A guess gives each row of a device its turn, so its kind and stage; then
    F, B, I, W of a stage   the median length of its rows: one hiccup is no property of a stage
    hop                     start - end of the result it waited for, where that came last
    overhead                start - end of the row before, where that was what it waited for
and the guess is right if the simulator, told these times, puts every row where it was.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.diagnosis.timed import (
    FORWARD_ONLY,
    Form,
    TimedSchedule,
    built,
)
from tiledask.plan.diagnosis.trace import Trace
from tiledask.plan.pipelines.needs import validate
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedule, schedules

__all__ = ["EXACT", "MANY", "TraceFit", "fit", "fit_labelled", "fit_rows"]

EXACT = 1e-9
"""Share of the makespan within which a simulated time is that of the trace."""
MANY = 20_000
"""Rows from which not every schedule of the table is tried."""
MOST_CHUNKS = 8
"""Stages of a device in the schedules that are tried."""


@dataclass(frozen=True)
class TraceFit:
    """A plan that may be behind a trace."""

    plan: TimedSchedule
    error: float
    """Seconds: the largest distance of an edge from its simulated place."""
    spread: float
    """Seconds: the mean distance of a length from its median, and of a start from when, after
    what really came before it, it should have been."""
    parameters: int
    """How many times were read off."""
    has_hops: bool
    """Whether some action waited for a result from another device."""
    has_turns: bool
    """Whether some action waited for the one before it on its device."""
    others: tuple[Form, ...] = ()
    """Other schedules of the table that fit as well; some may be the same order."""
    guess: str = ""
    """What the plan rests on where edges do not settle it."""

    def merit(self, floor: float, rows: int) -> float:
        """Bayesian information criterion: the smaller the better, times read off are a price."""
        return rows * math.log(max(self.spread, floor)) + self.parameters * math.log(rows)


def fit(order: Schedule, trace: Trace, form: Form | None = None) -> TraceFit | None:
    """The TraceFit of ``trace`` if its rows can be the actions of ``order``, else None."""
    if not np.array_equal(order.turns, trace.turns) or order.paired.any():
        return None
    told = (order.kind, order.stage, order.microbatch)
    read = (trace.code, trace.stage, trace.microbatch)
    if any(((r >= 0) & (t != r)).any() for t, r in zip(told, read, strict=True)):
        return None
    length = trace.end - trace.start
    key = order.kind.astype(np.int64) * order.stages + order.stage
    count = np.bincount(key, minlength=4 * order.stages)
    # the median length of each kind on each stage; 0 where there is none
    rising = np.lexsort((length, key))
    first = np.cumsum(count) - count
    low, high = first + (count - 1) // 2, first + count // 2
    inside = np.minimum(np.stack([low, high]), len(length) - 1)
    typical = np.where(count > 0, length[rising][inside].mean(axis=0), 0.0)
    waits = _waits(order, trace)
    if waits is None:
        return None
    # a kind that a stage never does follows from the others
    F, B, I, W = typical.reshape(4, -1)
    _, whole, split, _ = count.reshape(4, -1) > 0
    B = np.where(whole, B, I + W)
    I, W = np.where(split, I, B / 2), np.where(split, W, B / 2)
    forward, backward, inputs, weights = (tuple(t.tolist()) for t in (F, B, I, W))
    plan = TimedSchedule(
        order, forward, backward, inputs, weights, waits.latency, waits.overhead, form
    )
    error = float(np.abs(plan.timeline.end - waits.overhead - trace.end).max())
    spread = float(np.abs(np.concatenate([length - typical[key], waits.late])).mean())
    hops = len(set(waits.latency)) if waits.has_hops else 0
    parameters = int((count > 0).sum()) + hops + (waits.overhead > 0)
    return TraceFit(plan, error, spread, parameters, waits.has_hops, waits.has_turns)


class _Waits(NamedTuple):
    """What actions waited for, seconds."""

    latency: tuple[float, ...]
    """Per boundary."""
    overhead: float
    has_hops: bool
    """Whether any waited for another device."""
    has_turns: bool
    """Whether any waited for its turn."""
    late: np.ndarray
    """[actions]: by how much later than both waits explain each started."""


def _waits(order: Schedule, trace: Trace) -> _Waits | None:
    """The _Waits of ``trace`` if its rows are ``order``; None if a result is used early."""
    made = np.full((2, order.stages, order.microbatches), -1)
    result = np.array([0, 1, 1, -1])[order.kind]
    gives = np.flatnonzero(result >= 0)
    made[result[gives], order.stage[gives], order.microbatch[gives]] = gives
    needed, boundary = np.full(len(order), -1), np.full(len(order), -1)
    s, i = order.stage, order.microbatch
    down = np.flatnonzero((order.kind == 0) & (s > 0))
    up = np.flatnonzero(((order.kind == 1) | (order.kind == 2)) & (s < order.stages - 1))
    needed[down], boundary[down] = made[0, s[down] - 1, i[down]], s[down] - 1
    needed[up], boundary[up] = made[1, s[up] + 1, i[up]], s[up]
    if (needed[np.concatenate([down, up])] < 0).any():
        return None
    remote = (needed >= 0) & (order.device[needed] != order.device)
    there = np.where(remote, trace.start - trace.end[needed], np.inf)
    if there.min(initial=np.inf) < -1e-9 * trace.makespan - trace.grain:
        return None
    before = np.full(len(order), np.inf)
    before[1:] = trace.start[1:] - trace.end[:-1]
    before[order.turns[:-1]] = np.inf
    hop = remote & (there < before)
    all_hops = float(np.median(there[hop])) if hop.any() else 0.0
    per_boundary = np.full(max(0, order.stages - 1), all_hops)
    for b in range(order.stages - 1):
        here = hop & (boundary == b)
        if here.any():
            per_boundary[b] = np.median(there[here])
    turn = np.isfinite(before) & (there >= before + np.append(per_boundary, 0.0)[boundary])
    overhead = max(0.0, float(np.median(before[turn]))) if turn.any() else 0.0
    if overhead <= EXACT * trace.makespan:
        overhead = 0.0
    latency = np.maximum(0.0, per_boundary - overhead)
    latency[latency <= EXACT * trace.makespan] = 0.0
    if len(latency) and np.ptp(latency) <= EXACT * trace.makespan:
        latency[:] = latency[0]
    ready = np.minimum(before, there - np.append(latency, 0.0)[boundary])
    late = np.where(np.isfinite(ready), ready - overhead, 0.0)
    return _Waits(tuple(latency.tolist()), overhead, bool(hop.any()), bool(turn.any()), late)


# --- which schedule -------------------------------------------------------------------------


def fit_labelled(trace: Trace) -> TraceFit:
    """The TraceFit of a trace that says each row's action. Raises ScheduleError if it cannot be.

    The schedule's name is that of the table's order, if it is one.
    """
    m = 1 + int(trace.microbatch.max())
    stages = 1 + int(trace.stage.max())
    trains = bool(trace.code.any())
    v = stages // trace.devices
    chunks = v if v * trace.devices == stages else 0
    for name in schedules if trains else FORWARD_ONLY:
        if chunks == 2 or (name not in V_SHAPED and (chunks > 1) == is_looped(name)):
            found = _fit_form(Form(name, trace.devices, chunks, m, trains), trace)
            if found is not None:
                return found
    # none of the table: an order of its own
    place = np.full((m, stages), -1)
    place[trace.microbatch, trace.stage] = trace.device
    anywhere = place.max(axis=0)
    if (missing := np.flatnonzero(anywhere < 0)).size:
        raise ConfigError(
            f"{trace.source} has stage {stages - 1} but no row of stage {missing[0]}; a trace "
            f"holds every stage of one training step"
        )
    place = np.where(place < 0, anywhere, place)
    numbers = range(1, m + 1)
    pipelines = next(n for n in numbers if (place == place[np.arange(m) % n]).all())
    kinds = [KINDS[k] for k in trace.code.tolist()]
    actions = list(map(Action, kinds, trace.stage.tolist(), trace.microbatch.tolist()))
    orders = [actions[a:b] for a, b in zip(trace.turns, trace.turns[1:], strict=False)]
    own = validate(Schedule.of(orders, place[:pipelines].tolist(), "own order"))
    times = fit(own, trace)
    if times is None:
        validate(own)
        raise ConfigError(
            f"{trace.source} has an action that starts before the result it needs is there; "
            f"check its labels and the clocks of its devices"
        )
    again = _tuned(times.plan, trace) if trains else None
    return again or times


def _tuned(plan: TimedSchedule, trace: Trace) -> TraceFit | None:
    """The TraceFit of the automatic scheduler's order, if that is what these times lead it to."""
    stages, m = plan.schedule.stages, plan.schedule.microbatches
    form = Form("zb-auto", plan.devices, 1, m)
    if stages != plan.devices or built(form) is None:
        return None
    mean_latency = float(np.mean(plan.latency)) if plan.latency else 0.0
    order = schedule(
        form.name,
        stages,
        m,
        forward=plan.forward,
        backward_input=plan.backward_input,
        backward_weight=plan.backward_weight,
        latency=mean_latency,
    )
    return fit(order, trace, form)


def fit_rows(trace: Trace) -> TraceFit | None:
    """The best TraceFit of rows whose labels are missing, in part or all; None if nothing fits.

    Of two forms that explain the rows as well, the one with fewer times is taken. With more than
    MANY rows the search ends at the first that explains them all.
    """
    floor = max(EXACT * trace.makespan, trace.grain)
    rows = 2 * len(trace.start)
    found: list[tuple[Form, TraceFit]] = []
    for form in _candidates(trace):
        one = _fit_form(form, trace)
        if one is not None and one.spread < 0.05 * trace.makespan:
            found.append((form, one))
            if one.error <= floor and len(trace.start) > MANY:
                break
    if not found:
        return None
    best, fit = min(found, key=lambda pair: pair[1].merit(floor, rows))
    close = fit.merit(floor, rows) + 2.0
    others = (
        form
        for form, one in found
        if form != best and (one.merit(floor, rows) <= close or one.error <= floor)
    )
    return replace(fit, others=tuple(others))


def _fit_form(form: Form, trace: Trace) -> TraceFit | None:
    order = built(form) if form.chunks else None
    return None if order is None else fit(order, trace, form)


def _candidates(trace: Trace) -> list[Form]:
    """Forms with as many actions as there are rows, those with fewer times first."""
    rows = np.diff(trace.turns)
    p, fewest, most = trace.devices, int(rows.min()), int(rows.max())
    found: list[tuple[int, Form]] = []

    def add(name: str, per_chunk: int, chunks: int, trains: bool = True) -> None:
        if fewest == most and most % (per_chunk * chunks) == 0:
            m = most // (per_chunk * chunks)
            found.append((per_chunk * chunks, Form(name, p, chunks, m, trains)))

    for v in range(1, MOST_CHUNKS + 1):
        for name in FORWARD_ONLY:
            if is_looped(name) == (v > 1):
                add(name, 1, v, trains=False)
    for name in schedules:
        if name == "dualpipev":
            found += [(6, Form(name, p, 2, m)) for m in range(-(-fewest // 6), most // 4 + 1) if m]
        elif name in V_SHAPED:
            add(name, 3, 2)
        elif is_looped(name):
            for v in range(2, MOST_CHUNKS + 1):
                add(name, 3 if name.endswith("zb") else 2, v)
        else:
            add(name, 3 if name.startswith("zb") else 2, 1)
    return [form for _, form in sorted(found, key=lambda pair: pair[0])]
