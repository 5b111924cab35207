"""Puzzles whose answer picks a schedule by name, or its numbers: every choice there is is tried."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from tiledask.errors import ConfigError, ScheduleError
from tiledask.lab.course.question import LONGEST
from tiledask.lab.tasks import kind
from tiledask.lab.tasks.result import within
from tiledask.plan.pipelines.schedules import LOOPED, V_SHAPED, schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["best", "check_inputs", "measure", "read", "runs", "solve"]

_MOST_ACTIONS = 20_000


def _chunks(setting: kind.Inputs) -> int:
    """Stages per device: what is asked of looped schedules, two in a V, otherwise one."""
    if setting["schedule"] in V_SHAPED:
        return 2
    return int(setting.get("chunks", 1)) if setting["schedule"] in LOOPED else 1


def _run(setting: kind.Inputs) -> Timeline:
    """The simulated run; ``forward`` and ``backward`` are the seconds of all layers of a device.

    A device with v chunks has v stages, which take 1 / v of that each.
    """
    chunks, devices = _chunks(setting), setting["devices"]
    options = {"devices": devices} if setting["schedule"] in LOOPED else {}
    stages, microbatches = devices * chunks, setting["microbatches"]
    if stages * microbatches * 3 > _MOST_ACTIONS:
        rule = f"more than the {_MOST_ACTIONS} actions that a puzzle simulates: choose fewer"
        raise ScheduleError(f"{stages} stages x {microbatches} micro-batches are {rule}")
    order = schedule(setting["schedule"], stages, microbatches, **options)
    times = {name: setting[name] / chunks for name in kind.TIMES if name in setting}
    return simulate(order, latency=setting.get("latency", 0.0), **times)


def measure(inputs: kind.Inputs, value: kind.Inputs) -> kind.Measured:
    setting = {**inputs, **value}
    run, chunks = _run(setting), _chunks(setting)
    each = [n / chunks for n in run.peak_in_flight]
    idle, kept = kind.idle_causes(run), f"by device {', '.join(f'{n:g}' for n in each)}"
    found = {"idle": (run.bubble_fraction, idle), "makespan": (run.makespan, idle)}
    found |= {"kept": (max(each), kept)}
    found |= {name: (setting.get(name, 1), "") for name in ("microbatches", "chunks")}
    if "rival" in setting:
        rival = _run({**setting, "schedule": setting["rival"]})
        found["share"] = (run.makespan / rival.makespan, idle)
    return found


def _options(inputs: kind.Inputs) -> dict[str, list[Any]]:
    """The values that each open name may have."""
    return {
        name: list(range(v["from"], v["to"] + 1)) if isinstance(v, dict) else v
        for name, v in inputs["open"].items()
    }


def _choices(inputs: kind.Inputs) -> Iterator[tuple[kind.Inputs, dict[str, float]]]:
    """Every choice that can run, with all its measures."""
    options = _options(inputs)
    for values in product(*options.values()):
        value = dict(zip(options, values, strict=True))
        with suppress(ScheduleError):  # some schedules refuse some numbers
            yield value, {name: got for name, (got, _) in measure(inputs, value).items()}


@lru_cache(maxsize=64)
def _tried(key: str) -> list[tuple[kind.Inputs, dict[str, float]]]:
    return [*_choices(json.loads(key))]


def _meeting(
    inputs: kind.Inputs, targets: kind.Targets
) -> Iterator[tuple[kind.Inputs, dict[str, float]]]:
    for value, reached in _tried(kind.frozen_key(inputs)):
        if all(within(reached[name], wanted) for name, wanted in targets.items()):
            yield value, reached


def best(inputs: kind.Inputs, targets: kind.Targets) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in targets:
        others = {other: wanted for other, wanted in targets.items() if other != name}
        reached = [reached[name] for _, reached in _meeting(inputs, others)]
        found |= {name: min(reached)} if reached else {}
    return found


def solve(inputs: kind.Inputs, targets: kind.Targets) -> str | None:
    value = next((value for value, _ in _meeting(inputs, targets)), None)
    return None if value is None else ", ".join(map(str, value.values()))


def read(inputs: kind.Inputs, answer: Any) -> kind.Inputs:
    options = _options(inputs)
    given = [word.strip() for word in answer.split(",")] if isinstance(answer, str) else answer
    given = list(given) if isinstance(given, Iterable) else [given]
    if len(given) != len(options):
        rule = f"choose {' and '.join(options)}, {len(options)} in all and in this order"
        raise ConfigError(f"{rule}; got {answer!r}, which is {len(given)}")
    words = zip(options.items(), given, strict=True)
    value = {name: _one_of(name, values, word) for (name, values), word in words}
    _run({**inputs, **value})  # some schedules refuse some numbers
    return value


def _one_of(name: str, values: list[Any], word: Any) -> Any:
    known = {str(value): value for value in values}
    written = str(word).strip().lower().removesuffix(".0")
    if written in known:
        return known[written]
    first, *others = known
    listed = f"{first} to {others[-1]}" if len(values) > 16 else f"one of {', '.join(known)}"
    raise ConfigError(f"{name} is {listed}; got {word!r}")


def runs(inputs: kind.Inputs, answer: Any) -> dict[str, Timeline]:
    """The run of what was chosen, and its rival's."""
    setting = {**inputs, **read(inputs, answer)}
    both = [setting, *([setting | {"schedule": inputs["rival"]}] if "rival" in inputs else [])]
    return {
        f"{each['schedule']}, {each['microbatches']} micro-batches": _run(each) for each in both
    }


def check_inputs(inputs: kind.Inputs) -> None:
    options = _options(inputs)
    lacking = {"schedule", "microbatches", "devices"} - set(options) - set(inputs)
    if odd := lacking | (set(options) & set(inputs)):
        rule = "schedule, devices and microbatches are each either given or open"
        raise ScheduleError(f"{rule}; look at {', '.join(sorted(odd))}")
    if prod(map(len, options.values())) > LONGEST:
        raise ScheduleError(f"there are more than {LONGEST} choices to try; leave fewer open")
    if next(_choices(inputs), None) is None:
        raise ScheduleError("none of the choices can run: some schedules refuse some numbers")
