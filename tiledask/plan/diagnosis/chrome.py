"""Chrome's JSON, as torch.profiler writes it: one file, or one per rank.

work     kernels of a GPU, or operators of a CPU; what NCCL, gloo and the optimizer do is put aside
labels   "0F3", "PP:0F3", "Forward 3": an action is the work inside, without the wait before it
steps    between ProfilerStep marks; of several, the one that takes the median time is read
"""

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from tiledask.errors import ConfigError, short
from tiledask.plan.diagnosis.trace import Row, Trace
from tiledask.plan.whole import is_whole

__all__ = ["MeasuredStep", "of_chrome", "step_of_chrome"]

ACTION = re.compile(r"(?<![A-Za-z0-9])(\d{1,9})([FBIW])(\d{1,9})(?![A-Za-z0-9])")
"""An action in the name of an event, such as record_function("0F3")."""
PHASE = re.compile(r"^(Forward|Backward) (\d{1,9})$")
"""The same of torch's GPipe; the stage is the device's place."""
STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
BESIDE = re.compile(r"^(measured|simulated): \d{1,9} devices$")
"""What Timeline.to_trace calls a process; of several the measured one is read."""
TRAVELS = re.compile(r"nccl|gloo:|c10d", re.IGNORECASE)
TUNES = re.compile(r"^optimizer\.|multi_tensor_apply|adam", re.IGNORECASE)
"""The optimizer's annotations, and kernels of its step."""
FRAMES = ("python_function", "overhead", "cuda_runtime", "cuda_driver")
"""Categories that are no work, where neither kernels nor operators are told."""
LAUNCH_GAP = 1e-3
"""Share of the makespan below which a pause between two kernels is no idle time."""
SLIVER = 0.05
"""Of the median block: shorter ones are copies and checks, not actions."""
MOST_TIME = 1e300
"""Above which a time is refused: its sums would not be finite."""
CLOCKS = 2e-3
"""Share of the makespan by which the clocks of two ranks may differ."""


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


@dataclass(frozen=True)
class _File:
    name: str
    rank: int | None
    events: list[_Event]

    @cached_property
    def marks(self) -> dict[tuple[str, bool], tuple[list[float], list[int]]]:
        """{(pid, on the GPU): (starts, numbers of steps)}, rising; pid "" for those of all."""
        found = sorted((e.start, int(n[1]), e) for e in self.events if (n := STEP.match(e.name)))
        lines: dict[tuple[str, bool], tuple[list[float], list[int]]] = {}
        for start, number, e in found:
            for pid in ("", e.pid):
                starts, numbers = lines.setdefault((pid, e.cat.startswith("gpu")), ([], []))
                if pid or number not in numbers:
                    starts.append(start)
                    numbers.append(number)
        return lines


def of_chrome(texts: Sequence[tuple[str, str]], source: str, scale: float) -> Trace:
    """The Trace of (file name, JSON) pairs; ``scale``: seconds of a unit of ts.

    A file per rank is told by its distributedInfo. Raises ConfigError for what cannot be read.
    """
    files = _on_one_clock([_parsed(name, text) for name, text in texts], scale)
    is_many = len(files) > 1
    twice = [rank for rank, n in Counter(f.rank for f in files).items() if n > 1]
    if is_many and twice and twice[0] is not None:
        same = [f.name for f in files if f.rank == twice[0]]
        raise ConfigError(f"{' and '.join(same[:2])} are both of rank {twice[0]}; give one each")
    every = [e for f in files for e in f.events]
    if not every:
        raise ConfigError(
            f"{source} has no complete event (ph 'X' with ts and dur); export the trace with "
            f"torch.profiler's export_chrome_trace"
        )
    has = Counter(e.cat for e in every)
    worker = next((cat for cat in ("kernel", "cpu_op") if has[cat]), "")
    labels = [e for e in every if ACTION.search(e.name) or PHASE.match(e.name)]
    on_gpu = any(e.cat.startswith("gpu") for e in labels)
    if worker == "kernel" and not on_gpu:
        labels = []  # the CPU launches kernels and does not wait for them
    rows: list[_Timed] = []
    aside = travel = 0.0
    for f, names in zip(files, _device_names(files, worker, bool(labels)), strict=True):
        work, tuned, sent = _work(f, worker)
        aside, travel = aside + tuned, travel + sent
        found = _labelled(f, work, worker, on_gpu) if labels else ((e, BARE) for e in work)
        rows += [_Timed(names[e[2:5]], _step_of(e, f), e, label) for e, label in found]
    if not rows:
        raise ConfigError(f"{source} has transfers only, and no work of a stage")
    chosen, said = _one_step(rows, bool(labels))
    if aside > 0:
        said.append("the optimizer's kernels left out")
    about = ": ".join([source, *filter(None, [", ".join(said)])])
    rest = _outermost(chosen) if labels or not worker else _union(chosen)
    trace = Trace.of(rest, transfer=travel, source=about)
    if labels:
        stage = [d if s < 0 else s for d, s in zip(trace.device, trace.stage, strict=True)]
        trace = replace(trace, stage=trace.stage * 0 + stage)
        return replace(trace, grain=CLOCKS * trace.makespan) if is_many else trace
    return trace.merged(LAUNCH_GAP * trace.makespan, SLIVER) if worker else trace


