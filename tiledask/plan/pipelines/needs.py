"""What an action waits for, apart from its turn; and whether an order can run at all.

F(s, i)  needs  F(s-1, i)                        activations from the stage before
B(s, i)  needs  F(s, i) and B(s+1, i)            its own activations, gradient from behind
I(s, i)  needs  F(s, i) and I(s+1, i)            the gradient of the input alone
W(s, i)  needs  I(s, i)                          the gradient of the weights

Where one stage does B and the next I, each needs the one that is there.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, product
from typing import NoReturn

import numpy as np

from tiledask.errors import DeadlockError, ScheduleError
from tiledask.plan.pipelines.costs import costs_of
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.walk import is_complete, walk
from tiledask.plan.units import format_bytes

__all__ = ["needs", "peak_in_flight", "peaks", "refuse", "topological_order", "validate"]

Needs = dict[Action, tuple[Action, ...]]


def needs(schedule: Schedule) -> Needs:
    """For every action of ``schedule``, the actions whose results it uses, its own stage's first.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> waits = needs(schedule("gpipe", stages=2, microbatches=1))
    >>> {str(a): [str(b) for b in before] for a, before in waits.items()}
    {'0F0': [], '0B0': ['0F0', '1B0'], '1F0': ['0F0'], '1B0': ['1F0']}
    """
    split = {(a.stage, a.microbatch) for a in schedule if a.kind == "I"}
    found: Needs = {}
    for action in schedule:
        kind, s, i = action
        if kind == "F":
            found[action] = (Action("F", s - 1, i),) if s else ()
        elif kind == "W":
            found[action] = (Action("I", s, i),)
        else:
            behind = Action("I" if (s + 1, i) in split else "B", s + 1, i)
            found[action] = (Action("F", s, i), behind)[: schedule.stages - s]
    return found


def topological_order(schedule: Schedule) -> list[Action]:
    """All actions of a schedule that can run, each after what it needs and in its turn.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> " ".join(map(str, topological_order(schedule("gpipe", stages=2, microbatches=1))))
    '0F0 1F0 1B0 0B0'
    """
    start = walk(schedule, costs_of(schedule, 1.0, 1.0, backward_input=1.0)).start
    actions = list(schedule)
    return [actions[n] for n in sorted(range(len(actions)), key=start.__getitem__)]


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Per device, the most (stage, micro-batch) activations kept at once; from the order alone.

    One is kept from its forward to its B, or to its W where the backward is split. Without
    backwards each is let go at once.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> peak_in_flight(schedule("1f1b", stages=4, microbatches=8))
    (4, 3, 2, 1)
    """
    return tuple(int(peak) for peak, _ in peaks(schedule))


def peaks(
    schedule: Schedule, activation: float = 1.0, weight_part: float | None = None
) -> Iterator[tuple[float, int]]:
    """Per device, (the most that is kept, the turn at which it is first reached)."""
    kept = activation if weight_part is None else weight_part
    change = np.array([activation, -activation, kept - activation, -kept])
    for kind in np.split(schedule.kind, schedule.turns[1:-1]):
        if not len(kind):
            yield 0.0, 0
        elif not schedule.trains:
            yield activation, 0
        else:
            held = np.cumsum(change[kind])
            yield float(held.max()), int(held.argmax())


def validate(
    schedule: Schedule,
    stages: int | None = None,
    microbatches: int | None = None,
    memory_limit: float | Sequence[float] | None = None,
    *,
    activation: float = 1,
    weight_part: float | None = None,
) -> Schedule:
    """``schedule`` itself, if every action is there once, in its place, and can run.

    ``stages`` and ``microbatches`` say how many there should be (default: as many as it
    shows). ``memory_limit`` is the most that a device may keep, one number or one per device:
    a number of (stage, micro-batch) activations, or bytes if ``activation`` says how many each
    has; ``weight_part`` is what is left of one between the gradient of its input and that of the
    weights (default: all). Raises ScheduleError that names the first fault: an action
    that is unknown, on the wrong device, repeated, before what it needs on its own device, or
    missing; a deadlock, with its cycle; or a memory limit that is passed, with the moment.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> validate(schedule("1f1b", stages=4, microbatches=8), memory_limit=4)
    Schedule(1f1b: 4 stages on 4 devices, 8 micro-batches, 64 actions)
    """
    if stages not in (None, schedule.stages):
        raise ScheduleError(
            f"the schedule has {schedule.stages} stages and the model {stages}; a stage that is "
            f"left out changes the result"
        )
    as_many = microbatches in (None, schedule.microbatches)
    if not (as_many and is_complete(schedule) and not walk(schedule, costs_of(schedule)).stands):
        refuse(schedule, microbatches)
    if memory_limit is None:
        return schedule
    limits = (
        memory_limit if isinstance(memory_limit, Sequence) else [memory_limit] * schedule.devices
    )
    if len(limits) != schedule.devices:
        raise ScheduleError(
            f"got {len(limits)} memory limits for {schedule.devices} devices: give one, or one each"
        )
    found = zip(peaks(schedule, activation, weight_part), limits, schedule.orders, strict=True)
    for device, ((peak, turn), limit, order) in enumerate(found):
        if peak > limit:
            counts = activation == 1 and weight_part is None
            held = f"{peak:g} activations" if counts else f"{format_bytes(peak)} of activations"
            allowed = f"{limit:g}" if counts else format_bytes(limit)
            raise ScheduleError(
                f"over memory: rank {device} keeps {held} at {order[turn]}, turn {turn}, and may "
                f"keep {allowed}; start fewer forwards before the first backward"
            )
    return schedule


