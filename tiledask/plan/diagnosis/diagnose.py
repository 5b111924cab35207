"""Why the devices of a pipeline idle, from a trace alone; and what would help, simulated.

trace --> devices, micro-batches, schedule, stage times, latency      (infer.py, nearest.py)
      --> idle time = ramp + imbalance + communication + overhead + unexplained
      --> more micro-batches | equal stages | another schedule | faster links  (remedies.py)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.diagnosis.infer import EXACT, MANY, TraceFit, fit_labelled, fit_rows
from tiledask.plan.diagnosis.nearest import fit_nearest, fit_turns
from tiledask.plan.diagnosis.remedies import Remedy, equal_stages, partitioned, remedies
from tiledask.plan.diagnosis.timed import TimedSchedule, built
from tiledask.plan.diagnosis.trace import Trace
from tiledask.plan.diagnosis.trace_files import read_trace
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.tables import Part, Printable, Table
from tiledask.plan.units import format_seconds

__all__ = ["Cause", "Diagnosis", "Finding", "diagnose"]

SURE = ("exact", "likely", "cannot be told")
LITTLE = 0.05
"""Share of device-time: less idle time than this is nothing to mend."""
_HEADLINES = {
    "one at a time": "{devices} devices, one busy at a time{average}: layer-wise execution, {one}"
    "which leaves each idle for {rest} of the time; here {idle} is idle.",
    "ramp": "{of}too few for the order they run in: filling and draining is {share} of "
    "the idle time.",
    "imbalance": "Uneven stages: {worst} has {more} more work than the mean, and waiting for it "
    "is {share} of the idle time.",
    "communication": "Slow links: results on their way are {share} of the idle time.",
    "overhead": "Slow starts: actions that are ready and not started are {share} of the idle time.",
    "unexplained": "No known cause has most of the idle time: {share} of it is unexplained.",
}


@dataclass(frozen=True)
class Finding:
    """One thing inferred, and how sure that is."""

    name: str
    value: Any
    """A number, a tuple with one per stage, or text; None if it cannot be told."""
    sure: str
    """One of SURE."""
    why: str = ""


@dataclass(frozen=True)
class Cause:
    """A part of the idle time."""

    name: str
    seconds: float
    """Device-seconds; only "unexplained" can be below 0."""
    words: str


@dataclass(frozen=True, repr=False)
class Diagnosis(Printable):
    """What a trace says about a pipeline, and what to change."""

    source: str
    devices: int
    makespan: float
    """Seconds, of the trace."""
    idle: float
    """Device-seconds, of the trace."""
    findings: tuple[Finding, ...]
    causes: tuple[Cause, ...]
    """They sum to ``idle``, largest first."""
    plan: TimedSchedule | None
    """The plan behind the trace; None if it cannot be told."""
    layers: tuple[float, ...] | None = None
    """Costs of the model's layers, for the remedies."""
    memory_limit: float | None = None
    """Most micro-batches whose activations a device may keep, for the remedies."""
    measure: str = ""
    """The one measurement that would tell what cannot be told; "" if all can."""

    @property
    def cause(self) -> str:
        """The name of the cause that most of the idle time has."""
        return self.causes[0].name

    @cached_property
    def summary(self) -> tuple[str, ...]:
        """Sentences: the main cause, the best remedy with its predicted gain, what to measure."""
        share = self.causes[0].seconds / self.idle if self.idle else 0.0
        worst, m = self["imbalance"], self["microbatches"].value
        headline = _HEADLINES[self.cause].format(
            devices=self.devices,
            share=f"{100 * share:.0f} %",
            idle=f"{100 * self.idle_share:.0f} %",
            rest=f"{self.devices - 1}/{self.devices}",
            average=" on average" if self["forward"].value is None else "",
            one="one micro-batch after the other, " if (m or 1) > 1 else "no micro-batches, ",
            worst=worst.why.split(" has ")[0],
            more=f"{100 * worst.value:.0f} %",
            of=f"{m} micro-batches on {self.devices} devices: " if m else "",
        )
        said = [headline]
        if self.idle_share < LITTLE:
            busy = 100 * (1 - self.idle_share)
            said = [f"Devices work {busy:.1f} % of the time: there is little to gain."]
        if self.remedies and self.plan:
            best = self.remedies[0]
            said.append(
                f"Best remedy: {best.change}. Predicted: {format_seconds(self.plan.makespan)} "
                f"becomes {format_seconds(best.makespan)} ({100 * best.gain:.0f} % saved)."
            )
        return (*said, f"To tell more: {self.measure}.") if self.measure else tuple(said)

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """Those that fit in memory first, largest gain first; () if no plan was found.

        Simulated when they are first asked for.
        """
        return remedies(self.plan, self.layers, self.memory_limit) if self.plan else ()

    def __getitem__(self, name: str) -> Finding:
        """The Finding called ``name``."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding {name!r}; there are {[f.name for f in self.findings]}")

    @property
    def idle_share(self) -> float:
        """idle / (devices x makespan), of the trace."""
        whole = self.devices * self.makespan
        return self.idle / whole if whole else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it; seconds and shares."""
        return {
            "source": self.source,
            "devices": self.devices,
            "makespan": self.makespan,
            "idle": self.idle,
            "idle_share": self.idle_share,
            "findings": {
                f.name: {"value": f.value, "sure": f.sure, "why": f.why} for f in self.findings
            },
            "causes": {c.name: c.seconds for c in self.causes},
            "summary": list(self.summary),
            "remedies": [r.to_dict() for r in self.remedies],
        }

    def __repr__(self) -> str:
        best = self.remedies[0] if self.remedies else None
        helps = ""
        if best and best.gain > 0:
            helps = f", best remedy: {best.change}, {100 * best.gain:.1f} %"
        return (
            f"Diagnosis({self.devices} devices, {self['schedule'].value or 'schedule unknown'}, "
            f"{100 * self.idle_share:.1f} % idle, most of it {self.cause}{helps})"
        )

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def printed(self) -> Iterator[Part]:
        """What was found, and what would help."""
        yield (
            f"{self.source}: {self.devices} devices, makespan {format_seconds(self.makespan)}, "
            f"{100 * self.idle_share:.1f} % of device-time idle"
        )
        yield from self.summary
        found = [
            (f.name, _value(f), ": ".join(filter(None, (f.sure, f.why)))) for f in self.findings
        ]
        yield Table(("inferred", "value", "how sure"), found, left=range(3))
        whole = self.idle or 1.0
        causes = [
            (c.name, format_seconds(c.seconds), f"{100 * c.seconds / whole:.1f} %", c.words)
            for c in self.causes
            if c.seconds
        ]
        if causes:
            yield Table(("idle time", "device-seconds", "share", ""), causes, left=(0, 3))
        if self.remedies and (plan := self.plan):
            memory = f"{plan.memory * plan.schedule.microbatches:.3g}"
            now = format_seconds(plan.makespan), f"{100 * plan.idle_share:.1f} %", "", memory
            rows = [("(as it is)", *now)] + [
                (
                    r.change,
                    format_seconds(r.makespan),
                    f"{100 * r.idle_share:.1f} %",
                    f"{100 * r.gain:+.1f} %",
                    f"{r.memory:.3g}" + ("" if r.fits else " !"),
                )
                for r in self.remedies
            ]
            below = "memory: activations that the fullest device keeps, in today's micro-batches"
            below += "" if all(r.fits for r in self.remedies) else "; ! is over the limit"
            head = ("remedies, simulated", "makespan", "idle", "saved", "memory")
            yield Table(head, rows, below=below)