class MeasuredStep(NamedTuple):
    """How long a step of a trace takes."""

    seconds: float
    error: float | None
    """Half of what its steps differ by, over the median; None of one alone."""
    words: str
    """What was measured."""


def step_of_chrome(texts: Sequence[tuple[str, str]], source: str, scale: float) -> MeasuredStep:
    """The step in (file name, JSON) pairs: the median of the seconds between two marks of the
    profiler; of a trace without two, those from its first event to its last."""
    files = _on_one_clock([_parsed(name, text) for name, text in texts], scale)
    between = []
    for f in files:
        starts, numbers = f.marks.get(("", False)) or f.marks.get(("", True)) or ([], [])
        marks = pairwise(zip(starts, numbers, strict=True))
        between += [b - a for (a, number), (b, after) in marks if after == number + 1]
    if between:
        seconds = median(between)
        off = (max(between) - min(between)) / 2 / seconds if seconds else 0.0
        return MeasuredStep(seconds, off, f"the median of {len(between)} steps in {source}")
    events = [e for f in files for e in f.events]
    if not events:
        raise ConfigError(f"{source} has no complete event (ph 'X' with ts and dur), and no step")
    whole = max(e.end for e in events) - min(e.start for e in events)
    return MeasuredStep(whole, None, f"{source}, taken for one step")


# --- files to events ------------------------------------------------------------------------


_Json = dict[str, Any]
"""An object of the file."""


class _Read(NamedTuple):
    name: str
    rank: int | None
    base: float
    """Seconds of the clock at ts 0."""
    events: list[_Json]


def _parsed(name: str, text: str) -> _Read:
    try:
        data = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{name} begins like JSON but cannot be read: {error}") from None
    about = data if isinstance(data, dict) else {"traceEvents": data}
    events = about.get("traceEvents", [])
    if not isinstance(events, list):
        raise ConfigError(
            f"{name} has traceEvents {short(events)}; they are a list of events, as "
            f"torch.profiler writes them"
        )
    events = [e for e in events if isinstance(e, dict)]
    names = {
        _word(e.get("pid", "")): str(_args(e).get("name"))
        for e in events
        if e.get("name") == "process_name"
    }
    ours = sorted((name, pid) for pid, name in names.items() if BESIDE.match(name))
    others = {pid for _, pid in ours[1:]}
    events = [e for e in events if _word(e.get("pid", "")) not in others] if others else events
    told = about.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    base = about.get("baseTimeNanoseconds", 0)
    return _Read(
        name,
        rank if is_whole(rank) else None,
        1e-9 * base if isinstance(base, int | float) and abs(base) < 1e20 else 0.0,
        events,
    )


