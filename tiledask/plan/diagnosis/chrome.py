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
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short

__all__ = ["Row", "of_chrome"]

ACTION = re.compile(r"(?<![A-Za-z0-9])(\d{1,9})([FBIW])(\d{1,9})(?![A-Za-z0-9])")
"""An action in the name of an event, such as record_function("0F3")."""
PHASE = re.compile(r"^(Forward|Backward) (\d{1,9})$")
"""The same of torch's GPipe; the stage is the device's place."""
STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
TRAVELS = re.compile(r"nccl|gloo:|c10d", re.IGNORECASE)
WORK = ("kernel", "cpu_op")
"""Categories of what a device does, the first that a trace has: GPUs' kernels, CPUs' operators."""
UNREADABLE = ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError
"""What other JSON than a trace's comes to."""
CLOCKS = 2e-3
"""Share of the makespan by which the clocks of two ranks may differ."""

Row = tuple[str, float, float, str, int, int]
"""(device, start, end, kind, stage, microbatch); "" and -1 for what is not known."""
_Label = tuple[float, float, str, str, str, str, str, tuple[str, int, int]]
"""(start, end, name, category, process, thread, device, (kind, stage, micro-batch)); -1 for a stage
that is not known."""
_File = tuple[str, dict[bool, dict[int, float]], dict[str, list[Any]], list[_Label]]
"""(what its rank is called, or "" for all ranks; on the GPU's time line or not, the start of each
step; by category (start, end, process) of the work; the labels), by their starts in seconds."""


def of_chrome(texts: Sequence[tuple[str, str]], source: str) -> tuple[list[Row], str, float]:
    """(the rows, where they are from, the share of the makespan by which an edge may be wrong) of
    (file name, JSON) pairs, whose distributedInfo says the rank of each. Raises ConfigError for
    what cannot be read."""
    files = _read(texts, source)
    worker = next((kind for kind in WORK if any(kind in work for _, _, work, _ in files)), "")
    lanes = [lane for *_, labels in files for _, _, _, *lane, _ in labels]
    on_gpu = any(category.startswith("gpu") for category, *_ in lanes)
    # the CPU launches kernels and does not wait for them: its labels say nothing of their time
    if not lanes or (worker == "kernel" and not on_gpu):
        where = " on the GPU's time line" if worker == "kernel" else ""
        raise ConfigError(
            f"{source} has no label of an action{where}; record the step with a label around each, "
            f'such as torch.profiler.record_function("0F3"), or give a CSV of device, start, end'
        )
    # a rank is a device; in a file of all ranks they are told apart by what differs
    _, processes, _, devices = ({*each} for each in zip(*lanes, strict=True))
    steps: dict[int, list[Row]] = defaultdict(list)
    for rank, marks, works, labels in files:
        work = works.get(worker, [])
        for start, end, name, category, process, thread, device, label in labels:
            if on_gpu and not category.startswith("gpu"):
                continue
            if "OVERLAP" in name:
                raise ConfigError(
                    f"{short(name)} is a forward and a backward at once; which part of its time is "
                    f"whose cannot be told: give a run without pairs"
                )
            # from its first work to its last, without the wait before; without any as the label is
            first, last = (bisect_left(work, at, key=itemgetter(0)) for at in (start, end))
            if mine := [each for each in work[first:last] if each[2] == process]:
                start, end = mine[0][0], max(each[1] for each in mine)
            elif on_gpu and work:
                continue
            # kernels are between the marks of the GPU, if it has some; before the first is step -1
            between = (category != "cpu_op" and marks[True]) or marks[False]
            passed = bisect_right([*between.values()], start + 1e-9)
            told = [process] * (len(processes) > 1) + [device] * (len(devices) > 1)
            whose = rank or "/".join(filter(None, told)) or device or thread
            steps[[-1, *between][passed] if between else 0].append((whose, start, end, *label))
    if not steps:
        raise ConfigError(f"{source} has transfers only, and no work of a stage")
    # of the steps after the first mark in which all devices work the one that takes the median time
    most = max(len({row[0] for row in mine}) for mine in steps.values())
    marked = [mine for step, mine in steps.items() if step >= 0] or [*steps.values()]
    whole = [mine for mine in marked if len({row[0] for row in mine}) == most] or [*steps.values()]
    long = [max(row[2] for row in mine) - min(row[1] for row in mine) for mine in whole]
    chosen = whole[np.argsort(long, kind="stable")[(len(whole) - 1) // 2]]
    note = f": of {len(whole)} steps the one of median length" if len(whole) > 1 else ""
    return chosen, source + note, CLOCKS * (len(files) > 1)


def _read(texts: Sequence[tuple[str, str]], source: str) -> list[_File]:
    """The complete events of each file, sorted out, in seconds from the first of all."""
    files = []
    for name, text in texts:
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
            clock = 1e-9 * float(about.get("baseTimeNanoseconds", 0))  # at ts 0
        except UNREADABLE as error:
            rule = "an object with a list of events as traceEvents, or such a list"
            raise ConfigError(f"{name} is no Chrome trace, {rule}: {short(str(error))}") from None
        files.append((rank, clock, complete))
    firsts = [min((at for _, at, _ in each), default=math.inf) for *_, each in files]
    if min(firsts) == math.inf:
        raise ConfigError(
            f"{source} has no complete event (ph 'X' with ts and dur) and no step; export the "
            f"trace with torch.profiler's export_chrome_trace"
        )
    least = min(clock for _, clock, _ in files)
    # small numbers first: an epoch in us has no digits left
    begins = [at * 1e-6 + (clock - least) for at, (_, clock, _) in zip(firsts, files, strict=True)]
    zero, ranks, read = min(begins), [rank for rank, *_ in files], list[_File]()
    for (name, _), (rank, _, each), first, begin in zip(texts, files, firsts, begins, strict=True):
        named = f"rank {rank}" if rank is not None and ranks.count(rank) == 1 else name
        events = []
        for e, at, length in each:
            start, args = (at - first) * 1e-6 + (begin - zero), e.get("args")
            device = args.get("device", "") if isinstance(args, dict) else ""
            words = str(e.get("name", ""))[:200], str(e.get("cat", "")).lower()
            lane = (str(key)[:40] for key in (e.get("pid", ""), e.get("tid", 0), device))
            events.append((start, start + length * 1e-6, *words, *lane))
        read.append((named if len(files) > 1 or rank is not None else "", *_sorted_out(events)))
    return read


def _sorted_out(events: list[Any]) -> tuple[Any, Any, list[_Label]]:
    """The marks of steps, the work and the labels among a file's events."""
    marks: dict[bool, dict[int, float]] = {True: {}, False: {}}
    work, labels = defaultdict[str, list[Any]](list), list[_Label]()
    for start, end, name, category, *lane in sorted(events):
        if number := STEP.match(name):
            marks[category.startswith("gpu")].setdefault(int(number[1]), start)
        if category in WORK:
            work[category] += [] if TRAVELS.search(name) else [(start, end, lane[0])]
        if found := ACTION.search(name):
            label = found[2], int(found[1]), int(found[3])
        elif found := PHASE.match(name):
            label = found[1][0], -1, int(found[2])
        else:
            continue
        labels.append((start, end, name, category, *lane, label))
    return marks, work, labels
