"""Puzzles whose answer is the order of every device's actions, against the proven best order."""

import json
import re
from functools import lru_cache
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError, ScheduleError, short
from tiledask.lab.tasks import kind
from tiledask.lab.tasks.result import within
from tiledask.plan.pipelines.optimum import Optimum, optimal_schedule
from tiledask.plan.pipelines.validate import most_kept, validate

__all__ = ["best", "check_inputs", "in_full", "measure", "order_of", "read", "run", "solve"]

_TIMES = ("forward", "backward", "backward_input", "backward_weight", "latency")
_LONGEST = 100_000
_MOST_PAIRS = 48
"""Stages x micro-batches up to which the best order is proven in about a second."""


def _run(inputs: kind.Inputs, order: td.Schedule) -> td.Timeline:
    """The simulated run of ``order`` with the puzzle's times."""
    return td.simulate(order, **{name: inputs[name] for name in _TIMES if name in inputs})


def _devices(inputs: kind.Inputs) -> int:
    """How many devices there are."""
    place = inputs.get("place")
    return 1 + max(place) if place else int(inputs["stages"])


def _limits(inputs: kind.Inputs) -> list[Any] | None:
    """The most activations that each device may keep; None if that is no rule here."""
    limit = inputs.get("memory_limit")
    return [limit] * _devices(inputs) if isinstance(limit, int) else limit


def _place(inputs: kind.Inputs) -> tuple[int, ...]:
    """The device of each stage, from 0."""
    return tuple(inputs.get("place") or range(inputs["stages"]))


# -- what people write -----------------------------------------------------------------------------


def order_of(answer: Any) -> td.Schedule:
    """The answer as a schedule, right or wrong; ConfigError for what is none at all, ScheduleError
    for one that no puzzle has room for."""
    if isinstance(answer, str):
        if len(answer) > _LONGEST or re.search(r"\d{5,}", answer):
            rule = f"an order has {_LONGEST} letters at most, and its numbers 4 digits"
            raise ConfigError(f"{rule}; got {short(answer)}")
        try:
            answer = td.Schedule.from_text(in_full(answer))
        except ScheduleError as error:
            raise ConfigError(f"{error}") from None
    if not isinstance(answer, td.Schedule):
        raise ConfigError(f"write the order as text, a line per device; got {answer!r}")
    if answer.replicas > 1:
        raise ScheduleError(f"every stage is on one device here; got {answer.replicas} replicas")
    if answer.paired.any():
        raise ScheduleError("a device does one action at a time here; write F and B one by one")
    if not answer.trains:
        raise ScheduleError("training needs backwards too; the order has only forwards")
    return answer


def in_full(text: str) -> str:
    """Every action with its stage; one without is of the stage of its line, as "F0" in line 2 is
    2F0; "device 2:" or "rank 2:" before a line says which it is. All count from 0.

    >>> in_full("f0,b0; device 1: F0 B0"), in_full("1: F0 B0; 0: F0 B0")
    ('0F0,0B0\\n1F0 1B0', '0F0 0B0\\n1F0 1B0')
    """
    if "OVERLAP" in text or "@" in text:
        return text
    lines, found = [line for line in re.split(r"[\n;]", text) if line.strip()], dict[int, str]()
    for at, line in enumerate(lines):
        label, bare = re.findall(r"(?i)^\s*(?:(?:(?:device|rank)\s*)?(\d+)\s*:)?\s*(.*)", line)[0]
        n = int(label or at)
        bare = re.sub(r"(?i)(?<!\w)\d*[fbiw]\d+(?!\w)", lambda action: action[0].upper(), bare)
        found[n] = re.sub(r"(?<!\w)([FBIW]\d+)(?!\w)", rf"{n}\1", bare)
    if sorted(found) != (numbers := [*range(len(lines))]):
        given = f"{len(lines)} lines are those of devices {numbers[0]} to {numbers[-1]}"
        raise ConfigError(f"{given}; got {', '.join(map(str, found))}")
    return "\n".join(found[n] for n in numbers)


