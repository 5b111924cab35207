"""A pipeline's run or a Timeline as an Activity, in the colours of the matplotlib Gantt."""

import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tiledask.lab.dashboard.activity import HEIGHT, Activity, Pause, RowBox, interval, transfer_box
from tiledask.lab.dashboard.recorder import ReportedRun, Snapshot
from tiledask.lab.plots.gantt import KINDS, chunks_of, colour_of, kinds_shown
from tiledask.lab.plots.style import INK, ink_on
from tiledask.plan.pipelines.causes import CAUSES
from tiledask.plan.pipelines.timeline import COMPUTE, TRANSFER, Span, Timeline
from tiledask.plan.units import format_seconds
from tiledask.plan.whole import is_whole

__all__ = ["is_done", "last_sign", "of_run", "of_timeline"]


def of_run(run: ReportedRun, record: Snapshot) -> Activity:
    """The Activity of a pipeline's ``run``; while it runs, of what it has done so far."""
    actions = [found for event in run.events if (found := _action(event))]
    # an action that ran again, after its worker died, counts as it ran last
    spans = {span[1:4]: span for _, span in actions}
    seen = max((span[0] for span in spans.values()), default=0) + 1
    devices = max(_whole(run.about.get("devices")) or 1, seen)
    moved = _transfers(run, actions, record)
    timeline = Timeline.of(devices, [*spans.values(), *moved], "measured")
    expected = _whole(run.about.get("actions"))
    done = expected is not None and len(spans) >= expected
    state = "" if expected is None else ", done" if done else ", running"
    about = run.about
    facts = [("schedule", str(about["schedule"]))] if about.get("schedule") else []
    facts.append(("devices", str(devices)))
    if _whole(about.get("microbatches")):
        facts.append(("micro-batches", str(about["microbatches"])))
    facts.append(("actions done", f"{len(spans)} of {expected}" if expected else str(len(spans))))
    note = (
        f"This run is long: the last {len(run.events):,} of {run.count:,} actions are shown, "
        f"and the numbers are theirs."
    )
    return of_timeline(
        timeline,
        title=f"Pipeline of {time.strftime('%H:%M:%S', time.localtime(run.announced))}{state}",
        predicted=_shares(about.get("predicted_idle"), devices)
        if done or expected is None
        else _predicted_so_far(about.get("predicted"), spans, devices),
        facts=facts,
        so_far="" if done or expected is None else " so far",
        note=note if run.count > len(run.events) else "",
    )


def of_timeline(
    timeline: Timeline,
    *,
    title: str,
    predicted: Sequence[float] | None = None,
    facts: Sequence[tuple[str, str]] = (),
    so_far: str = "",
    note: str = "",
) -> Activity:
    """The Activity of a Timeline; ``predicted`` has an idle share per device."""
    chunks = chunks_of(timeline)
    boxes, transfers = [], []
    columns = ("device", "kind", "stage", "microbatch", "start", "end")
    for span in zip(*(getattr(timeline, name).tolist() for name in columns), strict=True):
        if span[1] == TRANSFER:
            transfers.append(transfer_box(*span[:1], *span[4:]))
        else:
            boxes.append(_action_box(span, chunks[span[0], span[2]]))
    makespan = timeline.makespan
    numbers = [
        *facts,
        (f"makespan{so_far}", format_seconds(makespan) if makespan else "0 s"),
        (f"idle {timeline.origin}{so_far}", f"{100 * timeline.bubble_fraction:.1f} %"),
    ]
    if predicted is not None:
        idle = 100 * sum(predicted) / len(predicted)
        numbers.append((f"idle predicted{so_far}", f"{idle:.1f} %"))
    return Activity(
        title,
        tuple(numbers),
        tuple(f"device {d + 1}" for d in range(timeline.devices)),
        tuple(boxes),
        tuple(transfers),
        makespan,
        tuple(idle / makespan if makespan else 0.0 for idle in timeline.idle_per_device),
        None if predicted is None else tuple(predicted),
        _action_legend(timeline),
        note,
        numbers="the micro-batch",
        pauses=tuple(_pauses(timeline, over=not so_far)),
    )


def last_sign(run: ReportedRun) -> float:
    """When ``run`` was last heard of: the end of its last action, or its announcement."""
    latest = islice(reversed(run.events), 64)  # they come almost in the order of their ends
    ends = [found[1][5] for event in latest if (found := _action(event))]
    return max([run.announced, *ends])


def is_done(run: ReportedRun) -> bool:
    """Whether all actions of ``run`` have been reported; False if it did not say how many."""
    return run.count >= (_whole(run.about.get("actions")) or math.inf)


# -- what a run says of itself, which may be anything --------------------------------------------


