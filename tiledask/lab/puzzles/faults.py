"""Every fault of an order of actions, and puzzles that ask which rule is broken, and where.

`validate` stops at the first fault; here all of them are listed, so that whoever finds another
one is right as well.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tiledask.errors import ConfigError, ScheduleError
from tiledask.lab.judging.result import WRONG, Best
from tiledask.lab.puzzles.fields import counts, either, text, whole
from tiledask.lab.puzzles.kind import Inputs, Kind, Measured, Targets
from tiledask.lab.puzzles.orders import order_of
from tiledask.plan.pipelines.needs import needs, stuck, validate
from tiledask.plan.pipelines.schedule import Action, Schedule

__all__ = ["FAULT", "RULES", "Fault", "faults"]

RULES = {
    "unknown micro-batch": "it has a number that no micro-batch has",
    "wrong device": "its stage is on another device",
    "missing": "it is on no line",
    "repeated": "it comes once more",
    "backward before forward": "a backward stands before the forward of its own stage and "
    "micro-batch",
    "too early": "it stands before another action of its device whose result it uses",
    "deadlock": "its device waits there for good, each line being fine by itself",
    "over memory": "with it the device keeps more activations than it has room for",
    "no fault": "the order can run",
}
"""Rule -> what is so of the action that breaks it."""


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


def _shown(inputs: Inputs) -> Schedule:
    return order_of(inputs["shown"])


def _all(inputs: Inputs) -> tuple[Fault, ...]:
    return faults(
        _shown(inputs), inputs["stages"], inputs["microbatches"], inputs.get("memory_limit")
    )


def _read(inputs: Inputs, answer: Any) -> tuple[str, Action | None]:
    if not isinstance(answer, str):
        raise ConfigError(f"name the rule and the action, as in 'missing: 0F3'; got {answer!r}")
    text = " ".join(answer.lower().split()).replace("microbatch", "micro-batch")
    rule = next((rule for rule in RULES if re.match(rf"{rule}\b", text)), None)
    if rule is None:
        raise ConfigError(
            f"{answer.partition(':')[0].strip()!r} is no rule here; the rules are "
            f"{', '.join(RULES)}, each with its action, as in 'missing: 0F3'"
        )
    if rule == "no fault":
        return rule, None
    where = text.removeprefix(rule).strip(" :,-.")
    where = re.sub(r"^(at|action) ", "", where)
    if not where:
        raise ConfigError(f"say at which action: {rule}: 0F3")
    match = re.fullmatch(r"(\d{1,4})([fbiw])(\d{1,4})", where)
    if not match:
        raise ConfigError(
            f"{where!r} is no action; write stage, kind and micro-batch, as in 'missing: 0F3'"
        )
    return rule, Action(match[2].upper(), int(match[1]), int(match[3]))


def _measure(inputs: Inputs, named: tuple[str, Action | None]) -> Measured:
    rule, action = named
    true = _all(inputs) or (Fault("no fault", None, 0),)
    if any((f.rule, f.action) == (rule, action) for f in true):
        return Measured({"wrong": 0})
    if any(f.rule == rule for f in true):
        return Measured({"wrong": 1}, (f"that rule is broken, but not at {action}",))
    if any(f.action == action for f in true):
        return Measured({"wrong": 1}, (f"{action} breaks a rule, but not this one",))
    if rule == "no fault":
        return Measured({"wrong": 1}, ("there is a fault",))
    return Measured({"wrong": 1}, (f"{rule} is not what goes wrong, and not at {action}",))


def _solve(inputs: Inputs, targets: Targets) -> str:
    found = _all(inputs)
    return str(found[0]) if found else "no fault"


def _ready(inputs: Inputs) -> None:
    shown = _shown(inputs)
    if shown.stages != inputs["stages"]:
        raise ScheduleError(
            f"the schedule shown has {shown.stages} stages and the puzzle says {inputs['stages']}"
        )
    try:  # the list of faults and the validator have to agree
        validate(shown, inputs["stages"], inputs["microbatches"], inputs.get("memory_limit"))
        fine = True
    except ScheduleError:
        fine = False
    if fine != (not _all(inputs)):
        raise ScheduleError("the schedule shown has a fault that this kind of puzzle cannot name")


FAULT = Kind(
    needed={"shown": text, "stages": whole(1, 64), "microbatches": whole(1, 256)},
    optional={"memory_limit": either(whole(1, 10_000), counts)},
    measures={"wrong": WRONG},
    how="the rule and the action, for example 'missing: 0F3'; the rules, of the action named: "
    + "; ".join(f"{rule} ({words})" for rule, words in RULES.items()),
    read=_read,
    measure=_measure,
    best=lambda inputs, targets: {"wrong": Best(0)},
    solve=_solve,
    guesses=lambda inputs: ["no fault", "missing: 0F0"],
    ready=_ready,
)
