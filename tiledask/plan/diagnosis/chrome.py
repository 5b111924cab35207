"""Chrome's JSON, as torch.profiler writes it: one file, or one per rank.

work     kernels of a GPU, or operators of a CPU; what NCCL, gloo and the optimizer do is put aside
labels   "0F3", "PP:0F3", "Forward 3": an action is the work inside, without the wait before it
steps    between ProfilerStep marks; of several, the one that takes the median time is read
"""

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.diagnosis.trace import Row, Trace

__all__ = ["MeasuredStep", "of_chrome", "step_of_chrome"]

ACTION = re.compile(r"(?<![A-Za-z0-9])(\d{1,9})([FBIW])(\d{1,9})(?![A-Za-z0-9])")
"""An action in the name of an event, such as record_function("0F3")."""
PHASE = re.compile(r"^(Forward|Backward) (\d{1,9})$")
"""The same of torch's GPipe; the stage is the device's place."""
STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
TRAVELS = re.compile(r"nccl|gloo:|c10d", re.IGNORECASE)
TUNES = re.compile(r"^optimizer\.|multi_tensor_apply|adam", re.IGNORECASE)
"""The optimizer's annotations, and kernels of its step."""
NO_WORK = ("python_function", "overhead", "cuda_runtime", "cuda_driver")
"""Categories to leave out where there are neither kernels nor operators."""
LAUNCH_GAP = 1e-3
"""Share of the makespan below which a pause between two kernels is no idle time."""
SLIVER = 0.05
"""Of the median block: shorter ones are copies and checks, not actions."""
MOST_TIME = 1e300
"""Above which a time is refused: its sums would not be finite."""
CLOCKS = 2e-3
"""Share of the makespan by which the clocks of two ranks may differ."""

_Label = tuple[str, int, int]
"""(kind, stage, micro-batch); "" and -1 for what is unknown."""
BARE: _Label = ("", -1, -1)


class _Event(NamedTuple):
    name: str
    cat: str
    pid: str
    tid: str
    device: str
    """args.device, or ""."""
    start: float
    """Seconds from the first event of all files."""
    end: float


_Lane = tuple[str, str, str]
"""pid, tid and device of an event."""


@dataclass(frozen=True)
class _File:
    name: str
    rank: int | None
    events: list[_Event]

    @cached_property
    def marks(self) -> dict[bool, list[tuple[float, int]]]:
        """{on the GPU: (start, number) of each step}, rising; of each number the first mark."""
        found: dict[bool, dict[int, float]] = {True: {}, False: {}}
        for e in sorted(self.events, key=_start):
            if number := STEP.match(e.name):
                found[e.cat.startswith("gpu")].setdefault(int(number[1]), e.start)
        return {on: [(start, n) for n, start in steps.items()] for on, steps in found.items()}

    def step(self, e: _Event) -> int:
        """The number of an event's step; -1 before the first mark, 0 if there is none."""
        marks = (e.cat != "cpu_op" and self.marks[True]) or self.marks[False]
        passed = bisect_right(marks, (e.start + 1e-9, math.inf))
        return (marks[passed - 1][1] if passed else -1) if marks else 0


class MeasuredStep(NamedTuple):
    """How long a step of a trace takes."""

    seconds: float
    error: float | None
    """Half of what its steps differ by, over the median; None of one alone."""
    words: str
    """What was measured."""


def of_chrome(texts: Sequence[tuple[str, str]], source: str, scale: float) -> Trace:
    """The Trace of (file name, JSON) pairs, whose distributedInfo says the rank of each.

    ``scale``: seconds of a unit of ts. Raises ConfigError for what cannot be read.
    """
    files = _read(texts, source, scale)
    every = [e for f in files for e in f.events]
    has = {e.cat for e in every}
    worker = next((cat for cat in ("kernel", "cpu_op") if cat in has), "")
    labels = [e for e in every if _label(e)]
    on_gpu = any(e.cat.startswith("gpu") for e in labels)
    # the CPU launches kernels and does not wait for them: its labels say nothing of their time
    labelled = bool(labels) and (on_gpu or worker != "kernel")
    actions: list[tuple[int, Row]] = []  # of which step, and what
    is_tuned = False
    for f in files:
        counted = labels if labelled else [e for e in f.events if e.cat == worker or not worker]
        names = _device_names(f, len(files) > 1, counted)
        work, tuned = _work(f, worker)
        is_tuned |= tuned
        found = _labelled(f, work, worker, on_gpu) if labelled else ((e, BARE) for e in work)
        actions += [(f.step(e), (names[e[2:5]], e.start, e.end, *each)) for e, each in found]
    if not actions:
        raise ConfigError(f"{source} has transfers only, and no work of a stage")
    chosen, notes = _one_step(actions)
    notes += ["the optimizer's kernels left out"] * is_tuned
    about = f"{source}: {', '.join(notes)}" if notes else source
    if worker and not labelled:
        gap = LAUNCH_GAP * max(end for _, _, end, *_ in chosen)
        devices = sorted({row[0] for row in chosen})
        return Trace.of(_blocks(chosen, gap), devices, source=about, grain=gap, blocks=True)
    trace = Trace.of(_outermost(chosen), source=about)
    if not labelled:
        return trace
    stage = np.where(trace.stage < 0, trace.device, trace.stage)  # of GPipe's labels the device
    return replace(trace, stage=stage, grain=CLOCKS * trace.makespan * (len(files) > 1))