def _on_one_clock(read: list[_Read], scale: float) -> list[_File]:
    """Their events, in seconds from the first."""
    spans = [  # the complete events of a program, and none of the profiler's own
        [
            e
            for e in r.events
            if e.get("ph") == "X" and "ts" in e
            if str(e.get("cat")) != "Trace" and str(e.get("pid")) not in ("Spans", "Traces")
        ]
        for r in read
    ]
    first = min((r.base for r in read), default=0.0)
    later = [r.base - first for r in read]
    starts = [
        min((_number(e, "ts", r.name) for e in mine), default=math.inf)
        for r, mine in zip(read, spans, strict=True)
    ]
    zero = min((s * scale + late for s, late in zip(starts, later, strict=True)), default=0.0)
    if any(s < 0 for s in starts):
        r = read[next(i for i, s in enumerate(starts) if s < 0)]
        raise ConfigError(f"an event of {r.name} starts at {min(starts):g}; times are 0 or more")
    files = []
    for r, mine, start, late in zip(read, spans, starts, later, strict=True):
        shift = start * scale + late - zero if mine else 0.0
        made = [_event(e, r.name, start, shift, scale) for e in mine]
        files.append(_File(r.name, r.rank, made))
    return files


def _args(event: _Json) -> _Json:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _event(e: _Json, source: str, first: float, shift: float, scale: float) -> _Event:
    start, length = _number(e, "ts", source), _number(e, "dur", source)
    if length < 0:
        raise ConfigError(
            f"event {_word(e.get('name'))} of {source} lasts {length:g}; that is 0 or more"
        )
    args = _args(e)
    at = (start - first) * scale + shift
    return _Event(
        str(e.get("name", ""))[:200],
        str(e.get("cat", "")).lower(),
        _word(e.get("pid", "")),
        _word(e.get("tid", 0)),
        _word(args["device"]) if "device" in args else "",
        at,
        at + length * scale,
    )


def _number(event: _Json, name: str, source: str) -> float:
    value = event.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST_TIME:
        return float(value)
    raise ConfigError(
        f"event {_word(event.get('name'))} of {source} has {name} {short(value)}; it is a finite "
        f"number: drop the event"
    )


def _word(value: Any) -> str:
    return str(value)[:40]


# --- events to rows -------------------------------------------------------------------------

_Key = tuple[str, str, str]
"""(pid, tid, args.device) of an event."""
_Label = tuple[str, int, int]
"""(kind, stage, micro-batch); "" and -1 for what is not told."""
BARE: _Label = ("", -1, -1)


class _Timed(NamedTuple):
    device: str
    step: int
    event: _Event
    label: _Label


def _device_names(files: list[_File], worker: str, labelled: bool) -> list[dict[_Key, str]]:
    """Of each file {key: device}: which events are of one device.

    A rank's file is one device, or one per args.device. In a file of several ranks they are told
    apart by pid and args.device, and by tid where there is one process without.
    """
    of_files = []
    for f in files:
        if len(files) > 1 or f.rank is not None:
            own = f"rank {f.rank}" if f.rank is not None else f.name.split(".")[0]
            gpus = {e.device for e in f.events if e.cat == "kernel" and e.device}
            several = len(gpus) > 1
            names = {e[2:5]: own + f" gpu {e.device}" * several for e in f.events}
        else:
            counted = [e for e in f.events if not worker or e.cat == worker]
            counted = [e for e in f.events if _label(e)] if labelled else counted
            pids, devices = ({e[at] for e in counted} for at in (2, 4))
            names = {}
            for e in f.events:
                apart = [e.pid] * (len(pids) > 1) + [e.device] * (len(devices) > 1)
                names[e[2:5]] = "/".join(filter(None, apart)) or e.device or e.tid
        of_files.append(names)
    return of_files


def _work(f: _File, worker: str) -> tuple[list[_Event], float, float]:
    """(events that are work, seconds of the optimizer, seconds of transfers)."""
    tuning = [e for e in f.events if TUNES.match(e.name) and e.cat.endswith("annotation")]
    tuning.sort(key=lambda e: e.start)
    work, aside, travel = [], 0.0, 0.0
    for e in f.events:
        if STEP.match(e.name) or (e.cat != worker if worker else e.cat in FRAMES):
            continue
        if TRAVELS.search(e.name):
            travel += e.end - e.start
        elif (worker == "kernel" and TUNES.search(e.name)) or _is_inside(e, tuning):
            aside += e.end - e.start
        else:
            work.append(e)
    return sorted(work, key=lambda e: e.start), aside, travel


def _is_inside(e: _Event, spans: list[_Event]) -> bool:
    """Whether a span of its own time line, its GPU's or its process's, has it."""
    return any(s.pid == e.pid and s.start <= e.start < s.end for s in spans)


