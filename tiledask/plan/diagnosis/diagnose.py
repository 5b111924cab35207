"""Why the devices of a pipeline idle, from a trace alone; and what would help, simulated.

trace --> devices, micro-batches, schedule, stage times, latency                  (infer.py)
      --> idle time = ramp + imbalance + communication + overhead + unexplained
      --> more micro-batches | equal stages | another schedule | faster links  (remedies.py)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from tiledask.plan.diagnosis.infer import EXACT, MANY, Explained, fit_labelled, fit_rows
from tiledask.plan.diagnosis.remedies import Remedy, equal_stages, every_remedy, remedies
from tiledask.plan.diagnosis.timed import TimedSchedule, title
from tiledask.plan.diagnosis.trace import Trace, is_labelled, read_trace
from tiledask.plan.pipelines.timeline import CAUSES as IDLE
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.tables import Part, Printable, Table, table
from tiledask.plan.units import format_seconds

__all__ = ["CAUSES", "Diagnosis", "Finding", "diagnose"]

UNSURE = "cannot be told"
MEASURE = (
    "record one training step with a label around each action, such as "
    'torch.profiler.record_function("0F3"): forward of micro-batch 3 on stage 0'
)
"""The measurement that would tell what a trace does not."""
TURNS = 0.1
"""Share of the busy time with two devices or more at once, below which they take turns."""
LITTLE = 0.05
"""Share of device-time: less idle time than this is nothing to mend."""
CAUSES = {
    "one at a time": "waits for other stages: no two work at once",
    "ramp": "not yet filled, waits for other stages, draining, as equal stages and free links have",
    "imbalance": "waits for slower stages",
    "communication": IDLE["transfer"],
    "overhead": IDLE["overhead"],
    "unexplained": "what the inferred plan, simulated, does not have",
}
"""Name -> what a device does meanwhile."""


class Finding(NamedTuple):
    """One thing inferred, and how sure that is."""

    name: str
    value: Any  # a number, a tuple with one per stage, or text; None if it cannot be told
    sure: str = UNSURE  # "exact", "likely" or "cannot be told"
    why: str = ""


@dataclass(frozen=True, repr=False)
class Diagnosis(Printable):
    """What a trace says about a pipeline, and what to change."""

    source: str
    devices: int
    makespan: float  # seconds, of the trace
    idle: float  # device-seconds, of the trace
    findings: tuple[Finding, ...]
    causes: dict[str, float]
    """Of CAUSES, each with device-seconds, which sum to ``idle``, the largest first; only
    "unexplained" can be below 0."""
    plan: TimedSchedule | None  # the plan behind the trace; None if it cannot be told

    @property
    def idle_share(self) -> float:
        """idle / (devices x makespan), of the trace."""
        return self.idle / (self.devices * self.makespan)

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """Largest gain first, simulated when they are first asked for; () if no plan was found."""
        return remedies(self.plan) if self.plan else ()

    def __getitem__(self, name: str) -> Finding:
        """The Finding called ``name``."""
        return {finding.name: finding for finding in self.findings}[name]

    @property
    def summary(self) -> tuple[str, ...]:
        """Sentences: the main cause, the best remedy with its predicted gain, what to measure."""
        (cause, seconds), idle = next(iter(self.causes.items())), 100 * self.idle_share
        sentences = [
            f"Devices are idle {idle:.0f} % of the time, {100 * seconds / self.idle:.0f} % "
            f"of it {cause}: {CAUSES[cause]}."
            if self.idle_share >= LITTLE
            else f"Devices work {100 - idle:.1f} % of the time: there is little to gain."
        ]
        if self.plan is None:
            sentences.append(f"To tell more: {MEASURE}.")
        elif self.remedies:
            best, now = self.remedies[0], format_seconds(self.plan.timeline.makespan)
            sentences.append(
                f"Best remedy: {best.change}. Predicted: {now} "
                f"becomes {format_seconds(best.makespan)} ({100 * best.gain:.0f} % saved)."
            )
        return tuple(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it; seconds and shares."""
        names = ("source", "devices", "makespan", "idle", "idle_share")
        remedies: list[dict[str, Any]] = []
        for change, plan, makespan, gain, memory in self.remedies:
            order = plan.schedule
            facts: dict[str, Any] = {"microbatches": order.microbatches, "stages": order.stages}
            facts |= {"change": change, "schedule": title(order), "makespan": makespan}
            facts["idle_share"] = plan.idle / (self.devices * makespan)
            remedies.append(facts | {"gain": gain, "memory": memory})
        return {name: getattr(self, name) for name in names} | {
            "findings": {
                name: {"value": v, "sure": s, "why": w} for name, v, s, w in self.findings
            },
            "causes": self.causes,
            "summary": list(self.summary),
            "remedies": remedies,
        }

    def __repr__(self) -> str:
        return (
            f"Diagnosis({self.devices} devices, {self['schedule'].value or 'schedule unknown'}, "
            f"{100 * self.idle_share:.1f} % idle, most of it {next(iter(self.causes))})"
        )

    def printed(self) -> Iterator[Part]:
        """What was found, and what would help."""
        yield (
            f"{self.source}: {self.devices} devices, makespan {format_seconds(self.makespan)}, "
            f"{100 * self.idle_share:.1f} % of device-time idle"
        )
        yield from self.summary
        found = []
        for name, value, sure, why in self.findings:
            shown = format_seconds(value) if isinstance(value, float) else str(value or "-")
            if name == "imbalance":
                shown = f"{100 * value:.1f} %"
            elif isinstance(value, tuple):
                shown = ", ".join([*map(format_seconds, value[:6]), "..."][: len(value)])
            found.append((name, shown, ": ".join(filter(None, (sure, why)))))
        yield Table(("inferred", "value", "how sure"), found, left=range(3))
        idle = {
            name: {"device-seconds": s, "share": s / self.idle, "while": CAUSES[name]}
            for name, s in self.causes.items()
            if s
        }
        if idle:
            units = {"device-seconds": "seconds", "share": "percent"}
            yield table(idle, "where the idle time comes from", **units)
        if self.remedies and self.plan:
            _, now = next(every_remedy(self.plan))
            changes = {
                change: {
                    "makespan": makespan,
                    "idle": plan.idle / (self.devices * makespan),
                    "saved": gain,
                    "memory": memory,
                }
                for change, plan, makespan, gain, memory in (now, *self.remedies)
            }
            units = {"makespan": "seconds", "idle": "percent", "saved": "percent"}
            yield table(changes, "remedies, simulated", **units)
            yield "memory: activations that the fullest device keeps, in today's micro-batches"


