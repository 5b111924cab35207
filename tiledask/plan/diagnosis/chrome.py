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
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.diagnosis.trace import Row, Trace

__all__ = ["of_chrome"]

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
    start: float  # seconds from the first event of all files
    end: float
    name: str
    cat: str
    rank: str  # what its file is called where that is a rank's; "" in a file of all ranks
    pid: str
    tid: str
    device: str  # args.device, or ""

    @property
    def lane(self) -> tuple[str, str, str, str]:
        return self.rank, self.pid, self.tid, self.device


def of_chrome(texts: Sequence[tuple[str, str]], source: str) -> Trace:
    """The Trace of (file name, JSON) pairs, whose distributedInfo says the rank of each. Raises
    ConfigError for what cannot be read."""
    files = _read(texts, source)
    every = [e for events in files for e in events]
    has = {e.cat for e in every}
    worker = next((cat for cat in ("kernel", "cpu_op") if cat in has), "")
    labels = [e for e in every if _label(e)]
    on_gpu = any(e.cat.startswith("gpu") for e in labels)
    # the CPU launches kernels and does not wait for them: its labels say nothing of their time
    labelled = bool(labels) and (on_gpu or worker != "kernel")
    name_of = _device_names(
        every, labels if labelled else [e for e in every if worker in ("", e.cat)]
    )
    steps: dict[int, list[Row]] = defaultdict(list)
    is_tuned = False
    for events in files:
        work, tuned = _work(events, worker)
        is_tuned |= tuned
        found = _labelled(events, work, worker, on_gpu) if labelled else ((e, BARE) for e in work)
        step_of = _steps(events)
        for e, label in found:
            steps[step_of(e)].append((name_of[e.lane], e.start, e.end, *label))
    if not steps:
        raise ConfigError(f"{source} has transfers only, and no work of a stage")
    chosen, notes = _one_step(steps)
    notes += ["the optimizer's kernels left out"] * is_tuned
    about = f"{source}: {', '.join(notes)}" if notes else source
    if worker and not labelled:
        gap = LAUNCH_GAP * max(end for _, _, end, *_ in chosen)
        devices = sorted({row[0] for row in chosen})
        return Trace.of(_blocks(chosen, gap), devices, source=about, grain=gap, blocks=True)
    trace = Trace.of(chosen, source=about)
    stage = np.where((trace.stage < 0) & labelled, trace.device, trace.stage)  # of GPipe's labels
    return replace(trace, stage=stage, grain=CLOCKS * trace.makespan * (len(files) > 1) * labelled)


# --- files to events ------------------------------------------------------------------------


def _read(texts: Sequence[tuple[str, str]], source: str) -> list[list[_Event]]:
    """The complete events of each file, in seconds from the first of all."""
    files = [_parsed(name, text) for name, text in texts]
    firsts = [min((at for _, at, _ in each), default=math.inf) for *_, each in files]
    if min(firsts) == math.inf:
        raise ConfigError(
            f"{source} has no complete event (ph 'X' with ts and dur) and no step; export the "
            f"trace with torch.profiler's export_chrome_trace"
        )
    clocks = [clock for _, clock, _ in files]
    begins = [f * 1e-6 + (c - min(clocks)) for f, c in zip(firsts, clocks, strict=True)]
    ranks = [rank for rank, *_ in files]
    read = []
    for (name, _), (rank, _, each), first, begin in zip(texts, files, firsts, begins, strict=True):
        named = f"rank {rank}" if rank is not None and ranks.count(rank) == 1 else name
        named = named if len(files) > 1 or rank is not None else ""
        events = []
        for e, start, length in each:
            args = e.get("args")
            device = args.get("device", "") if isinstance(args, dict) else ""
            # small numbers first: an epoch in us has no digits left
            at = (start - first) * 1e-6 + (begin - min(begins))
            words = str(e.get("name", ""))[:200], str(e.get("cat", "")).lower(), named
            lane = str(e.get("pid", ""))[:40], str(e.get("tid", 0))[:40], str(device)[:40]
            events.append(_Event(at, at + length * 1e-6, *words, *lane))
        read.append(events)
    return read


def _parsed(name: str, text: str) -> tuple[int | None, float, list[tuple[Any, float, float]]]:
    """(rank, seconds of the clock at ts 0, (event, ts, dur) of the program's complete events)."""
    try:
        data = json.loads(text)
        about = data if isinstance(data, dict) else {"traceEvents": data}
        complete = [
            (e, float(e["ts"]), float(e["dur"]))
            for e in about.get("traceEvents", [])
            if e.get("ph") == "X" and "ts" in e
            if str(e.get("cat")) != "Trace" and str(e.get("pid")) not in ("Spans", "Traces")
        ]
        if not all(0 <= at < MOST_TIME and 0 <= length < MOST_TIME for _, at, length in complete):
            raise ValueError("ts and dur are finite numbers of 0 or more")
        rank = (about.get("distributedInfo") or {}).get("rank")
        return rank, 1e-9 * float(about.get("baseTimeNanoseconds", 0)), complete
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        rule = "an object with a list of events as traceEvents, or such a list"
        raise ConfigError(f"{name} is no Chrome trace, {rule}: {short(str(error))}") from None