_SECONDS = ("forward", "backward", "latency", "overhead")


def _value(finding: Finding) -> str:
    value = finding.value
    if value is None:
        return "-"
    if finding.name == "imbalance":
        return f"{100 * value:.1f} %"
    if finding.name not in _SECONDS:
        return str(value)
    if isinstance(value, tuple):
        shown = [format_seconds(v) for v in value[:6]]
        return ", ".join(shown) + (f", ... ({len(value)})" if len(value) > 6 else "")
    return format_seconds(value)


def diagnose(
    trace: Timeline | str | PathLike[str] | Any,
    *,
    unit: str | None = None,
    layers: Sequence[float] | None = None,
    memory_limit: float | None = None,
) -> Diagnosis:
    """The Diagnosis of one training step (or one batch of inference) of a pipeline.

    trace          a Timeline; a table or a CSV file with the columns device, start, end and,
                   if known, kind, stage, microbatch; a Chrome trace (JSON, as torch.profiler
                   writes it, packed or not), those of all ranks as a list of paths or their folder;
                   or polled utilisation: time and a column per device, in percent or shares
    unit           of the times: "s", "ms", "us" or "ns". Default: s in CSV, us in Chrome's JSON
    layers         costs of the model's layers: the partition is then exact, not just equal stages
    memory_limit   most micro-batches whose activations a device may keep, in those of the trace

    Of several training steps the one of median length is read, and the optimizer is left out.
    Devices are in the order in which they begin. Raises ConfigError for a trace that cannot be
    read, and ScheduleError for labels of actions that cannot have run.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> d = diagnose(simulate(schedule("1f1b", stages=4, microbatches=8), latency=0.25))
    >>> d["schedule"].value, d["microbatches"].value, d["latency"].value, d["latency"].sure
    ('1f1b', 8, 0.25, 'exact')
    >>> [(c.name, round(c.seconds, 6)) for c in d.causes if c.seconds]
    [('ramp', 36.0), ('communication', 16.0)]
    """
    if memory_limit is not None and not memory_limit > 0:
        raise ConfigError(f"a memory limit is more than 0 micro-batches, got {memory_limit}")
    read = read_trace(trace, unit)
    fit = _fit(read)
    about = (read.source, read.devices, read.makespan, read.idle)
    if fit is None:
        few = _few_findings(read), _few_causes(read)
        return Diagnosis(*about, *few, None, measure=_measure(read))
    if layers is not None:
        partitioned(fit.plan, layers)  # refuses layers that cannot be cut, before anybody waits
    found = _findings(read, fit), _causes(read, fit.plan)
    measure = _measure(read) if fit.guess else ""
    costs = None if layers is None else tuple(map(float, layers))
    return Diagnosis(*about, *found, fit.plan, costs, memory_limit, measure)


