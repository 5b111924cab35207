"""Whether an order can run: what each action waits for, who waits in a circle, and memory."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tiledask.errors import DeadlockError, ScheduleError
from tiledask.plan.pipelines.schedule import Action, Schedule, sources

__all__ = ["most_kept", "needs", "runnable", "validate"]


def needs(schedule: Schedule) -> dict[Action, tuple[Action, ...]]:
    """For every action, the actions whose results it uses, its own stage's first."""
    actions = list(schedule)
    uses = sources(schedule.kind, schedule.stage, schedule.microbatch).tolist()
    return {
        a: tuple(actions[n] for n in each if n >= 0) for a, each in zip(actions, uses, strict=True)
    }


def most_kept(schedule: Schedule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By device, the most (stage, micro-batch) activations that are kept, and the turn at which
    they first are; from the order alone: from a forward to its B or W, and without backwards each
    is let go at once."""
    change = np.array([1, -1, 0, -1])[schedule.kind]
    rows = np.split(change, schedule.turns[1:-1])
    held = [np.cumsum(row) if schedule.trains else row for row in rows]
    most = tuple(int(row.max(initial=0)) for row in held)
    return most, tuple(int(row.argmax()) if len(row) else 0 for row in held)


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
    runnable(schedule)
    there = schedule.stages, schedule.microbatches
    wanted = stages or there[0], microbatches or there[1]
    if wanted != there:
        have, want = (f"{s} stages and {i} micro-batches" for s, i in (there, wanted))
        raise ScheduleError(f"the schedule has {have}, and there should be {want}")
    limits = (
        memory_limit if isinstance(memory_limit, Sequence) else [memory_limit] * schedule.devices
    )
    if len(limits) != schedule.devices:
        raise ScheduleError(f"got {len(limits)} memory limits for {schedule.devices} devices")
    for device, (peak, turn, limit) in enumerate(zip(*most_kept(schedule), limits, strict=True)):
        if limit is not None and peak > limit:
            raise ScheduleError(
                f"over memory: rank {device} keeps {peak} activations at turn {turn}, and may keep "
                f"{limit:g}; start fewer forwards before the first backward"
            )
    return schedule


def runnable(schedule: Schedule) -> Schedule:
    """``schedule`` itself if it can run; else the ScheduleError that names its first fault."""
    if schedule.fault:
        raise ScheduleError(schedule.fault)
    if len(schedule.steps) + schedule.paired.sum() == len(schedule):
        return schedule
    # whose results the devices' next actions lack, around; or of a device its own, later on
    actions, waits, paired = list(schedule), needs(schedule), schedule.paired.tolist()
    ran = {n + k for n in schedule.steps for k in range(1 + paired[n])}
    done, stands = {actions[n] for n in ran}, dict[int, tuple[str, Action]]()
    for device, (first, until) in enumerate(pairwise(schedule.turns.tolist())):
        at = next((n for n in range(first, until) if n not in ran), until)
        block = actions[at : at + 1 + paired[at]] if at < until else []
        if lacks := [b for a in block for b in waits[a] if b not in done]:
            stands[device] = " and ".join(map(str, block)), lacks[0]
    device, circle = next(iter(stands)), dict[int, str]()
    while device not in circle:
        here, lack = stands[device]
        circle[device] = f"rank {device} is at {here} and waits for {lack}"
        device = schedule.holder(lack.stage, lack.microbatch)
    around = list(circle.values())[list(circle).index(device) :]
    raise DeadlockError(f"deadlock: {'; '.join(around)}")