def step_of_chrome(texts: Sequence[tuple[str, str]], source: str, scale: float) -> MeasuredStep:
    """The step in (file name, JSON) pairs: the median of the seconds between two marks of the
    profiler; of a trace without two, those from its first event to its last."""
    files, between = _read(texts, source, scale), []
    for f in files:
        marks = pairwise(f.marks[False] or f.marks[True])
        between += [b - a for (a, number), (b, after) in marks if after == number + 1]
    if between:
        seconds = median(between)
        off = (max(between) - min(between)) / 2 / seconds if seconds else 0.0
        return MeasuredStep(seconds, off, f"the median of {len(between)} steps in {source}")
    events = [e for f in files for e in f.events]
    whole = max(e.end for e in events) - min(e.start for e in events)
    return MeasuredStep(whole, None, f"{source}, taken for one step")


# --- files to events ------------------------------------------------------------------------


def _read(texts: Sequence[tuple[str, str]], source: str, scale: float) -> list[_File]:
    """The complete events of each file, in seconds from the first of all."""
    files = [(name, *_parsed(name, text)) for name, text in texts]
    firsts = [min((at for _, at, _ in each), default=math.inf) for *_, each in files]
    if min(firsts) == math.inf:
        raise ConfigError(
            f"{source} has no complete event (ph 'X' with ts and dur) and no step; export the "
            f"trace with torch.profiler's export_chrome_trace"
        )
    clocks = [clock for _, _, clock, _ in files]
    begins = [f * scale + (c - min(clocks)) for f, c in zip(firsts, clocks, strict=True)]
    ranks = [rank for _, rank, *_ in files]
    read = []
    for (name, rank, _, each), first, begin in zip(files, firsts, begins, strict=True):
        events = []
        for e, start, length in each:
            args = e.get("args")
            device = args.get("device", "") if isinstance(args, dict) else ""
            pid, tid = str(e.get("pid", ""))[:40], str(e.get("tid", 0))[:40]
            # small numbers first: an epoch in us has no digits left
            at = (start - first) * scale + (begin - min(begins))
            named = str(e.get("name", ""))[:200], str(e.get("cat", "")).lower()
            events.append(_Event(*named, pid, tid, str(device)[:40], at, at + length * scale))
        read.append(_File(name, rank if ranks.count(rank) == 1 else None, events))
    return read


def _parsed(
    name: str, text: str
) -> tuple[int | None, float, list[tuple[dict[str, Any], float, float]]]:
    """(rank, seconds of the clock at ts 0, (event, ts, dur) of the program's complete events)."""
    try:
        data = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{name} begins like JSON but cannot be read: {error}") from None
    about = data if isinstance(data, dict) else {"traceEvents": data}
    if not isinstance(events := about.get("traceEvents", []), list):
        raise ConfigError(f"{name} has traceEvents {short(events)}; they are a list of events")
    complete = [
        (e, _number(e, "ts", name), _number(e, "dur", name))
        for e in events
        if isinstance(e, dict) and e.get("ph") == "X" and "ts" in e
        if str(e.get("cat")) != "Trace" and str(e.get("pid")) not in ("Spans", "Traces")
    ]
    info, base = about.get("distributedInfo"), about.get("baseTimeNanoseconds", 0)
    rank = info.get("rank") if isinstance(info, dict) else None
    is_time = isinstance(base, int | float) and abs(base) < 1e20
    return rank if isinstance(rank, int) else None, 1e-9 * base if is_time else 0.0, complete


def _number(event: dict[str, Any], name: str, source: str) -> float:
    value = event.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST_TIME:
        return float(value)
    raise ConfigError(
        f"event {short(event.get('name'))} of {source} has {name} {short(value)}; it is a finite "
        f"number of 0 or more: drop the event"
    )


# --- events to rows -------------------------------------------------------------------------


