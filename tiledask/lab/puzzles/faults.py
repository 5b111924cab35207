"""Every fault of an order of actions, for the drawing of it; `validate` stops at the first."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tiledask.plan.pipelines.needs import needs, stuck
from tiledask.plan.pipelines.schedule import Action, Schedule

__all__ = ["RULES", "Fault", "faults"]

RULES = (
    "unknown micro-batch",
    "wrong device",
    "missing",
    "repeated",
    "backward before forward",
    "too early",
    "deadlock",
    "over memory",
)


class Fault(NamedTuple):
    """A broken rule, and the action that breaks it."""

    rule: str
    """One of RULES."""
    action: Action
    device: int

    def __str__(self) -> str:
        return f"{self.rule}: {self.action}"


def faults(
    schedule: Schedule,
    stages: int,
    microbatches: int,
    memory_limit: int | Sequence[int] | None = None,
) -> tuple[Fault, ...]:
    """All Faults of ``schedule``, in the order of RULES; empty if it can run.

    A deadlock is looked for only where nothing else is wrong with the order; every device that is
    stuck counts. "backward before forward": a backward comes before the forward of its own stage
    and micro-batch, or that forward never comes; "too early": another result of the same device.

    >>> broken = Schedule.from_text("0B0,0F0; 1F0,1B0")
    >>> [str(fault) for fault in faults(broken, stages=2, microbatches=1)]
    ['backward before forward: 0B0']
    """
    rank = {rule: n for n, rule in enumerate(RULES)}
    found = sorted(_in_the_order(schedule, stages, microbatches), key=lambda f: rank[f.rule])
    if not found:
        stands = stuck(schedule).items()
        found = [Fault("deadlock", block[0], device) for device, (block, _) in stands]
    found += _over_memory(schedule, memory_limit)
    return tuple(found)


def _in_the_order(schedule: Schedule, stages: int, microbatches: int) -> Iterator[Fault]:
    waits = needs(schedule)
    for device, order in enumerate(schedule.orders):
        turn: dict[Action, int] = {}
        for t, a in enumerate(order):
            if a.microbatch >= microbatches:
                yield Fault("unknown micro-batch", a, device)
            if schedule.place[a.stage] != device:
                yield Fault("wrong device", a, device)
            if a in turn:
                yield Fault("repeated", a, device)
            turn.setdefault(a, t)
        for a, t in turn.items():
            for b in waits[a]:
                here = schedule.place[b.stage] == schedule.place[a.stage] == device
                if here and turn.get(b, t) >= t:
                    forward = b.kind == "F" != a.kind
                    yield Fault("backward before forward" if forward else "too early", a, device)
    there = set(schedule)
    for s, device in enumerate(schedule.place[:stages]):
        for i in range(microbatches):
            split = Action("I", s, i) in there or Action("W", s, i) in there
            for kind in "FIW" if split else "FB":
                if Action(kind, s, i) not in there:
                    yield Fault("missing", Action(kind, s, i), device)


def _over_memory(schedule: Schedule, limit: int | Sequence[int] | None) -> Iterator[Fault]:
    """The first forward with which a device keeps more than it may."""
    if limit is None:
        return
    limits = limit if hasattr(limit, "__len__") else [limit] * schedule.devices
    for device, (order, most) in enumerate(zip(schedule.orders, limits, strict=True)):
        kept = 0
        for a in order:
            kept += {"F": 1, "B": -1, "I": 0, "W": -1}[a.kind]
            if kept > most:
                yield Fault("over memory", a, device)
                break