def _fit(trace: Trace) -> TraceFit | None:
    if trace.is_labelled:
        return fit_labelled(trace)
    edges = not trace.blocks and trace.levels is None
    found = fit_rows(trace) if edges else None
    if trace.is_one_at_a_time and (found is None or _is_far_fetched(found, trace)):
        return fit_turns(trace)
    return found or (fit_nearest(trace) if trace.levels is None else None)


def _is_far_fetched(found: TraceFit, trace: Trace) -> bool:
    """Whether a schedule in chunks is to explain turns, and that not exactly: two batches of one
    after the other look like a wave."""
    chunks = found.plan.schedule.stages > trace.devices
    return chunks and found.error > EXACT * trace.makespan


def _measure(trace: Trace) -> str:
    """The measurement that would tell what this trace does not."""
    if trace.levels is not None:
        return "record one training step with torch.profiler on every rank and give the folder"
    if trace.is_labelled:
        return ""
    return (
        "record one training step with a label around each action, such as "
        'torch.profiler.record_function("0F3"): forward of micro-batch 3 on stage 0'
    )


# --- what is inferred -----------------------------------------------------------------------


def _findings(trace: Trace, fit: TraceFit) -> tuple[Finding, ...]:
    plan, order = fit.plan, fit.plan.schedule
    reproduced = not fit.guess and fit.error <= EXACT * trace.makespan
    off = fit.guess or f"simulated edges are within {format_seconds(fit.error)} of the trace's"
    counted, named = _schedule_sure(trace, fit, reproduced, off)
    timed = ("exact", "") if reproduced else ("likely", "" if fit.guess else "median")
    per_device = plan.device_times
    mean, busiest = sum(per_device) / len(per_device), int(np.argmax(per_device))
    findings = [
        Finding("devices", trace.devices, "exact", "in this order: " + ", ".join(trace.names)),
        Finding("microbatches", order.microbatches, *counted),
        Finding("schedule", str(plan.form) if plan.form else "own order", *named),
        _stage_times("forward", plan.forward, timed, fit),
    ]
    if order.trains:
        findings.append(_stage_times("backward", plan.backward, timed, fit))
    if trace.levels is not None:
        why = "samples hide how many steps there are, and how long an action takes"
        findings[3:] = [Finding(f.name, None, "cannot be told", why) for f in findings[3:]]
        fit = replace(fit, has_hops=False, has_turns=False)
    overhead = Finding("overhead", plan.overhead, *timed)
    if not fit.has_turns:
        why = "every action waited for a result: overhead and latency look the same"
        overhead = Finding("overhead", None, "cannot be told", "" if fit.guess else why)
    findings += [
        Finding(
            "imbalance",
            max(per_device) / mean - 1 if mean else 0.0,
            timed[0],
            f"device {trace.names[busiest]} has the most work, over the mean",
        ),
        _latency(plan, fit, timed, trace.devices),
        overhead,
    ]
    return tuple(findings)