def _action(event: Any) -> tuple[Any, Span] | None:
    """(the worker's address, the span) of a reported action; None for anything else."""
    try:
        kind, stage, microbatch = event["action"]
        span = (
            int(event["device"]),
            str(kind),
            int(stage),
            int(microbatch),
            float(event["start"]),
            float(event["end"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
    device, kind, *_, start, end = span
    sound = kind in COMPUTE and device >= 0 and math.isfinite(start) and start <= end < math.inf
    return (event.get("worker"), span) if sound else None


def _whole(value: Any) -> int | None:
    return value if is_whole(value, 1, 99_999) else None


def _shares(values: Any, devices: int) -> tuple[float, ...] | None:
    try:
        shares = tuple(float(v) for v in values)
    except (TypeError, ValueError):
        return None
    sound = len(shares) == devices and all(0 <= share <= 1 for share in shares)
    return shares if sound else None


def _predicted_so_far(
    spans: Any, done: Mapping[tuple, Span], devices: int
) -> tuple[float, ...] | None:
    """Idle shares of the predicted ``spans`` of what is ``done``, up to the last of their ends."""
    try:
        same = [tuple(span) for span in spans if tuple(span[1:4]) in done]
        cut = Timeline.of(devices, same)
    except (TypeError, ValueError, IndexError):
        return None
    return tuple(idle / cut.makespan for idle in cut.idle_per_device) if cut.makespan else None


def _transfers(run: ReportedRun, actions: list[tuple[Any, Span]], record: Snapshot) -> list[Span]:
    """Transfers to the run's devices between its first start and its last end: those that its
    actions tell of, and those of Dask, each for the action that its device does next."""
    if not actions:
        return []
    told = [way for event in run.events for way in _arriving(event)]
    first, last = min(s[4] for _, s in actions), max(s[5] for _, s in actions)
    place = {address: span[0] for address, span in actions if address}
    turns: dict[int, list[Span]] = {}
    for span in sorted((span for _, span in actions), key=_begins):
        turns.setdefault(span[0], []).append(span)
    dasks = []
    for task in record.tasks:
        device = place.get(task.worker)
        for t in task.times if device is not None else ():
            if t["action"] == "transfer":
                after = bisect_left(turns[device], t["stop"], key=_begins)
                _, kind, stage, number, *_ = (turns[device][after:] or [(0, "W", -1, -1)])[0]
                made = stage + {"F": -1, "W": 0}.get(kind, 1)
                dasks.append((device, TRANSFER, made, number, t["start"], t["stop"]))
    return [span for span in told + dasks if first <= span[4] <= span[5] <= last]


def _begins(span: Span) -> float:
    return span[4]


def _arriving(event: Any) -> list[Span]:
    """The transfers that an action reports to have waited for; [] if it reports none."""
    try:
        device, microbatch = int(event["device"]), int(event["action"][2])
        return [
            (device, TRANSFER, int(stage), microbatch, float(start), float(stop))
            for stage, start, stop in event["arriving"]
        ]
    except (IndexError, KeyError, TypeError, ValueError):
        return []


# -- words and boxes -----------------------------------------------------------------------------


def _action_box(span: Span, chunk: int) -> RowBox:
    device, kind, stage, microbatch, start, end = span
    colour = colour_of(kind, chunk)
    words = f"{KINDS[kind][0]} {stage}{kind}{microbatch}, on rank {device}: {interval(start, end)}"
    return RowBox(device, HEIGHT, start, end, str(microbatch), _hex(colour), ink_on(colour), words)


def _pauses(timeline: Timeline, over: bool) -> Iterator[Pause]:
    """Idle time with its cause; of a run that is not over, nobody knows what is waited for now."""
    found = timeline.idle_time
    columns = (found.device, found.start, found.end, found.code)
    pieces = [*zip(*(column.tolist() for column in columns), strict=True)]
    last = [0.0] * timeline.devices  # when each has ended what it did
    computes = timeline.computes
    ended = timeline.device[computes].tolist(), timeline.end[computes].tolist()
    for device, end in zip(*ended, strict=True):
        last[device] = max(last[device], end)
    for device, start, end, code in pieces:
        if over or start < last[device]:
            yield Pause(device, start, end, list(CAUSES)[code])


def _action_legend(timeline: Timeline) -> tuple[tuple[str, str], ...]:
    shown = kinds_shown(timeline)
    legend = [(c if isinstance(c, str) else _hex(c), words) for words, c in shown]
    if (timeline.kind == TRANSFER).any():
        legend.append((INK, "transfer to the device"))
    return tuple(legend)


def _hex(colour: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * c):02x}" for c in colour)
