"""Chrome's JSON, as torch.profiler writes it: one file, or one per rank.

labels   "0F3", "PP:0F3", "Forward 3": an action is the work inside, without the wait before it
work     kernels of a GPU, or operators of a CPU; what NCCL and gloo do is put aside
steps    between ProfilerStep marks; of several, the one that takes the median time is read
"""

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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
CLOCKS = 2e-3
"""Share of the makespan by which the clocks of two ranks may differ."""

_Label = tuple[str, int, int]
"""(kind, stage, micro-batch); -1 for a stage that is not known."""


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
    if not labels or (worker == "kernel" and not on_gpu):
        where = " on the GPU's time line" if worker == "kernel" else ""
        raise ConfigError(
            f"{source} has no label of an action{where}; record the step with a label around each, "
            f'such as torch.profiler.record_function("0F3"), or give a CSV of device, start, end'
        )
    apart = [key for key in ("pid", "device") if len({getattr(e, key) for e in labels}) > 1]
    steps: dict[int, list[Row]] = defaultdict(list)
    for events in files:
        step_of = _steps(events)
        for e, label in _labelled(events, worker, on_gpu):
            # a rank is a device; in a file of all ranks they are told apart by what differs
            shared = "/".join(filter(None, (getattr(e, key) for key in apart)))
            name = e.rank or shared or e.device or e.tid
            steps[step_of(e)].append((name, e.start, e.end, *label))
    if not steps:
        raise ConfigError(f"{source} has transfers only, and no work of a stage")
    chosen, note = _one_step(steps)
    trace = Trace.of(chosen, source=source + note)
    stage = np.where(trace.stage < 0, trace.device, trace.stage)  # of GPipe's labels
    return replace(trace, stage=stage, grain=CLOCKS * trace.makespan * (len(files) > 1))


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
        ]
        if not all(0 <= at < math.inf and 0 <= length < math.inf for _, at, length in complete):
            raise ValueError("ts and dur are finite numbers of 0 or more")
        rank = (about.get("distributedInfo") or {}).get("rank")
        return rank, 1e-9 * float(about.get("baseTimeNanoseconds", 0)), complete
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as e:
        rule = "an object with a list of events as traceEvents, or such a list"
        raise ConfigError(f"{name} is no Chrome trace, {rule}: {short(str(e))}") from None


def _steps(events: list[_Event]) -> Callable[[_Event], int]:
    """From an event to the number of its step: -1 before the first mark, 0 if there is none."""
    marks: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for e in events:
        if number := STEP.match(e.name):
            marks[e.cat.startswith("gpu")].setdefault(int(number[1]), e.start)

    def step(e: _Event) -> int:
        # kernels are between the marks of the GPU, if it has some
        between = (e.cat != "cpu_op" and marks[True]) or marks[False]
        passed = bisect_right([*between.values()], e.start + 1e-9)
        return [-1, *between][passed] if between else 0

    return step


def _label(e: _Event) -> _Label | None:
    if found := ACTION.search(e.name):
        return found[2], int(found[1]), int(found[3])
    found = PHASE.match(e.name)
    return (found[1][0], -1, int(found[2])) if found else None


def _labelled(events: list[_Event], worker: str, on_gpu: bool) -> Iterator[tuple[_Event, _Label]]:
    """The labelled actions, each from its first work to its last; without any as the label is."""
    work = [e for e in events if e.cat == worker and not TRAVELS.search(e.name)]
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


def _one_step(steps: dict[int, list[Row]]) -> tuple[list[Row], str]:
    """(rows of the step that takes the median time, what to say of it): of those after the first
    mark in which all devices work."""
    most = max(len({row[0] for row in mine}) for mine in steps.values())
    marked = [mine for step, mine in steps.items() if step >= 0] or [*steps.values()]
    whole = [mine for mine in marked if len({row[0] for row in mine}) == most] or [*steps.values()]

    def length(mine: list[Row]) -> float:
        return max(row[2] for row in mine) - min(row[1] for row in mine)

    note = f": of {len(whole)} steps the one of median length" if len(whole) > 1 else ""
    return sorted(whole, key=length)[(len(whole) - 1) // 2], note