def diagnose(trace: Timeline | str | PathLike[str] | Any) -> Diagnosis:
    """The Diagnosis of one training step of a pipeline.

    trace   a Timeline; a table or a CSV file with the columns device, start, end, in seconds, and,
            if known, kind, stage, microbatch; a Chrome trace (JSON, as torch.profiler writes it,
            packed or not) with labels, or those of all ranks as a list of paths or their folder

    Of several training steps the one of median length is read.
    Devices are in the order in which they begin. Raises ConfigError for a trace that cannot be
    read, and ScheduleError for labels of actions that cannot have run.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> d = diagnose(simulate(schedule("1f1b", stages=4, microbatches=8), latency=0.25))
    >>> d["schedule"].value, d["microbatches"].value, d["latency"].value, d["latency"].sure
    ('1f1b', 8, 0.25, 'exact')
    >>> {name: round(seconds, 6) for name, seconds in d.causes.items() if seconds}
    {'ramp': 36.0, 'communication': 16.0}
    """
    read = read_trace(trace)
    run, *_ = read
    fit = fit_labelled(read) if is_labelled(run) else fit_rows(read)
    plan, facts = fit[0] if fit else None, (run.origin, run.devices, run.makespan, run.idle)
    return Diagnosis(*facts, tuple(_findings(read, fit)), _causes(run, plan), plan)


