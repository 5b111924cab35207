"""Whether an order can run at all: what is missing or misplaced, who waits for whom, and memory."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import numpy as np

from tiledask.errors import DeadlockError, ScheduleError
from tiledask.plan.pipelines.schedule import Action, Schedule, sources

__all__ = ["needs", "peak_in_flight", "peaks", "runnable", "validate"]


def needs(schedule: Schedule) -> dict[Action, tuple[Action, ...]]:
    """For every action, the actions whose results it uses, its own stage's first."""
    actions = list(schedule)
    uses = sources(schedule.kind, schedule.stage, schedule.microbatch).tolist()
    return {
        a: tuple(actions[n] for n in each if n >= 0) for a, each in zip(schedule, uses, strict=True)
    }


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Per device, the most (stage, micro-batch) activations kept at once; from the order alone.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> peak_in_flight(schedule("1f1b", stages=4, microbatches=8))
    (4, 3, 2, 1)
    """
    return tuple(peak for peak, _ in peaks(schedule))


def peaks(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Per device, (the most that is kept, the turn at which it is first reached): from a forward to
    its B or W; without backwards each is let go at once."""
    for kind in np.split(schedule.kind, schedule.turns[1:-1]):
        change = np.array([1, -1, 0, -1])[kind]
        held = np.cumsum(change) if schedule.trains else change
        yield (int(held.max()), int(held.argmax())) if len(kind) else (0, 0)


def validate(
    schedule: Schedule,
    stages: int | None = None,
    microbatches: int | None = None,
    memory_limit: float | Sequence[float] | None = None,
) -> Schedule:
    """``schedule`` itself, if every action is there once, in its place, and can run.

    ``stages`` and ``microbatches`` say how many there should be (default: as many as it shows).
    ``memory_limit`` is the most (stage, micro-batch) activations that a device may keep, one number
    or one per device. Raises ScheduleError that names the first fault: an action that is unknown,
    misplaced, repeated or missing; a deadlock, with its cycle, of a device alone where an action
    comes before what it needs; or a memory limit that is passed, with the moment.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> validate(schedule("1f1b", stages=4, microbatches=8), memory_limit=4)
    Schedule(1f1b: 4 stages on 4 devices, 8 micro-batches, 64 actions)
    """
    if stages not in (None, schedule.stages):
        raise ScheduleError(f"the schedule has {schedule.stages} stages and the model {stages}")
    runnable(schedule, microbatches)
    limits = memory_limit
    if limits is None:
        return schedule
    limits = limits if isinstance(limits, Sequence) else [limits] * schedule.devices
    if len(limits) != schedule.devices:
        raise ScheduleError(f"got {len(limits)} memory limits for {schedule.devices} devices")
    for device, ((peak, turn), limit) in enumerate(zip(peaks(schedule), limits, strict=True)):
        if peak > limit:
            raise ScheduleError(
                f"over memory: rank {device} keeps {peak} activations at turn {turn}, and may keep "
                f"{limit:g}; start fewer forwards before the first backward"
            )
    return schedule


def runnable(schedule: Schedule, microbatches: int | None = None) -> Schedule:
    """``schedule`` itself if it can run, with so many ``microbatches`` if they are given; else the
    ScheduleError that names its first fault."""
    many = schedule.microbatches if microbatches is None else microbatches
    if many == schedule.microbatches and schedule.runs:
        return schedule
    for fault in _incomplete(schedule, many):
        raise ScheduleError(fault)
    raise _waiting(schedule)


def _incomplete(schedule: Schedule, microbatches: int) -> Iterator[str]:
    """What is of no stage or micro-batch, on another device, no pair, missing, or there twice."""
    stages, kinds = schedule.stages, defaultdict[tuple[int, int], str](str)
    for device, order in enumerate(schedule.orders):
        for turn, a in enumerate(order):
            if not 0 <= a.stage < stages or not 0 <= a.microbatch < microbatches:
                there = f"{stages} stages and {microbatches} micro-batches, counted from 0"
                yield f"{a} on rank {device} is unknown: there are {there}"
            if (holder := schedule.holder(a.stage, a.microbatch)) != device:
                of = f"stage {a.stage} of micro-batch {a.microbatch}"
                yield f"{a} is on rank {device}, but {of} is placed on rank {holder}: move it there"
            both = order[turn : turn + 2]
            if a in schedule.pairs and "".join(each.kind for each in both) not in ("FB", "FI"):
                what = f"at turn {turn} of rank {device} it is {' and '.join(map(str, both))}"
                yield f"a device does a forward and then a backward (B or I) at once; {what}"
            kinds[a[1:]] += a.kind
    if not kinds:
        yield "the schedule has no action; a stage and micro-batch has two or more, as 0F0,0B0"
    every = ("BF", "FIW") if schedule.trains else ("F",)
    for s, i in product(range(stages), range(microbatches)):
        if "".join(sorted(kinds[s, i])) not in every:
            does = ", ".join(f"{s}{kind}{i}" for kind in kinds[s, i]) or "nothing"
            of = f"stage {s} and micro-batch {i} rank {schedule.holder(s, i)}"
            yield f"of {of} does {does}; it is F and B, or F, I and W, once each"


def _waiting(schedule: Schedule) -> DeadlockError:
    """Whose results the devices' next actions lack, around; or a device its own, which comes
    later."""
    actions, waits, ran = list(schedule), needs(schedule), {step[0] for step in schedule.steps}
    stands = dict[int, tuple[str, Action]]()
    for device, (first, until) in enumerate(pairwise(schedule.turns.tolist())):
        at = next((n for n in range(first, until) if n not in ran), until)
        block = actions[at : at + 1 + schedule.paired[at]] if at < until else []
        lacks = [b for a in block for b in waits[a] if actions.index(b) not in ran]
        if lacks:
            stands[device] = " and ".join(map(str, block)), lacks[0]
    device, steps = next(iter(stands)), dict[int, str]()
    while device not in steps:
        here, lack = stands[device]
        steps[device] = f"rank {device} is at {here} and waits for {lack}"
        device = schedule.holder(lack.stage, lack.microbatch)
    circle = list(steps.values())[list(steps).index(device) :]
    return DeadlockError(f"deadlock: {'; '.join(circle)}")
