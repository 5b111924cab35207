"""What would shorten a pipeline: each change is a plan from a plan, and the simulator judges it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tiledask.plan.diagnosis.timed import Form, TimedSchedule, forms, recut
from tiledask.plan.pipelines.schedule import Schedule

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


@dataclass(frozen=True)
class Remedy:
    """One change, and what the simulator says of it."""

    change: str
    plan: TimedSchedule
    """What runs after the change; ``plan.timeline`` is the simulation."""
    gain: float
    """Share of the simulated makespan that is saved; below 0 if it gets longer."""
    memory: float
    """Activations of the fullest device, in micro-batches of the trace on its share of layers."""
    fits: bool
    """Whether that is within the memory limit."""

    @property
    def makespan(self) -> float:
        """Seconds."""
        return self.plan.makespan

    @property
    def idle_share(self) -> float:
        """idle / (devices x makespan) after the change."""
        return self.plan.idle_share

    def to_dict(self) -> dict[str, object]:
        """Everything but the plan's schedule, as JSON can hold it."""
        order = self.plan.schedule
        of_plan = {
            "schedule": str(self.plan.form or order.name),
            "microbatches": order.microbatches,
            "stages": order.stages,
        }
        names = ("makespan", "idle_share", "gain", "memory", "fits")
        return {"change": self.change, **of_plan} | {name: getattr(self, name) for name in names}


def remedies(plan: TimedSchedule, memory_limit: float | None = None) -> tuple[Remedy, ...]:
    """The best Remedy of each lever that saves something: MOST at most, those that fit in memory
    first, largest gain first.

    memory_limit   most micro-batches (of ``plan``) whose activations a device may keep

    Of one lever the plainest change that saves NEARLY what the best one does is taken: 1F1B before
    a schedule in chunks, that before a split backward, and weights kept twice last.

    >>> form = Form("naive", 4, 1, 1)
    >>> best = remedies(TimedSchedule(form.made(), (1.0,) * 4, (2.0,) * 4, form=form))[0]
    >>> best.change, best.makespan
    ('8 micro-batches of 1/8 the size, schedule 1f1b', 4.125)
    """
    of_lever: dict[str, list[Remedy]] = defaultdict(list)
    for lever, remedy in every_remedy(plan, memory_limit):
        if remedy.gain > LEAST:
            of_lever[lever].append(remedy)
    return tuple(sorted(map(_plainest, of_lever.values()), key=_merit)[:MOST])


def _plainest(found: list[Remedy]) -> Remedy:
    """The plainest change of a lever of those that save nearly what its best one does."""
    best = min(found, key=_merit)
    near = [r for r in found if r.fits == best.fits and r.gain >= NEARLY**2 * best.gain]
    once = [r for r in near if r.plan.schedule.replicas == 1] or near
    enough = [r for r in once if r.gain >= NEARLY * max(o.gain for o in once)]
    least = min(_effort(r.plan.schedule) for r in enough)
    plain = [r for r in enough if _effort(r.plan.schedule) == least]
    alike = [r for r in plain if r.gain >= 0.9 * max(o.gain for o in plain)]
    return min(alike, key=lambda r: (r.memory, *_merit(r)))  # the one that keeps least


def _merit(r: Remedy) -> tuple[bool, float, float]:
    return not r.fits, -round(r.gain, 9), r.memory


def _effort(order: Schedule) -> tuple[bool, int]:
    """What has to be built for it: a backward in two halves, then chunks."""
    return bool((order.kind > 1).any()), order.stages


def every_remedy(
    plan: TimedSchedule, memory_limit: float | None = None
) -> Iterator[tuple[str, Remedy]]:
    """(lever, Remedy) for every change that is tried, also those that save nothing."""
    base, m = plan.makespan, plan.schedule.microbatches
    limit = float("inf") if memory_limit is None else memory_limit
    for lever, change, after in _changes(plan):
        if after is not None:
            memory, gain = after.memory * m, 1 - after.makespan / base if base else 0.0
            yield lever, Remedy(change, after, gain, memory, memory <= limit * (1 + 1e-9))


def _changes(plan: TimedSchedule) -> Iterator[tuple[str, str, TimedSchedule | None]]:
    """(lever, words, plan); None where a schedule has no such counts."""
    m, p = plan.schedule.microbatches, plan.devices
    most = max(FINER, 2 * p / m)  # or two per device
    finer = [
        (n * m, f"{n * m} micro-batches of 1/{n} the size", _finer(plan, n))
        for n in (2**k for k in range(1, 31) if 2 ** (k - 1) < most)
    ]
    for many, words, smaller in finer:
        if plan.form is not None:
            form = plan.form._replace(microbatches=many)
            yield "micro-batches", words, _rescheduled(smaller, form)
    if p > 1:
        yield "stages", "equal stages", equal_stages(plan)
        for form in forms(p, m, plan.schedule.trains):
            other = _rescheduled(plan, form)
            if other is not None and other.schedule != plan.schedule:
                yield "schedule", _named(form, other), other
            if plan.form is None or form[:3] != plan.form[:3]:
                for many, words, smaller in finer:
                    both = _rescheduled(smaller, form._replace(microbatches=many))
                    if both is not None:
                        yield "micro-batches and schedule", f"{words}, {_named(form, both)}", both
        for times in FASTER if any(plan.latency) else ():
            latency = tuple(c / times for c in plan.latency)
            yield "links", f"links {times} times as fast", replace(plan, latency=latency)
    if plan.overhead:
        yield "overhead", "no overhead between actions", replace(plan, overhead=0.0)


def _named(form: Form, plan: TimedSchedule) -> str:
    return f"schedule {form}" + (", weights twice" if plan.schedule.replicas > 1 else "")


def _finer(plan: TimedSchedule, n: int) -> TimedSchedule:
    """An action takes time in proportion to its tokens; latency and overhead stay the same."""
    return plan.retimed(lambda times: tuple(t * (1 / n) for t in times))


def equal_stages(plan: TimedSchedule) -> TimedSchedule:
    """``plan`` with the same work shared evenly by its stages.

    >>> before = TimedSchedule(Form("gpipe", 2, 1, 2).made(), (1.0, 3.0), (2.0, 6.0))
    >>> equal_stages(before).forward, before.makespan, equal_stages(before).makespan
    ((2.0, 2.0), 21.0, 18.0)
    """
    stages = plan.schedule.stages
    return plan.retimed(lambda times: (sum(times) / stages,) * stages)


def _rescheduled(plan: TimedSchedule, form: Form) -> TimedSchedule | None:
    """``plan``'s work in the order of another Form; None if that has no such counts, or is large.

    More or fewer stages are cut out of the present ones, at equal depth; where the boundaries
    change, each has the mean latency. "zb-auto" is made for the plan's own times.
    """
    stages, latency = form.devices * form.chunks, plan.latency
    if 3 * stages * form.microbatches > MOST_ACTIONS:
        return None
    mean = sum(latency) / len(latency) if latency else 0.0
    if stages != plan.schedule.stages:
        latency = (mean,) * (stages - 1)
    after = plan.retimed(lambda times: recut(times, stages))
    after = replace(after, form=form, latency=latency)
    made_for = {}
    if form.name == "zb-auto":
        kinds = ("forward", "backward_input", "backward_weight")
        made_for = {kind: after.times[kind] for kind in kinds} | {"latency": mean}
    order = form.made(**made_for)
    return None if order is None else replace(after, schedule=order)
