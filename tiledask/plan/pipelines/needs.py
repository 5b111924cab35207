"""What an action waits for, apart from its turn; and whether an order can run at all.

F(s, i)  needs  F(s-1, i)                        activations from the stage before
B(s, i)  needs  F(s, i) and B(s+1, i)            its own activations, gradient from behind
I(s, i)  needs  F(s, i) and I(s+1, i)            the gradient of the input alone
W(s, i)  needs  I(s, i)                          the gradient of the weights

Where one stage does B and the next I, each needs the one that is there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tiledask.errors import DeadlockError, ScheduleError
from tiledask.plan.pipelines.longest_path import longest_path
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.transfers.links import Links
from tiledask.plan.units import format_bytes

__all__ = [
    "action_needs",
    "checked",
    "needs",
    "peak_in_flight",
    "peaks",
    "stuck",
    "validate",
]

Needs = dict[Action, tuple[Action, ...]]


def action_needs(action: Action, stages: int, split: bool = False) -> tuple[Action, ...]:
    """The actions whose results ``action`` uses; the first is on its own stage, if any is.

    ``split`` says whether the stage behind splits its backward, that is whether the gradient
    comes from I(s+1, i) rather than from B(s+1, i).

    >>> [str(a) for a in action_needs(Action("B", 0, 5), stages=2)]
    ['0F5', '1B5']
    """
    kind, s, i = action
    if kind == "F":
        return (Action("F", s - 1, i),) if s else ()
    if kind == "W":
        return (Action("I", s, i),)
    own = Action("F", s, i)
    return (own, Action("I" if split else "B", s + 1, i)) if s + 1 < stages else (own,)


def needs(schedule: Schedule) -> Needs:
    """For every action of ``schedule``, the actions whose results it uses.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> waits = needs(schedule("gpipe", stages=2, microbatches=1))
    >>> {str(a): [str(b) for b in before] for a, before in waits.items()}
    {'0F0': [], '0B0': ['0F0', '1B0'], '1F0': ['0F0'], '1B0': ['1F0']}
    """
    split = {(a.stage, a.microbatch) for a in schedule if a.kind == "I"}
    return {
        a: action_needs(a, schedule.stages, (a.stage + 1, a.microbatch) in split) for a in schedule
    }


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
    for device in range(schedule.devices):
        kind = schedule.kind[slice(*schedule.turns[device : device + 2])]
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
    as_asked = stages in (None, schedule.stages) and microbatches in (None, schedule.microbatches)
    no_time = np.zeros((len(KINDS), schedule.stages, 1))
    if not (
        as_asked
        and schedule.is_complete
        and longest_path(schedule, no_time, no_time[0], Links.of(schedule)) is not None
    ):
        checked(schedule, stages, microbatches)  # says what is wrong
    if memory_limit is not None:
        _check_memory(schedule, memory_limit, activation, weight_part)
    return schedule


def checked(
    schedule: Schedule, stages: int | None = None, microbatches: int | None = None
) -> tuple[Needs, list[Action]]:
    """What each action needs, and a feasible order of all of them, once every check is passed.

    The same checks and errors as :func:`validate`, for whoever goes on to run the schedule.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> waits, order = checked(schedule("gpipe", stages=2, microbatches=1))
    >>> " ".join(map(str, order))
    '0F0 1F0 1B0 0B0'
    """
    stages = schedule.stages if stages is None else stages
    microbatches = schedule.microbatches if microbatches is None else microbatches
    if schedule.stages != stages:
        raise ScheduleError(
            f"the schedule has {schedule.stages} stages and the model {stages}; a stage that is "
            f"left out changes the result"
        )
    _check_places(schedule, microbatches)
    waits = needs(schedule)
    _check_order(schedule, waits)
    _check_pairs(schedule, waits)
    _check_complete(schedule, microbatches)
    return waits, _feasible_order(schedule, waits)


def _check_places(schedule: Schedule, microbatches: int) -> None:
    for device, order in enumerate(schedule.orders):
        for a in order:
            if a.kind not in KINDS:
                raise ScheduleError(f"{a} on rank {device}: kinds are {', '.join(KINDS)}")
            if not 0 <= a.stage < schedule.stages:
                raise ScheduleError(
                    f"{a} on rank {device}: unknown stage {a.stage}; the stages are 0 to "
                    f"{schedule.stages - 1}"
                )
            if not 0 <= a.microbatch < microbatches:
                raise ScheduleError(
                    f"{a} on rank {device}: unknown micro-batch {a.microbatch}; they are 0 to "
                    f"{microbatches - 1}"
                )
            holder = schedule.holder(a.stage, a.microbatch)
            if holder != device:
                of = f"pipeline {a.microbatch % schedule.pipelines}'s "
                raise ScheduleError(
                    f"{a} is on rank {device}, but {of if schedule.pipelines > 1 else ''}"
                    f"stage {a.stage} is placed on rank {holder}: move it there"
                )


def _check_order(schedule: Schedule, waits: Needs) -> None:
    """Nothing twice, and nothing before what it needs on its own device."""
    for device, order in enumerate(schedule.orders):
        position: dict[Action, int] = {}
        for turn, a in enumerate(order):
            if a in position:
                raise ScheduleError(
                    f"{a} is repeated on rank {device}: turns {position[a]} and {turn}; do it once"
                )
            position[a] = turn
        for a, turn in position.items():
            for b in waits[a]:
                if schedule.holder(b.stage, b.microbatch) != device or position.get(b, turn) < turn:
                    continue
                rule = "backward before forward" if b.kind == "F" != a.kind else "too early"
                where = f"is only at turn {position[b]}" if b in position else "never comes"
                raise ScheduleError(
                    f"{rule}: {a} at turn {turn} on rank {device} needs {b}, which {where}"
                )


def _check_pairs(schedule: Schedule, waits: Needs) -> None:
    """A pair is a forward and a backward of one device, of which neither uses the other."""
    for device, order in enumerate(schedule.orders):
        for turn in np.flatnonzero(schedule.paired[slice(*schedule.turns[device : device + 2])]):
            both = order[turn : turn + 2]
            if "".join(a.kind for a in both) not in ("FB", "FI"):
                raise ScheduleError(
                    f"a device does a forward and then a backward (B or I) at once; at turn {turn} "
                    f"of rank {device} it is {' and '.join(map(str, both)) or 'nothing'}"
                )
            if both[0] in waits[both[1]]:
                raise ScheduleError(
                    f"backward before forward: {both[1]} at turn {turn + 1} on rank {device} "
                    f"needs {both[0]}, and would run at once with it"
                )


def _check_complete(schedule: Schedule, microbatches: int) -> None:
    """Every stage sees every micro-batch forward and, in training, backward once."""
    done = Counter(schedule)
    for s in range(schedule.stages):
        for i in range(microbatches):
            kinds = "".join(kind for kind in KINDS if Action(kind, s, i) in done)
            if kinds in (("FB", "FIW") if schedule.trains else ("F",)):
                continue
            lacking = {"F": "B", "FI": "W", "FW": "I"}.get(kinds, "")
            if "F" not in kinds:
                lacking = "F"
            elif not schedule.trains or "B" in kinds:
                lacking = ""
            if not lacking:
                raise ScheduleError(
                    f"stage {s} does the backward of micro-batch {i} twice: "
                    f"{' and '.join(str(Action(k, s, i)) for k in kinds if k != 'F')}; "
                    f"use B, or I and W"
                )
            raise ScheduleError(
                f"missing {Action(lacking, s, i)} on rank {schedule.holder(s, i)}: all of "
                f"{microbatches} micro-batches pass through all of {schedule.stages} stages"
            )


def _feasible_order(schedule: Schedule, waits: Needs) -> list[Action]:
    """All actions, each after what it needs and in its turn; refuses a deadlock."""
    order, stands = _gone_through(schedule, waits)
    if not stands:
        return order
    # who waits for whom: each device's next action, the result it lacks, and its holder
    device, steps = next(iter(stands)), dict[int, str]()
    while device not in steps:
        block, lacks = stands[device]
        here = " and ".join(map(str, block))
        steps[device] = f"rank {device} is at {here} and waits for {lacks}"
        device = schedule.holder(lacks.stage, lacks.microbatch)
    circle = list(steps.values())[list(steps).index(device) :]
    raise DeadlockError(f"deadlock: {'; '.join(circle)}")


def stuck(schedule: Schedule) -> dict[int, tuple[tuple[Action, ...], Action]]:
    """Device -> (the action, or the pair, at which it stands for good, a result that it lacks);
    empty if the order can run.

    >>> found = stuck(Schedule.from_text("0F0,0B0,0F1,0B1; 1F0,1F1,1B0,1B1"))
    >>> {device: f"{block[0]} waits for {lacks}" for device, (block, lacks) in found.items()}
    {0: '0B0 waits for 1B0', 1: '1F1 waits for 0F1'}
    """
    return _gone_through(schedule, needs(schedule))[1]


def _gone_through(
    schedule: Schedule, waits: Needs
) -> tuple[list[Action], dict[int, tuple[tuple[Action, ...], Action]]]:
    """(what can be done, each after what it needs and in its turn; `stuck` of the rest)."""
    done: dict[Action, None] = {}
    turn = [0] * schedule.devices
    blocked: dict[Action, list[int]] = {}  # devices, by the result that they lack
    ready = list(range(schedule.devices))[::-1]
    while ready:
        device = ready.pop()
        while block := _next(schedule, device, turn[device]):
            lacks = next((b for a in block for b in waits[a] if b not in done), None)
            if lacks is not None:
                blocked.setdefault(lacks, []).append(device)
                break
            done |= dict.fromkeys(block)
            turn[device] += len(block)
            for action in block:
                ready += blocked.pop(action, ())
    stands = {}
    for device, at in enumerate(turn):
        if block := _next(schedule, device, at):
            stands[device] = block, next(b for a in block for b in waits[a] if b not in done)
    return list(done), stands


def _next(schedule: Schedule, device: int, turn: int) -> tuple[Action, ...]:
    """The action at this turn, or both of a pair; () after the last."""
    order = schedule.orders[device]
    pair = turn < len(order) and schedule.paired[schedule.turns[device] + turn]
    return order[turn : turn + (2 if pair else 1)]


def _check_memory(
    schedule: Schedule, memory_limit: Any, activation: float, weight_part: float | None
) -> None:
    limits = memory_limit if hasattr(memory_limit, "__len__") else [memory_limit] * schedule.devices
    if len(limits) != schedule.devices:
        raise ScheduleError(
            f"got {len(limits)} memory limits for {schedule.devices} devices: give one, or one each"
        )
    found = peaks(schedule, activation, weight_part)
    for device, ((peak, turn), limit) in enumerate(zip(found, limits, strict=True)):
        if peak > limit:
            at = f"{schedule.action(schedule.turns[device] + turn)}, turn {turn}"
            counts = activation == 1 and weight_part is None
            held = f"{peak:g} activations" if counts else f"{format_bytes(peak)} of activations"
            allowed = f"{limit:g}" if counts else format_bytes(limit)
            raise ScheduleError(
                f"over memory: rank {device} keeps {held} at {at}, and may keep {allowed}; "
                f"start fewer forwards before the first backward"
            )
