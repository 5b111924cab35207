"""What would shorten a pipeline: each change is a plan from a plan, and the simulator judges it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np

from tiledask.plan.diagnosis.timed import TIMES, Form, TimedSchedule, forms, made, title
from tiledask.plan.pipelines.validate import most_kept

__all__ = ["Remedy", "equal_stages", "every_remedy", "remedies"]

MOST = 5
"""Remedies that are shown."""
LEAST = 0.002
"""Share of the makespan that a remedy saves: less is noise."""
NEARLY = 0.75
"""Of the best gain of a lever; a plainer change that has this much goes before."""
FINER = 8
"""By how much micro-batches are made smaller, if that gives each device two or more."""
FASTER = (2, 10)
"""By how much links are made faster."""
MOST_ACTIONS = 50_000
"""Of a plan that is simulated as a remedy: some 0.2 s."""


class Remedy(NamedTuple):
    """One change, and what the simulator says of it."""

    change: str
    plan: TimedSchedule  # what runs after the change; ``plan.timeline`` is the simulation
    makespan: float  # seconds
    gain: float  # share of the simulated makespan that is saved; below 0 if it gets longer
    memory: float
    """Activations of the fullest device, in micro-batches of the trace on its share of layers."""


def remedies(plan: TimedSchedule) -> tuple[Remedy, ...]:
    """The best Remedy of each lever that saves something: MOST at most, largest gain first.

    Of one lever the plainest change that saves NEARLY what the best one does is taken: 1F1B before
    a schedule in chunks, that before a split backward, and weights kept twice last.
    """
    of_lever: dict[str, list[Remedy]] = defaultdict(list)
    for lever, remedy in every_remedy(plan):
        if remedy.gain > LEAST:
            of_lever[lever].append(remedy)

    def most(some: list[Remedy], part: float) -> list[Remedy]:
        return [r for r in some if r.gain >= part * max(o.gain for o in some)]

    found = []
    for tried in of_lever.values():  # of those that save nearly as much what is least to build
        near = most(tried, NEARLY**2)
        enough = most([r for r in near if r.plan.schedule.replicas == 1] or near, NEARLY)
        orders = [r.plan.schedule for r in enough]
        efforts = [(bool((order.kind > 1).any()), order.stages) for order in orders]
        least = [r for r, n in zip(enough, efforts, strict=True) if n == min(efforts)]
        alike = most(least, 0.9)
        found.append(min(alike, key=lambda r: (r.memory, -round(r.gain, 9))))
    return tuple(sorted(found, key=lambda r: (-round(r.gain, 9), r.memory))[:MOST])


def every_remedy(plan: TimedSchedule) -> Iterator[tuple[str, Remedy]]:
    """(lever, Remedy) for every change that is tried, also those that save nothing; before them
    the plan as it is."""
    base, m = plan.timeline.makespan, plan.schedule.microbatches
    for lever, change, after in chain([("", "(as it is)", plan)], _changes(plan)):
        makespan, s = after.timeline.makespan, after.schedule
        # of the whole batch, on equal stages: GPipe keeps 1, 1F1B p / m
        memory = max(most_kept(s)[0]) * s.devices / s.stages / s.microbatches
        gain = 1 - makespan / base if base else 0.0
        yield lever, Remedy(change, after, makespan, gain, memory * m)


def _changes(plan: TimedSchedule) -> Iterator[tuple[str, str, TimedSchedule]]:
    """(lever, words, plan); finer micro-batches take less time, their hops and overhead do not."""
    order = plan.schedule
    m, p = order.microbatches, order.devices
    most = max(FINER, 2 * p / m)  # or two per device
    parts = [1] + [2**k for k in range(1, 31) if 2 ** (k - 1) < most]
    yield "stages", "equal stages", equal_stages(plan)
    for part, form in product(parts, forms(p) if order.trains else ()):
        other = _rescheduled(replace(plan, seconds=plan.seconds / part), form, part * m)
        if other is None or other.schedule == order:
            continue
        finer = f"{part * m} micro-batches of 1/{part} the size"
        named = f"schedule {title(other.schedule)}"
        named += ", weights twice" if other.schedule.replicas > 1 else ""
        if title(other.schedule) == title(order):
            yield "micro-batches", finer, other
        elif p > 1 and part == 1:
            yield "schedule", named, other
        elif p > 1:
            yield "micro-batches and schedule", f"{finer}, {named}", other
    for times in FASTER if plan.hops.any() else ():
        yield "links", f"links {times} times as fast", replace(plan, hops=plan.hops / times)
    if plan.overhead:
        yield "overhead", "no overhead between actions", replace(plan, overhead=0.0)


def equal_stages(plan: TimedSchedule) -> TimedSchedule:
    """``plan`` with the same work shared evenly by its stages."""
    mean = plan.seconds.mean(axis=1, keepdims=True)
    return replace(plan, seconds=np.repeat(mean, plan.schedule.stages, axis=1))


def _rescheduled(plan: TimedSchedule, form: Form, microbatches: int) -> TimedSchedule | None:
    """``plan``'s work in the order of another Form; None if that has no such counts, or is large.
    Other stages are cut at equal depth out of the present ones, with the mean latency."""
    name, devices, chunks = form
    stages, now = devices * chunks, plan.schedule.stages
    if 3 * stages * microbatches > MOST_ACTIONS:
        return None
    mean = float(plan.hops.mean()) if len(plan.hops) else 0.0
    if stages != now:
        done = np.pad(np.cumsum(plan.seconds, axis=1), ((0, 0), (1, 0)))
        depth, cuts = np.linspace(0.0, 1.0, now + 1), np.linspace(0.0, 1.0, stages + 1)
        cut = np.diff([np.interp(cuts, depth, each) for each in done])
        plan = replace(plan, seconds=cut, hops=np.full(stages - 1, mean))
    times: dict[str, Any] = {}
    if name == "zb-auto":
        times = {name: tuple(plan.times[name].tolist()) for name in TIMES if name != "backward"}
        times["latency"] = mean
    order = made(name, devices, chunks, microbatches, **times)
    return None if order is None else replace(plan, schedule=order)