def refuse(schedule: Schedule, microbatches: int | None = None) -> NoReturn:
    """Raise the ScheduleError that names the first fault of a schedule that cannot run."""
    many = schedule.microbatches if microbatches is None else microbatches
    waits = needs(schedule)
    for fault in chain(_places(schedule, many), _turns(schedule, waits), _missing(schedule, many)):
        raise ScheduleError(fault)
    raise DeadlockError(f"deadlock: {'; '.join(_circle(schedule, waits))}")


def _places(schedule: Schedule, microbatches: int) -> Iterator[str]:
    """What is of no stage or micro-batch, or on another device."""
    for device, order in enumerate(schedule.orders):
        for a in order:
            unknown = f"{a} on rank {device}: unknown"
            if not 0 <= a.stage < schedule.stages:
                yield f"{unknown} stage {a.stage}; the stages are 0 to {schedule.stages - 1}"
            elif not 0 <= a.microbatch < microbatches:
                yield f"{unknown} micro-batch {a.microbatch}; they are 0 to {microbatches - 1}"
            elif (holder := schedule.holder(a.stage, a.microbatch)) != device:
                of = f"pipeline {a.microbatch % schedule.pipelines}'s "
                of = f"{of if schedule.pipelines > 1 else ''}stage {a.stage}"
                yield f"{a} is on rank {device}, but {of} is placed on rank {holder}: move it there"


def _turns(schedule: Schedule, waits: Needs) -> Iterator[str]:
    """What is there twice, before what it needs on its own device, or at once with it."""
    for device, order in enumerate(schedule.orders):
        turns: dict[Action, int] = {}
        for turn, a in enumerate(order):
            if turns.setdefault(a, turn) != turn:
                yield f"{a} is repeated on rank {device}: turns {turns[a]} and {turn}; do it once"
        for a, turn in turns.items():
            for b in waits[a]:
                if schedule.holder(*b[1:]) != device or turns.get(b, turn) < turn:
                    continue
                rule = "backward before forward" if b.kind == "F" != a.kind else "too early"
                where = f"is only at turn {turns[b]}" if b in turns else "never comes"
                yield f"{rule}: {a} at turn {turn} on rank {device} needs {b}, which {where}"
        for turn, a in enumerate(order):
            both, at = order[turn : turn + 2], f"at turn {turn} of rank {device}"
            if a in schedule.pairs and "".join(each.kind for each in both) not in ("FB", "FI"):
                yield (
                    f"a device does a forward and then a backward (B or I) at once; {at} it is "
                    f"{' and '.join(map(str, both))}"
                )
            elif a in schedule.pairs and a in waits[both[1]]:
                yield f"backward before forward: {at} {both[1]} needs {a}, and runs with it"


def _missing(schedule: Schedule, microbatches: int) -> Iterator[str]:
    """What some stage does not do with some micro-batch, or does twice."""
    if not len(schedule.kind):
        yield "the schedule has no action; a stage and micro-batch has two or more, as 0F0,0B0"
    kinds: dict[tuple[int, ...], str] = defaultdict(str)
    for a in sorted(schedule, key=lambda a: KINDS.index(a.kind)):
        kinds[a[1:]] += a.kind
    lacking = {"": "F", "F": "B" * schedule.trains, "FI": "W", "FW": "I", "FB": "", "FIW": ""}
    for s, i in product(range(schedule.stages), range(microbatches)):
        has = kinds[s, i]
        lacks = lacking.get(has, "") if "F" in has else "F"
        if lacks:
            yield (
                f"missing {Action(lacks, s, i)} on rank {schedule.holder(s, i)}: all of "
                f"{microbatches} micro-batches pass through all of {schedule.stages} stages"
            )
        if has not in lacking:
            twice = " and ".join(str(Action(kind, s, i)) for kind in has if kind != "F")
            yield f"stage {s} does the backward of micro-batch {i} twice: {twice}; B, or I and W"


def _circle(schedule: Schedule, waits: Needs) -> list[str]:
    """Who waits for whom, around: each device's next action, and the result that it lacks."""
    found, actions = walk(schedule, costs_of(schedule)), list(schedule)
    done = {action for action, end in zip(actions, found.end, strict=True) if end >= 0}
    stands = {}
    for at in found.stands:
        block = actions[at : at + 2] if schedule.paired[at] else actions[at : at + 1]
        lacks = next(b for a in block for b in waits[a] if b not in done)
        stands[int(schedule.device[at])] = " and ".join(map(str, block)), lacks
    device, steps = next(iter(stands)), dict[int, str]()
    while device not in steps:
        here, lacks = stands[device]
        steps[device] = f"rank {device} is at {here} and waits for {lacks}"
        device = schedule.holder(lacks.stage, lacks.microbatch)
    return list(steps.values())[list(steps).index(device) :]