def _label(e: _Event) -> _Label | None:
    """What the name says: "" for a name that says nothing."""
    found = ACTION.search(e.name)
    if found:
        if "OVERLAP" in e.name:
            raise ConfigError(
                f"{_word(e.name)} is a forward and a backward at once; which part of its time is "
                f"whose cannot be told: give a run without pairs"
            )
        return found[2], int(found[1]), int(found[3])
    found = PHASE.match(e.name)
    return (found[1][0], -1, int(found[2])) if found else None


def _labelled(
    f: _File, work: list[_Event], worker: str, on_gpu: bool
) -> Iterator[tuple[_Event, _Label]]:
    """The labelled actions, each from its first work to its last; without any it is as told."""
    places: dict[str, list[_Event]] = defaultdict(list)
    for e in work:
        places[e.pid].append(e)
    start = attrgetter("start")
    for span in f.events:
        label = _label(span)
        if label is None or (on_gpu and not span.cat.startswith("gpu")):
            continue
        mine = places[span.pid]
        inside = mine[
            bisect_left(mine, span.start, key=start) : bisect_left(mine, span.end, key=start)
        ]
        if inside and worker:
            yield span._replace(start=inside[0].start, end=max(e.end for e in inside)), label
        elif not (on_gpu and work):
            yield span, label


def _step_of(e: _Event, f: _File) -> int:
    """The number of its step; -1 before the first mark, 0 if there is none."""
    of_gpu = f.marks.get((e.pid, True)) if e.cat != "cpu_op" else None
    of_cpu = f.marks.get((e.pid, False)) or f.marks.get(("", False), ([], []))
    starts, numbers = of_gpu or of_cpu
    passed = bisect_right(starts, e.start + 1e-9)
    return (numbers[passed - 1] if passed else -1) if starts else 0


def _one_step(rows: list[_Timed], labelled: bool) -> tuple[list[Row], list[str]]:
    """(rows of the step that takes the median time, what to say of it)."""
    if labelled and len({r.step for r in rows}) == 1:
        # steps are counted by how often an action has been before
        seen: Counter[tuple[str, _Label]] = Counter()
        reach: dict[tuple[str, _Label], float] = {}
        counted: list[_Timed] = []
        for r in sorted(rows, key=lambda r: (r.event.start, -r.event.end)):
            key = r.device, r.label
            if r.event.start < reach.get(key, -math.inf):
                continue  # the same once more, inside
            reach[key] = r.event.end
            counted.append(r._replace(step=seen[key]))
            seen[key] += 1
        rows = counted
    steps: dict[int, list[_Timed]] = defaultdict(list)
    for r in rows:
        steps[r.step].append(r)
    most = max(len({r.device for r in mine}) for mine in steps.values())
    fewest = 0.5 * max(map(len, steps.values()))
    whole = [
        mine
        for step, mine in steps.items()
        if len({r.device for r in mine}) == most
        and len(mine) >= fewest
        and (step >= 0 or len(steps) == 1)
    ]
    whole = whole or list(steps.values())

    def length(mine: list[_Timed]) -> float:
        return max(r.event.end for r in mine) - min(r.event.start for r in mine)

    chosen = sorted(whole, key=length)[(len(whole) - 1) // 2]
    zero = min(r.event.start for r in chosen)
    out = [(r.device, r.event.start - zero, r.event.end - zero, *r.label) for r in chosen]
    said = [f"of {len(whole)} steps the one of median length"] if len(whole) > 1 else []
    return out, said


def _outermost(rows: Iterable[Row]) -> Iterator[Row]:
    """Without the calls inside calls: events of a thread are nested."""
    reach: dict[str, float] = {}
    for row in sorted(rows, key=lambda r: (r[0], r[1], -r[2])):
        before = reach.get(row[0], -math.inf)
        if row[1] >= before or row[2] > before:
            reach[row[0]] = max(row[2], before)
            yield row


def _union(rows: Iterable[Row]) -> list[Row]:
    """Streams of a device made one: busy where any of them is."""
    joined: list[Row] = []
    for row in sorted(rows, key=lambda r: r[:3]):
        if joined and joined[-1][0] == row[0] and row[1] <= joined[-1][2]:
            joined[-1] = (*joined[-1][:2], max(row[2], joined[-1][2]), *BARE)
        else:
            joined.append(row)
    return joined
