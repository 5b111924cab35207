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
from collections.abc import Callable, Iterator, Sequence
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


def of_chrome(texts: Sequence[tuple[str, str]], source: str) -> Trace:
    """The Trace of (file name, JSON) pairs, whose distributedInfo says the rank of each. Raises
    ConfigError for what cannot be read."""
    files = _read(texts, source)
    every = [e for events in files for e in events]
    worker = next((cat for cat in ("kernel", "cpu_op") if any(e.cat == cat for e in every)), "")
    labels = [e for e in every if _label(e)]
    on_gpu = any(e.cat.startswith("gpu") for e in labels)
    # the CPU launches kernels and does not wait for them: its labels say nothing of their time
    labelled = bool(labels) and (on_gpu or worker != "kernel")
    counted = labels if labelled else [e for e in every if worker in ("", e.cat)]
    apart = [key for key in ("pid", "device") if len({getattr(e, key) for e in counted}) > 1]
    steps: dict[int, list[Row]] = defaultdict(list)
    is_tuned = False
    for events in files:
        work, tuned = _work(events, worker)
        is_tuned |= tuned
        found = _labelled(events, work, worker, on_gpu) if labelled else ((e, BARE) for e in work)
        step_of = _steps(events)
        for e, label in found:
            # a rank is a device; in a file of all ranks they are told apart by what differs
            shared = "/".join(filter(None, (getattr(e, key) for key in apart)))
            name = e.rank or shared or e.device or e.tid
            steps[step_of(e)].append((name, e.start, e.end, *label))
    if not steps:
        raise ConfigError(f"{source} has transfers only, and no work of a stage")
    chosen, notes = _one_step(steps)
    notes += ["the optimizer's kernels left out"] * is_tuned
    about = f"{source}: {', '.join(notes)}" if notes else source
    if worker and not labelled:
        gap = LAUNCH_GAP * (max(row[2] for row in chosen) - min(row[1] for row in chosen))
        devices = sorted({row[0] for row in chosen})
        return Trace.of(_blocks(chosen, gap), devices, source=about, grain=gap)
    trace = Trace.of(chosen, source=about)
    stage = np.where((trace.stage < 0) & labelled, trace.device, trace.stage)  # of GPipe's labels
    return replace(trace, stage=stage, grain=CLOCKS * trace.makespan * (len(files) > 1) * labelled)


# --- files to events ------------------------------------------------------------------------


def _read(texts: Sequence[tuple[str, str]], source: str) -> list[list[_Event]]:
    """The complete events of each file by their start, in seconds from the first of all."""
    files = [_parsed(name, text) for name, text in texts]
    firsts = [min((at for _, at, _ in each), default=math.inf) for *_, each in files]
    if min(firsts) == math.inf:
        raise ConfigError(
            f"{source} has no complete event (ph 'X' with ts and dur) and no step; export the "
            f"trace with torch.profiler's export_chrome_trace"
        )
    least = min(clock for _, clock, _ in files)
    # small numbers first: an epoch in us has no digits left
    begins = [at * 1e-6 + (clock - least) for at, (_, clock, _) in zip(firsts, files, strict=True)]
    ranks, read = [rank for rank, *_ in files], []
    for (name, _), (rank, _, each), first, begin in zip(texts, files, firsts, begins, strict=True):
        named = f"rank {rank}" if rank is not None and ranks.count(rank) == 1 else name
        named = named if len(files) > 1 or rank is not None else ""
        events = []
        for e, start, length in each:
            at, args = (start - first) * 1e-6 + (begin - min(begins)), e.get("args")
            device = args.get("device", "") if isinstance(args, dict) else ""
            words = str(e.get("name", ""))[:200], str(e.get("cat", "")).lower(), named
            lane = (str(key)[:40] for key in (e.get("pid", ""), e.get("tid", 0), device))
            events.append(_Event(at, at + length * 1e-6, *words, *lane))
        read.append(sorted(events))
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
        if not all(0 <= at < math.inf and 0 <= length < math.inf for _, at, length in complete):
            raise ValueError("ts and dur are finite numbers of 0 or more")
        rank = (about.get("distributedInfo") or {}).get("rank")
        return rank, 1e-9 * float(about.get("baseTimeNanoseconds", 0)), complete
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as e:
        rule = "an object with a list of events as traceEvents, or such a list"
        raise ConfigError(f"{name} is no Chrome trace, {rule}: {short(str(e))}") from None


# --- events to rows -------------------------------------------------------------------------


def _steps(events: list[_Event]) -> Callable[[_Event], int]:
    """A function from an event to the number of its step; -1 before the first mark, 0 if there is
    none. Kernels are between the marks of the GPU, if it has some."""
    marks: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for e in events:
        if number := STEP.match(e.name):
            marks[e.cat.startswith("gpu")].setdefault(int(number[1]), e.start)

    def step(e: _Event) -> int:
        between = (e.cat != "cpu_op" and marks[True]) or marks[False]
        passed = bisect_right([*between.values()], e.start + 1e-9)
        return [-1, *between][passed] if between else 0

    return step


def _work(events: list[_Event], worker: str) -> tuple[list[_Event], bool]:
    """(events that are work, whether what an optimizer does was put aside)."""
    tuning = [e for e in events if TUNES.match(e.name) and e.cat.endswith("annotation")]

    def tunes(e: _Event) -> bool:
        inside = (s.pid == e.pid and s.start <= e.start < s.end for s in tuning)
        return (worker == "kernel" and bool(TUNES.search(e.name))) or any(inside)

    work = [
        e
        for e in events
        if (e.cat == worker if worker else e.cat not in NO_WORK)
        and not (STEP.match(e.name) or TRAVELS.search(e.name))
    ]
    left = [e for e in work if not tunes(e)]
    return left, len(left) < len(work)


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
    marked = [mine for step, mine in steps.items() if step >= 0] or [*steps.values()]
    whole = [mine for mine in marked if len({row[0] for row in mine}) == most] or [*steps.values()]

    def length(mine: list[Row]) -> float:
        return max(row[2] for row in mine) - min(row[1] for row in mine)

    notes = [f"of {len(whole)} steps the one of median length"] if len(whole) > 1 else []
    return sorted(whole, key=length)[(len(whole) - 1) // 2], notes


def _blocks(rows: list[Row], gap: float) -> list[Row]:
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
