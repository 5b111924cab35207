"""What would shorten a pipeline: each change is a plan from a plan, and the simulator judges it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tiledask.plan.diagnosis.timed import Form, TimedSchedule, forms

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
    plan: TimedSchedule
    """What runs after the change; ``plan.timeline`` is the simulation."""
    gain: float
    """Share of the simulated makespan that is saved; below 0 if it gets longer."""
    memory: float
    """Activations of the fullest device, in micro-batches of the trace on its share of layers."""

    @property
    def makespan(self) -> float:
        """Seconds."""
        return self.plan.makespan

    def to_dict(self) -> dict[str, object]:
        """Everything but the plan's schedule, as JSON can hold it."""
        order = self.plan.schedule
        return {
            "change": self.change,
            "schedule": str(self.plan.form or order.name),
            "microbatches": order.microbatches,
            "stages": order.stages,
            "makespan": self.makespan,
            "idle_share": self.plan.idle_share,
            "gain": self.gain,
            "memory": self.memory,
        }


def remedies(plan: TimedSchedule) -> tuple[Remedy, ...]:
    """The best Remedy of each lever that saves something: MOST at most, largest gain first.

    Of one lever the plainest change that saves NEARLY what the best one does is taken: 1F1B before
    a schedule in chunks, that before a split backward, and weights kept twice last.

    >>> form = Form("naive", 4, 1, 1)
    >>> best = remedies(TimedSchedule(form.made(), (1.0,) * 4, (2.0,) * 4, form=form))[0]
    >>> best.change, best.makespan
    ('8 micro-batches of 1/8 the size, schedule 1f1b', 4.125)
    """
    of_lever: dict[str, list[Remedy]] = defaultdict(list)
    for lever, remedy in every_remedy(plan):
        if remedy.gain > LEAST:
            of_lever[lever].append(remedy)
    return tuple(sorted(map(_plainest, of_lever.values()), key=_merit)[:MOST])


def _merit(r: Remedy) -> tuple[float, float]:
    return -round(r.gain, 9), r.memory


def _plainest(found: list[Remedy]) -> Remedy:
    """The plainest change of a lever of those that save nearly what its best one does: what has to
    be built for it is a backward in two halves, then chunks."""

    def most(some: list[Remedy], part: float) -> list[Remedy]:
        return [r for r in some if r.gain >= part * max(o.gain for o in some)]

    def effort(r: Remedy) -> tuple[bool, int]:
        return bool((r.plan.schedule.kind > 1).any()), r.plan.schedule.stages

    near = most(found, NEARLY**2)
    enough = most([r for r in near if r.plan.schedule.replicas == 1] or near, NEARLY)
    least = min(map(effort, enough))
    alike = most([r for r in enough if effort(r) == least], 0.9)
    return min(alike, key=lambda r: (r.memory, *_merit(r)))  # the one that keeps least


def every_remedy(plan: TimedSchedule) -> Iterator[tuple[str, Remedy]]:
    """(lever, Remedy) for every change that is tried, also those that save nothing."""
    base, m = plan.makespan, plan.schedule.microbatches
    for lever, change, after in _changes(plan):
        if after is not None:
            gain = 1 - after.makespan / base if base else 0.0
            yield lever, Remedy(change, after, gain, after.memory * m)


def _changes(plan: TimedSchedule) -> Iterator[tuple[str, str, TimedSchedule | None]]:
    """(lever, words, plan); None where a schedule has no such counts."""
    m, p, own = plan.schedule.microbatches, plan.devices, plan.form
    most = max(FINER, 2 * p / m)  # or two per device
    # an action takes time in proportion to its tokens; latency and overhead stay the same
    finer = {
        n * m: _scaled(plan, 1 / n) for n in (2**k for k in range(1, 31) if 2 ** (k - 1) < most)
    }
    words = {many: f"{many} micro-batches of 1/{many // m} the size" for many in finer}
    for many, smaller in finer.items() if own is not None else ():
        form = own._replace(microbatches=many)  # type: ignore[union-attr]
        yield "micro-batches", words[many], _rescheduled(smaller, form)
    if p > 1:
        yield "stages", "equal stages", equal_stages(plan)
        for form in forms(p, m, plan.schedule.trains):
            other = _rescheduled(plan, form)
            if other is not None and other.schedule != plan.schedule:
                yield "schedule", _named(other), other
            for many, smaller in finer.items() if own is None or form[:3] != own[:3] else ():
                both = _rescheduled(smaller, form._replace(microbatches=many))
                if both is not None:
                    yield "micro-batches and schedule", f"{words[many]}, {_named(both)}", both
        for times in FASTER if any(plan.latency) else ():
            latency = tuple(c / times for c in plan.latency)
            yield "links", f"links {times} times as fast", replace(plan, latency=latency)
    if plan.overhead:
        yield "overhead", "no overhead between actions", replace(plan, overhead=0.0)


def _scaled(plan: TimedSchedule, part: float) -> TimedSchedule:
    return plan.retimed(lambda times: tuple(t * part for t in times))


def _named(plan: TimedSchedule) -> str:
    return f"schedule {plan.form}" + (", weights twice" if plan.schedule.replicas > 1 else "")


def equal_stages(plan: TimedSchedule) -> TimedSchedule:
    """``plan`` with the same work shared evenly by its stages."""
    stages = plan.schedule.stages
    return plan.retimed(lambda times: (sum(times) / stages,) * stages)


def _rescheduled(plan: TimedSchedule, form: Form) -> TimedSchedule | None:
    """``plan``'s work in the order of another Form; None if that has no such counts, or is large.

    More or fewer stages are cut out of the present ones, at equal depth, the time of each spread
    evenly over its layers; where the boundaries change, each has the mean latency. "zb-auto" is
    made for the plan's own times.
    """
    stages, latency = form.devices * form.chunks, plan.latency
    if 3 * stages * form.microbatches > MOST_ACTIONS:
        return None
    mean = sum(latency) / len(latency) if latency else 0.0

    def recut(times: tuple[float, ...]) -> tuple[float, ...]:
        depth = np.linspace(0.0, 1.0, len(times) + 1)
        done = np.concatenate([[0.0], np.cumsum(times)])
        cuts = np.interp(np.linspace(0.0, 1.0, stages + 1), depth, done)
        return tuple(np.diff(cuts).tolist())

    if stages != plan.schedule.stages:
        plan = plan.retimed(recut, latency=(mean,) * (stages - 1))
    made_for: dict[str, Any] = {}
    if form.name == "zb-auto":
        kinds = ("forward", "backward_input", "backward_weight")
        made_for = {kind: plan.times[kind] for kind in kinds} | {"latency": mean}
    order = form.made(**made_for)
    return None if order is None else replace(plan, schedule=order, form=form)