def _device_names(f: _File, several: bool, counted: list[_Event]) -> dict[_Lane, str]:
    """{pid, tid, args.device: device}: which events of a file are of one device.

    A rank's file is one device, or one per args.device. In a file of several ranks they are told
    apart by pid and args.device, and by tid where there is one process without.
    """
    if several or f.rank is not None:
        own = f.name if f.rank is None else f"rank {f.rank}"
        gpus = {e.device for e in f.events if e.cat == "kernel" and e.device}
        return {e[2:5]: own + f" gpu {e.device}" * (len(gpus) > 1) for e in f.events}
    pids, devices = ({e[at] for e in counted} for at in (2, 4))
    names = {}
    for e in f.events:
        apart = [e.pid] * (len(pids) > 1) + [e.device] * (len(devices) > 1)
        names[e[2:5]] = "/".join(filter(None, apart)) or e.device or e.tid
    return names


def _work(f: _File, worker: str) -> tuple[list[_Event], bool]:
    """(events that are work, whether what an optimizer does was put aside)."""
    tuning = [e for e in f.events if TUNES.match(e.name) and e.cat.endswith("annotation")]
    work, is_tuned = [], False
    for e in f.events:
        if STEP.match(e.name) or (e.cat != worker if worker else e.cat in NO_WORK):
            continue
        inside = (s.pid == e.pid and s.start <= e.start < s.end for s in tuning)
        if TRAVELS.search(e.name):
            continue
        if (worker == "kernel" and TUNES.search(e.name)) or any(inside):
            is_tuned = True
        else:
            work.append(e)
    return sorted(work, key=_start), is_tuned


def _start(e: _Event) -> float:
    return e.start


def _label(e: _Event) -> _Label | None:
    """What the name says."""
    if found := ACTION.search(e.name):
        return found[2], int(found[1]), int(found[3])
    found = PHASE.match(e.name)
    return (found[1][0], -1, int(found[2])) if found else None


def _labelled(
    f: _File, work: list[_Event], worker: str, on_gpu: bool
) -> Iterator[tuple[_Event, _Label]]:
    """The labelled actions, each from its first work to its last; without any as the label is."""
    of_process: dict[str, list[_Event]] = defaultdict(list)
    for e in work:
        of_process[e.pid].append(e)
    for span in f.events:
        label = _label(span)
        if label is None or (on_gpu and not span.cat.startswith("gpu")):
            continue
        if "OVERLAP" in span.name:
            raise ConfigError(
                f"{short(span.name)} is a forward and a backward at once; which part of its time "
                f"is whose cannot be told: give a run without pairs"
            )
        mine = of_process[span.pid]
        first, end = (bisect_left(mine, at, key=_start) for at in (span.start, span.end))
        if first < end and worker:
            last = max(e.end for e in mine[first:end])
            yield span._replace(start=mine[first].start, end=last), label
        elif not (on_gpu and work):
            yield span, label


def _one_step(actions: Iterable[tuple[int, Row]]) -> tuple[list[Row], list[str]]:
    """(rows of the step that takes the median time, what to say of it)."""
    steps: dict[int, list[Row]] = defaultdict(list)
    for step, row in actions:
        steps[step].append(row)
    devices = {step: len({row[0] for row in mine}) for step, mine in steps.items()}
    fewest = 0.5 * max(map(len, steps.values()))
    whole = [
        mine
        for step, mine in steps.items()
        if devices[step] == max(devices.values()) and len(mine) >= fewest
        if step >= 0 or len(steps) == 1
    ] or list(steps.values())

    def length(mine: list[Row]) -> float:
        return max(row[2] for row in mine) - min(row[1] for row in mine)

    chosen = sorted(whole, key=length)[(len(whole) - 1) // 2]
    zero = min(row[1] for row in chosen)
    rows = [(row[0], row[1] - zero, row[2] - zero, *row[3:]) for row in chosen]
    notes = [f"of {len(whole)} steps the one of median length"] if len(whole) > 1 else []
    return rows, notes


def _outermost(rows: Iterable[Row]) -> Iterator[Row]:
    """Without the calls inside calls: events of a thread are nested."""
    reach: dict[str, float] = {}
    for row in sorted(rows, key=lambda r: (r[0], r[1], -r[2])):
        before = reach.get(row[0], -math.inf)
        if row[1] >= before or row[2] > before:
            reach[row[0]] = max(row[2], before)
            yield row


def _blocks(rows: Iterable[Row], gap: float) -> list[Row]:
    """When a device is busy on any of its streams: kernels no more than ``gap`` seconds apart are
    one, and slivers are left out."""
    joined: list[Row] = []
    for row in sorted(rows, key=lambda r: r[:3]):
        if joined and joined[-1][0] == row[0] and row[1] - joined[-1][2] <= gap:
            joined[-1] = (*joined[-1][:2], max(row[2], joined[-1][2]), *BARE)
        else:
            joined.append(row)
    least = SLIVER * median(end - start for _, start, end, *_ in joined)
    return [row for row in joined if row[2] - row[1] >= least]
