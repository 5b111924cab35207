"""From rows of a trace to the plan behind them: guess a schedule, read its times off, simulate.

A guess gives each row of a device its turn, so its kind and stage; then
    F, B, I, W of a stage   the median length of its rows: one hiccup is no property of a stage
    hop                     start - end of the result it waited for, where that came last
    overhead                start - end of the row before, where that was what it waited for
and the guess is right if the simulator, told these times, puts every row where it was.
"""

import math
from itertools import pairwise

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.diagnosis.timed import OWN, Form, TimedSchedule, forms, made
from tiledask.plan.diagnosis.trace import Trace, is_labelled
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.validate import validate

__all__ = ["EXACT", "MANY", "Explained", "fit_labelled", "fit_rows"]

EXACT = 1e-9
"""Share of the makespan within which a simulated time is that of the trace."""
MANY = 20_000
"""Rows from which not every schedule of the table is tried."""
NEARLY = 0.05
"""Share of the makespan beyond which no plan explains rows."""
CHUNKS = 8
"""Most stages of a device in the schedules that are tried."""
Explained = tuple[TimedSchedule, float, list[Schedule]]
"""(a plan that explains a trace, seconds by which its edges are off at most, the other orders of
the table that fit as well)."""


def _fit(order: Schedule | None, trace: Trace) -> tuple[float, float, TimedSchedule] | None:
    """(merit, error, plan) if the rows of ``trace`` can be the actions of ``order``, else None.
    The merit is a Bayesian information criterion: less is better, times read off are a price."""
    run, _, grain = trace
    if order is None or not np.array_equal(order.device, run.device) or order.paired.any():
        return None
    mine = order.kind, order.stage, order.microbatch
    read = run.code, run.stage, run.microbatch
    if any(((r >= 0) & (m != r)).any() for m, r in zip(mine, read, strict=True)):
        return None
    # seconds since a result of another device that it needs, and since the row before
    maker = np.maximum(order.maker, 0)
    remote = (order.maker >= 0) & (order.device[maker] != order.device)
    since = np.where(remote, run.start - run.end[maker], np.inf)
    before = np.append(np.inf, run.start[1:] - run.end[:-1])
    before[order.turns[:-1]] = np.inf
    boundary = np.where(remote, np.minimum(order.stage, order.stage[maker]), -1)
    little = EXACT * run.makespan
    if since.min(initial=np.inf) < -little - grain:
        return None  # a result is used before it is there
    hops, overhead, untold = _read_off(since, before, boundary, order.stages, little)
    # the median length of each kind on each stage; 0 where there is none
    length, key = run.end - run.start, order.kind.astype(np.int64) * order.stages + order.stage
    count = np.bincount(key, minlength=4 * order.stages)
    first = np.cumsum(count) - count
    middle = np.minimum([first + (count - 1) // 2, first + count // 2], len(length) - 1)
    typical = np.where(count > 0, length[np.lexsort((length, key))][middle].mean(axis=0), 0.0)
    # a kind that a stage never does follows from the others
    done = count.reshape(4, -1) > 0
    forward, whole, inputs, weights = typical.reshape(4, -1)
    whole = np.where(done[1], whole, inputs + weights)
    halves = (np.where(done[2], half, whole / 2) for half in (inputs, weights))
    seconds = np.stack([forward, whole, *halves])
    plan = TimedSchedule(order, seconds, hops, overhead, untold)
    error = float(np.abs(plan.timeline.end - overhead - run.end).max())
    # the mean distance of a length from its median, and of a start from when, after what really
    # came before it, it should have been
    ready = np.minimum(before, since - np.append(hops, 0.0)[boundary])
    late = np.where(np.isfinite(ready), ready - overhead, 0.0)
    spread = float(np.abs(np.concatenate([length - typical[key], late])).mean())
    if spread > NEARLY * run.makespan and not is_labelled(run):
        return None
    links = len(set(hops.tolist())) if "latency" not in untold else 0
    read_off = int(done.sum()) + links + (overhead > 0)
    rows, off = 2 * len(length), max(spread, little)
    return rows * math.log(off) + read_off * math.log(rows), error, plan


def _read_off(
    since: np.ndarray, before: np.ndarray, boundary: np.ndarray, stages: int, little: float
) -> tuple[np.ndarray, float, tuple[str, ...]]:
    """Medians of what came last: (seconds over each boundary, overhead of an action, which of the
    two is not told, as no action waited for a result, or for its turn)."""
    hop = (boundary >= 0) & (since < before)
    of_boundary = np.zeros(stages)  # the last is of what comes over none
    of_boundary[:-1] = np.median(since[hop]) if hop.any() else 0.0
    for b in np.unique(boundary[hop]):
        of_boundary[b] = np.median(since[hop & (boundary == b)])
    turn = np.isfinite(before) & (since >= before + of_boundary[boundary])
    overhead = max(0.0, float(np.median(before[turn]))) if turn.any() else 0.0
    overhead = overhead if overhead > little else 0.0
    hops = np.maximum(0.0, of_boundary[:-1] - overhead)
    hops[hops <= little] = 0.0
    if len(hops) and np.ptp(hops) <= little:
        hops[:] = hops[0]
    waits = {"latency": hop, "overhead": turn}
    return hops, overhead, tuple(name for name, waited in waits.items() if not waited.any())


def fit_labelled(trace: Trace) -> Explained:
    """What explains a trace that says each row's action. Raises ScheduleError if it cannot be."""
    run, *_ = trace
    m, stages = 1 + int(run.microbatch.max()), 1 + int(run.stage.max())
    for name, devices, chunks in forms(run.devices, most=stages // run.devices):
        order = made(name, devices, chunks, m) if chunks * devices == stages else None
        if fit := _fit(order, trace):
            return fit[2], fit[1], []
    # none of the table: an order of its own
    place = np.full((m, stages), -1)
    place[run.microbatch, run.stage] = run.device
    anywhere = place.max(axis=0)
    if anywhere.min() < 0:
        raise ConfigError(
            f"{run.origin} has stage {stages - 1} but no row of stage {anywhere.argmin()}; a "
            f"trace holds every stage of one training step"
        )
    place = np.where(place < 0, anywhere, place)
    pipelines = next(n for n in range(1, m + 1) if (place == place[np.arange(m) % n]).all())
    kinds = [KINDS[k] for k in run.code.tolist()]
    actions = list(map(Action, kinds, run.stage.tolist(), run.microbatch.tolist()))
    turns = np.searchsorted(run.device, np.arange(run.devices + 1))
    orders = [actions[a:b] for a, b in pairwise(turns)]
    fit = _fit(validate(Schedule.of(orders, place[:pipelines].tolist(), OWN)), trace)
    if fit is None:
        raise ConfigError(
            f"{run.origin} has an action that starts before the result it needs is there; "
            f"check its labels and the clocks of its devices"
        )
    return fit[2], fit[1], []


def fit_rows(trace: Trace) -> Explained | None:
    """What explains rows best whose labels are missing, in part or all; None if nothing fits."""
    run, *_ = trace
    rows, tried = np.bincount(run.device), list[tuple[int, Form, int]]()
    for name, devices, chunks in forms(run.devices, CHUNKS):
        split = name.startswith(("zb", "v-")) or name.endswith("zb")
        actions = chunks * (3 if split else 2)  # of a micro-batch
        if rows.min() == rows.max() and rows[0] % actions == 0:
            tried.append((actions, (name, devices, chunks), int(rows[0]) // actions))
    floor, found = EXACT * run.makespan, list[tuple[float, float, TimedSchedule]]()
    for _, form, m in sorted(tried, key=lambda each: each[0]):  # those with fewer times first
        if fit := _fit(made(*form, m), trace):
            found.append(fit)
            if fit[1] <= floor and len(run.start) > MANY:
                break
    if not found:
        return None
    best, error, plan = min(found, key=lambda fit: fit[0])
    close = (one.schedule for merit, off, one in found if merit <= best + 2.0 or off <= floor)
    return plan, error, [order for order in close if order.orders != plan.schedule.orders]