def _findings(trace: Trace, fit: Explained | None) -> Iterator[Finding]:
    """What the trace shows; what it does not has the value None."""
    run, names, _ = trace
    yield Finding("devices", run.devices, "exact", "in this order: " + ", ".join(names))
    found: dict[str, Any] = dict.fromkeys(("forward", "backward", "imbalance"))
    found |= {"latency": None, "overhead": None}
    work, timed = np.array(run.busy_per_device), "exact"
    if fit is None:
        why = "no schedule of the table has these edges; is this one step, and all of it?"
        yield Finding("microbatches", None, why=why)
        yield Finding("schedule", None)
    else:
        plan, error, others = fit
        order, hops = plan.schedule, tuple(plan.hops.tolist())
        timed = "exact" if error <= EXACT * run.makespan else "likely"
        counted = named = "exact"
        why = "the order of its actions"
        if not is_labelled(run):
            each = [f"{title(one)} (micro-batches: {one.microbatches})" for one in others[:3]]
            why = f"simulated edges are within {format_seconds(error)} of the trace's"
            why += f"; so are those of {' and '.join(each)}" if each else ""
            same = all(one.microbatches == order.microbatches for one in others)
            counted = timed if same else "likely"
            named = timed if not others and len(run.start) <= MANY else "likely"
        yield Finding("microbatches", order.microbatches, counted, why)
        yield Finding("schedule", title(order), named, why)
        work = np.bincount(order.device, plan.seconds[order.kind, order.stage])
        found["forward"], found["backward"], *_ = (tuple(t.tolist()) for t in plan.seconds)
        if "latency" not in plan.untold or run.devices == 1:
            found["latency"] = hops[0] if len({*hops}) == 1 else hops or 0.0
        found["overhead"] = None if "overhead" in plan.untold else plan.overhead
    found["imbalance"] = float(work.max() / work.mean() - 1) if work.any() else 0.0
    most = f"device {names[int(work.argmax())]} has the most work, over the mean"
    for name, value in found.items():
        why = most if name == "imbalance" else ""
        yield Finding(name, value, UNSURE if value is None else timed, why)


def _causes(run: Timeline, plan: TimedSchedule | None) -> dict[str, float]:
    """The parts of the idle time, largest first: what it shrinks by as each cause is taken out;
    without a plan only when devices begin and end, and how much they work."""
    # do devices take turns, hardly ever two at once, whatever the noise? Where one has most of the
    # work, the others' is little beside it: there the rule is stricter
    at, busy = np.concatenate([run.start, run.end]), np.array(run.busy_per_device)
    order = np.argsort(at, kind="stable")
    at_once = np.cumsum(np.repeat([1, -1], len(run.start))[order])[:-1]
    shared = np.bincount(np.clip(at_once, 0, 2), np.diff(at[order]), minlength=3)
    most = float(busy.max())
    uneven = run.devices * most - run.busy >= run.devices * (run.makespan - most)
    in_turn = float(shared[2] / shared[1:].sum()) < (TURNS / 5 if uneven else TURNS)
    waits = "one at a time" if in_turn and run.devices > 1 else "ramp"
    if plan:
        no_overhead = replace(plan, overhead=0.0)
        no_latency = replace(no_overhead, hops=0.0 * plan.hops)
        ramp = min(no_latency.idle, equal_stages(no_latency).idle)  # uneven stages can also help
        seconds = {
            waits: ramp,
            "imbalance": no_latency.idle - ramp,
            "communication": no_overhead.idle - no_latency.idle,
            "overhead": plan.idle - no_overhead.idle,
        }
    else:
        turns = np.searchsorted(run.device, np.arange(run.devices + 1))
        first, last = run.start[turns[:-1]], run.end[turns[1:] - 1]
        slower = np.minimum(last - first - busy, busy.max() - busy).sum()
        ramp = float((first + run.makespan - last).sum())
        seconds = {waits: ramp, "imbalance": max(0.0, float(slower))}
    tiny = 1e-9 * run.devices * run.makespan
    seconds = {name: s if abs(s) > tiny else 0.0 for name, s in seconds.items()}
    rest = run.idle - sum(seconds.values())
    if abs(rest) <= tiny:  # rounding
        seconds[next(iter(seconds))] += rest
        rest = 0.0
    seconds["unexplained"] = rest
    return dict(sorted(seconds.items(), key=lambda each: -each[1]))