def _schedule_sure(
    trace: Trace, fit: TraceFit, reproduced: bool, off: str
) -> tuple[tuple[str, str], tuple[str, str]]:
    """How sure the number of micro-batches is, and the schedule."""
    plan = fit.plan
    if fit.guess:
        return ("likely", ""), ("likely", fit.guess)
    if trace.is_labelled:
        why = "the order of its actions" if plan.form else "no schedule of the table has this order"
        return ("exact", "labels"), ("exact", why)
    same = [f.name for f in fit.others if _same_order(built(f), plan.schedule)]
    others = [f for f in fit.others if not _same_order(built(f), plan.schedule)]
    why = "the only order of the table with these edges"
    if len(trace.start) > MANY:
        why = f"the simplest of the table; {off}"
    elif not reproduced:
        why = f"the best of the table; {off}"
    if same:
        why += f"; with these counts the same as {', '.join(same)}"
    sure = "exact" if reproduced and not others and len(trace.start) <= MANY else "likely"
    if others:
        why = f"{off}; so are those of " + " and ".join(
            f"{form} (micro-batches: {form.microbatches})" for form in others[:3]
        )
    counts = {form.microbatches for form in others} - {plan.schedule.microbatches}
    if sure == "exact":
        return (sure, why), (sure, why)
    return ("exact" if reproduced and not counts else sure, "" if not counts else why), (sure, why)


def _same_order(a: Schedule | None, b: Schedule) -> bool:
    """Whether both do the same in the same order, wherever replicas are that do nothing."""
    columns = ("kind", "stage", "microbatch", "turns")
    return a is not None and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)


def _stage_times(
    name: str, values: tuple[float, ...], timed: tuple[str, str], fit: TraceFit
) -> Finding:
    if not fit.guess:
        return Finding(name, values, *timed)
    stages = ", ".join(map(str, range(fit.plan.schedule.stages)))
    return Finding(
        name,
        values,
        "likely",
        f"no edge lies between the actions of stage {stages}: their sum is known, how it divides "
        f"is a guess",
    )


def _latency(plan: TimedSchedule, fit: TraceFit, timed: tuple[str, str], devices: int) -> Finding:
    if devices == 1:
        return Finding("latency", 0.0, "exact", "one device sends nothing")
    if not fit.has_hops:
        why = "" if fit.guess else "no action waited for another device's result"
        return Finding("latency", None, "cannot be told", why)
    value = plan.latency[0] if len(set(plan.latency)) <= 1 else plan.latency
    return Finding("latency", value, *timed)