def read(inputs: kind.Inputs, answer: Any) -> td.Schedule:
    """The answer as a schedule that can run and does all of the puzzle's work, or ScheduleError."""
    devices, place = _devices(inputs), inputs.get("place")
    several = place is not None or inputs["stages"] != devices
    if several and isinstance(answer, str) and re.search(r"(?<!\w)[FBIWfbiw]\d", answer):
        raise ScheduleError("a device holds several stages here; say which, as in 0F3 for stage 0")
    order = validate(order_of(answer), inputs["stages"], inputs["microbatches"])
    if order.devices != devices:
        raise ScheduleError(f"{devices} devices need {devices} lines; got {order.devices}")
    if order.place != _place(inputs):
        here, there = (", ".join(map(str, ranks)) for ranks in (_place(inputs), order.place))
        raise ScheduleError(f"the stages are on ranks {here} here; the answer has them on {there}")
    kinds = {action.kind for action in order}
    if kinds & {"I", "W"} and not inputs.get("split"):
        raise ScheduleError("a backward is one piece here: write B, not I and W")
    return validate(order, memory_limit=_limits(inputs))


def measure(inputs: kind.Inputs, order: td.Schedule) -> kind.Measured:
    run, (most, turns) = _run(inputs, order), most_kept(order)
    kept, turn = max(most), turns[device := most.index(max(most))]
    where = f"{kept:g} kept from {order.orders[device][turn]} on"
    return {"makespan": (run.makespan, kind.idle_causes(run)), "kept": (int(kept), where)}


# -- the best order --------------------------------------------------------------------------------


def _shortest(inputs: kind.Inputs, targets: kind.Targets) -> Optimum | None:
    """The best order that keeps as few activations as ``targets`` say; None if there is none."""
    limits = _limits(inputs) or [10**6] * _devices(inputs)
    return _solved(json.dumps(dict(inputs)), *(int(min(n, targets.get("kept", n))) for n in limits))


@lru_cache(maxsize=256)
def _solved(key: str, *limits: int) -> Optimum | None:
    inputs = json.loads(key)
    stages, microbatches = inputs["stages"], inputs["microbatches"]
    if min(limits) < 1:
        return None
    try:
        return optimal_schedule(
            stages,
            microbatches,
            **{name: inputs[name] for name in _TIMES if name in inputs},
            split=bool(inputs.get("split")),
            place=_place(inputs),
            memory_limit=[min(limit, stages * microbatches) for limit in limits],
            timeout=30.0,  # they take well below a second
        )
    except ScheduleError:  # no order keeps within these limits
        return None


def best(inputs: kind.Inputs, targets: kind.Targets) -> dict[str, float]:
    shortest, found = _shortest(inputs, targets), dict[str, float]()
    if shortest is not None and "makespan" in targets:
        found["makespan"] = shortest.least
    # the fewest activations with which some order meets the target for the makespan
    for kept in range(int(targets.get("kept", 0)), 0, -1):
        if solve(inputs, {**targets, "kept": kept}) is None:
            break
        found["kept"] = kept
    return found


def solve(inputs: kind.Inputs, targets: kind.Targets) -> str | None:
    found = _shortest(inputs, targets)
    if found is None or not within(found.makespan, targets.get("makespan", float("inf"))):
        return None
    return found.schedule.to_text()


def check_inputs(inputs: kind.Inputs) -> None:
    stages, place, limits = inputs["stages"], inputs.get("place"), _limits(inputs)
    pairs = stages * inputs["microbatches"]
    if pairs > _MOST_PAIRS:
        rule = f"the best order is proven for up to {_MOST_PAIRS}"
        raise ScheduleError(f"{stages} stages x {inputs['microbatches']} are {pairs}; {rule}")
    if place and (len(place), set(place)) != (stages, {*range(max(place) + 1)}):
        raise ScheduleError(f"place has the rank, from 0, of each of {stages} stages; got {place}")
    if limits is not None and len(limits) != _devices(inputs):
        raise ScheduleError(f"{len(limits)} memory limits for {_devices(inputs)} devices")
    _run(inputs, td.schedule("gpipe", stages, 1))  # refuses times of the wrong length


def run(inputs: kind.Inputs, answer: Any) -> td.Timeline:
    return _run(inputs, order_of(answer))