# --- events to rows -------------------------------------------------------------------------


def _device_names(every: list[_Event], counted: list[_Event]) -> dict[Any, str]:
    """{rank, pid, tid, args.device: device}: which events are of one device.

    A rank is one device, or one per args.device of its kernels. In a file of all ranks they are
    told apart by pid and args.device, and by tid where there is one process without.
    """
    pids, devices = {e.pid for e in counted}, {e.device for e in counted}
    gpus = {(e.rank, e.device) for e in every if e.cat == "kernel" and e.device}
    many = {rank for rank, _ in gpus if sum(other == rank for other, _ in gpus) > 1}
    names = {}
    for e in every:
        apart = [e.pid] * (len(pids) > 1) + [e.device] * (len(devices) > 1)
        own = e.rank + f" gpu {e.device}" * (e.rank in many)
        names[e.lane] = own if e.rank else "/".join(filter(None, apart)) or e.device or e.tid
    return names


def _steps(events: list[_Event]) -> Any:
    """A function from an event to the number of its step; -1 before the first mark, 0 if there is
    none. Kernels are between the marks of the GPU, if it has some."""
    found: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for e in sorted(events):
        if number := STEP.match(e.name):
            found[e.cat.startswith("gpu")].setdefault(int(number[1]), e.start)
    marks = {on: [(start, n) for n, start in steps.items()] for on, steps in found.items()}

    def step(e: _Event) -> int:
        between = (e.cat != "cpu_op" and marks[True]) or marks[False]
        passed = bisect_right(between, (e.start + 1e-9, math.inf))
        return (between[passed - 1][1] if passed else -1) if between else 0

    return step


def _work(events: list[_Event], worker: str) -> tuple[list[_Event], bool]:
    """(events that are work, whether what an optimizer does was put aside)."""
    tuning = [e for e in events if TUNES.match(e.name) and e.cat.endswith("annotation")]
    work, is_tuned = [], False
    for e in events:
        if STEP.match(e.name) or (e.cat != worker if worker else e.cat in NO_WORK):
            continue
        if TRAVELS.search(e.name):
            continue
        inside = (s.pid == e.pid and s.start <= e.start < s.end for s in tuning)
        if (worker == "kernel" and TUNES.search(e.name)) or any(inside):
            is_tuned = True
        else:
            work.append(e)
    return sorted(work, key=lambda e: e.start), is_tuned


def _label(e: _Event) -> _Label | None:
    """What the name says."""
    if found := ACTION.search(e.name):
        return found[2], int(found[1]), int(found[3])
    found = PHASE.match(e.name)
    return (found[1][0], -1, int(found[2])) if found else None


def _labelled(
    events: list[_Event], work: list[_Event], worker: str, on_gpu: bool
) -> Iterator[tuple[_Event, _Label]]:
    """The labelled actions, each from its first work to its last; without any as the label is."""
    for span in events:
        label = _label(span)
        if label is None or (on_gpu and not span.cat.startswith("gpu")):
            continue
        if "OVERLAP" in span.name:
            raise ConfigError(
                f"{short(span.name)} is a forward and a backward at once; which part of its time "
                f"is whose cannot be told: give a run without pairs"
            )
        first, end = (bisect_left(work, at, key=lambda e: e.start) for at in span[:2])
        mine = [e for e in work[first:end] if e.pid == span.pid]
        if mine and worker:
            yield span._replace(start=mine[0].start, end=max(e.end for e in mine)), label
        elif not (on_gpu and work):
            yield span, label


def _one_step(steps: dict[int, list[Row]]) -> tuple[list[Row], list[str]]:
    """(rows of the step that takes the median time, what to say of it): of those after the first
    mark in which all devices work."""
    most = max(len({row[0] for row in mine}) for mine in steps.values())
    marked = {step: mine for step, mine in steps.items() if step >= 0} or steps
    whole = [mine for mine in marked.values() if len({row[0] for row in mine}) == most]
    whole = whole or list(steps.values())
    begun = [min(row[1] for row in mine) for mine in whole]
    length = [max(row[2] for row in mine) - at for mine, at in zip(whole, begun, strict=True)]
    middle = sorted(range(len(whole)), key=length.__getitem__)[(len(whole) - 1) // 2]
    zero = begun[middle]
    rows = [(row[0], row[1] - zero, row[2] - zero, *row[3:]) for row in whole[middle]]
    notes = [f"of {len(whole)} steps the one of median length"] if len(whole) > 1 else []
    return rows, notes


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