def _few_findings(trace: Trace) -> tuple[Finding, ...]:
    """What can be said of a trace that no schedule explains."""
    why = "no schedule of the table has these edges; is this one step, and all of it?"
    if trace.levels is not None:
        why = "samples do not tell actions apart; record spans"
    elif trace.grain:
        why = (
            f"no schedule was found that has these edges, which are known to "
            f"{format_seconds(trace.grain)}; record spans of actions, of one whole step"
        )
    busy = trace.busy_per_device
    return (
        Finding("devices", trace.devices, "exact", "in this order: " + ", ".join(trace.names)),
        *(
            Finding(name, None, "cannot be told", why if name == "microbatches" else "")
            for name in ("microbatches", "schedule", "forward", "backward")
        ),
        Finding(
            "imbalance",
            float(busy.max() / busy.mean() - 1),
            "exact",
            f"device {trace.names[int(busy.argmax())]} has the most work, over the mean",
        ),
        Finding("latency", None, "cannot be told"),
        Finding("overhead", None, "cannot be told"),
    )


# --- where the idle time comes from ---------------------------------------------------------


def _causes(trace: Trace, plan: TimedSchedule) -> tuple[Cause, ...]:
    """What the idle time shrinks by as each cause is taken out, one after the other."""
    no_overhead = replace(plan, overhead=0.0)
    no_latency = replace(no_overhead, latency=())
    even = equal_stages(no_latency)
    ramp = min(no_latency.idle, even.idle)  # uneven stages can also help: that is no cause
    first = ("ramp", "filling, draining and waiting that equal stages and free links have")
    if trace.is_one_at_a_time:
        first = ("one at a time", "waiting for the turn of others: no two work at once")
    known = {
        first[0]: (ramp, first[1]),
        "imbalance": (no_latency.idle - ramp, "waiting for slower stages"),
        "communication": (no_overhead.idle - no_latency.idle, "waiting for results on their way"),
        "overhead": (plan.idle - no_overhead.idle, "ready, but not started"),
    }
    return _summing(trace, known, "what the inferred plan, simulated, does not have")


def _few_causes(trace: Trace) -> tuple[Cause, ...]:
    """The same without a plan: only when devices begin and end, and how much they work."""
    first = trace.start[trace.turns[:-1]]
    last = trace.end[trace.turns[1:] - 1]
    busy = trace.busy_per_device
    if trace.levels is not None:
        uneven = trace.devices * float(busy.max()) - float(busy.sum())
        known = {"imbalance": (uneven, "pauses of devices with less work than the busiest")}
        return _summing(trace, known, "pauses of the busiest device too: samples hide when")
    ramp = float((first + trace.makespan - last).sum())
    inside = last - first - busy
    uneven = sum(min(float(i), float(busy.max() - b)) for i, b in zip(inside, busy, strict=True))
    known = {
        "ramp": (ramp, "before a device's first work and after its last"),
        "imbalance": (max(0.0, uneven), "pauses of devices with less work than the busiest"),
    }
    return _summing(trace, known, "other pauses: communication, overhead or the schedule's order")


def _summing(trace: Trace, known: dict[str, tuple[float, str]], rest: str) -> tuple[Cause, ...]:
    """``known`` causes and what is left of the idle time; rounding counts as nothing."""
    tiny = 1e-9 * trace.devices * trace.makespan
    seconds = {name: s if abs(s) > tiny else 0.0 for name, (s, _) in known.items()}
    left = trace.idle - sum(seconds.values())
    if abs(left) <= tiny:
        first = next(iter(seconds))
        seconds[first], left = seconds[first] + left, 0.0
    causes = [Cause(name, seconds[name], words) for name, (_, words) in known.items()]
    causes.append(Cause("unexplained", left, rest))
    return tuple(sorted(causes, key=lambda c: -c.seconds))
