"""Puzzles whose answer picks a schedule by name, or its numbers: every choice there is is tried."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from tiledask.errors import ConfigError, ScheduleError
from tiledask.lab.judging.result import Best, within
from tiledask.lab.puzzles.fields import LONGEST, Reader, choice, number, whole
from tiledask.lab.puzzles.kind import Inputs, Kind, Measured, Targets, frozen_key
from tiledask.lab.puzzles.lost_time import idle_parts
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["CHOICE", "Choice", "chunks_of", "first_choice", "run_choice"]

Choice = Mapping[str, Any]
"""A value for every name that is open."""

TIMES = ("forward", "backward", "backward_input", "backward_weight")
_MOST_ACTIONS = 20_000


def chunks_of(setting: Mapping[str, Any]) -> int:
    """Stages per device: what is asked of looped schedules, two in a V, otherwise one."""
    if setting["schedule"] in V_SHAPED:
        return 2
    return setting.get("chunks", 1) if is_looped(setting["schedule"]) else 1


def run_setting(setting: Mapping[str, Any]) -> Timeline:
    """The simulated run; ``forward`` and ``backward`` are the seconds of all layers of a device.

    A device with v chunks has v stages, which take 1 / v of that each.
    """
    chunks, devices = chunks_of(setting), setting["devices"]
    options = {"devices": devices} if is_looped(setting["schedule"]) else {}
    stages, microbatches = devices * chunks, setting["microbatches"]
    if stages * microbatches * 3 > _MOST_ACTIONS:
        raise ScheduleError(
            f"{stages} stages x {microbatches} micro-batches are more than a puzzle simulates "
            f"({_MOST_ACTIONS} actions): choose fewer"
        )
    order = schedule(setting["schedule"], stages, microbatches, **options)
    times = {name: setting[name] / chunks for name in TIMES if name in setting}
    return simulate(order, latency=setting.get("latency", 0.0), **times)


def run_choice(inputs: Inputs, value: Choice) -> Timeline:
    """The simulated run of what is fixed and what was chosen."""
    return run_setting({**inputs, **value})


def _measures(inputs: Inputs, value: Choice) -> dict[str, float]:
    setting = {**inputs, **value}
    t = run_setting(setting)
    values = {
        "idle": t.bubble_fraction,
        "makespan": t.makespan,
        "kept": max(t.peak_in_flight) / chunks_of(setting),
    }
    values |= {name: setting.get(name, 1) for name in ("microbatches", "chunks", "latency")}
    if "rival" in inputs:
        rival = run_setting({**setting, "schedule": inputs["rival"]})
        values["share"] = t.makespan / rival.makespan
    return values


def _measure(inputs: Inputs, value: Choice) -> Measured:
    run = run_choice(inputs, value)
    chunks = chunks_of({**inputs, **value})
    kept = ", ".join(f"{n / chunks:g}" for n in run.peak_in_flight)
    lost = idle_parts(run)
    where = {"idle": lost, "makespan": lost, "share": lost, "kept": f"by device {kept}"}
    return Measured(_measures(inputs, value), where=where)


def _options(inputs: Inputs) -> dict[str, list]:
    """The values that each open name may have."""
    options = {}
    for name, values in inputs["open"].items():
        if isinstance(values, dict):
            values = list(range(values["from"], values["to"] + 1, values.get("step", 1)))
        options[name] = values
    return options


def _each(inputs: Inputs) -> Iterator[tuple[Choice, dict[str, float]]]:
    """Every choice that can run, with all its measures."""
    options = _options(inputs)
    for values in product(*options.values()):
        value = dict(zip(options, values, strict=True))
        with suppress(ScheduleError):  # some schedules refuse some numbers
            yield value, _measures(inputs, value)


@lru_cache(maxsize=64)
def _tried(key: str) -> list[tuple[Choice, dict[str, float]]]:
    return list(_each(json.loads(key)))


def _meeting(inputs: Inputs, targets: Targets) -> Iterator[tuple[Choice, dict[str, float]]]:
    for value, reached in _tried(frozen_key(inputs)):
        if all(within(reached[name], wanted) for name, wanted in targets.items()):
            yield value, reached


def _best(inputs: Inputs, targets: Targets) -> dict[str, Best]:
    best = {}
    for name in targets:
        others = {other: wanted for other, wanted in targets.items() if other != name}
        least = min((reached[name] for _, reached in _meeting(inputs, others)), default=None)
        if least is not None:
            best[name] = Best(least)
    return best


def _solve(inputs: Inputs, targets: Targets) -> Any:
    value = next((value for value, _ in _meeting(inputs, targets)), None)
    return None if value is None else ", ".join(f"{v}" for v in value.values())


def _read(inputs: Inputs, answer: Any) -> Choice:
    options = _options(inputs)
    if isinstance(answer, Mapping):
        odd = sorted(map(str, set(answer) ^ set(options)))
        if odd:
            raise ConfigError(f"choose exactly {' and '.join(options)}; look at {', '.join(odd)}")
        given = [answer[name] for name in options]
    elif isinstance(answer, str):
        given = [word.strip() for word in answer.split(",")]
    else:
        given = list(answer) if isinstance(answer, Iterable) else [answer]
    if len(given) != len(options):
        raise ConfigError(
            f"choose {' and '.join(options)}, {len(options)} in all and in this order; "
            f"got {answer!r}, which is {len(given)}"
        )
    value = {
        name: _one_of(name, values, word)
        for (name, values), word in zip(options.items(), given, strict=True)
    }
    run_choice(inputs, value)  # some schedules refuse some numbers
    return value


def _one_of(name: str, values: list, word: Any) -> Any:
    for value in values:
        if not isinstance(word, bool) and (word == value or _means(word, value)):
            return value
    if isinstance(values[0], str):
        raise ConfigError(f"{name} is one of {', '.join(values)}; got {word!r}")
    several = len(values) > 8 and values == list(range(values[0], values[-1] + 1))
    allowed = (
        f"a whole number from {values[0]} to {values[-1]}"
        if several
        else (f"one of {', '.join(f'{v:g}' for v in values)}")
    )
    raise ConfigError(f"{name} is {allowed}; got {word!r}")


def _means(word: Any, value: Any) -> bool:
    if not isinstance(word, str):
        return False
    if isinstance(value, str):
        return word.lower() == value
    try:
        return float(word) == value
    except ValueError:
        return False


def first_choice(inputs: Inputs) -> str:
    """The first value of every open name, as people write it."""
    return ", ".join(str(values[0]) for values in _options(inputs).values())


def _ready(inputs: Inputs) -> None:
    options = _options(inputs)
    unknown = {"schedule", "microbatches", "chunks", "latency", "devices"}
    lacking = {"schedule", "microbatches", "devices"} - set(options) - set(inputs)
    twice = set(options) & set(inputs)
    if lacking or twice or not set(options) <= unknown:
        odd = sorted(lacking | twice | (set(options) - unknown))
        raise ScheduleError(
            f"schedule, devices and microbatches are each either given or open, and chunks and "
            f"latency may be; look at {', '.join(odd)}"
        )
    if not any(name in inputs for name in TIMES):
        raise ScheduleError("say how long things take: forward and backward, in seconds")
    if prod(map(len, options.values())) > LONGEST:
        raise ScheduleError(f"there are more than {LONGEST} choices to try; leave fewer open")
    if next(_each(inputs), None) is None:
        raise ScheduleError("none of the choices can run: some schedules refuse some numbers")


def _open(value: Any) -> dict:
    if not isinstance(value, dict) or not value:
        raise ValueError('must be an object such as {"microbatches": {"from": 1, "to": 64}}')
    return {name: _values(name, values) for name, values in value.items()}


def _values(name: str, values: Any) -> Any:
    if isinstance(values, dict):
        if not {"from", "to"} <= set(values) <= {"from", "to", "step"}:
            raise ValueError(f"has a range of {name} that is not from, to and perhaps step")
        for bound in values.values():
            whole(1, LONGEST)(bound)
        if values["from"] > values["to"]:
            raise ValueError(f"has a range of {name} from {values['from']} to {values['to']}")
        return values
    one: Reader = {"schedule": choice(tuple(schedules)), "latency": number()}.get(
        name, whole(1, LONGEST)
    )
    if not isinstance(values, list) or not values:
        raise ValueError(f"has no list of values for {name}")
    try:
        return [one(item) for item in values]
    except ValueError as error:
        raise ValueError(f"has a {name} that {error}") from None


CHOICE = Kind(
    needed={"open": _open},
    optional={
        "schedule": choice(tuple(schedules)),
        "rival": choice(tuple(schedules)),
        "devices": whole(1, 128),
        "microbatches": whole(1, LONGEST),
        "chunks": whole(1, 16),
        "latency": number(),
        **{name: number() for name in TIMES},
    },
    measures={
        "idle": "idle share of device-time",
        "makespan": "seconds until the end",
        "kept": "activations kept, of all layers of a device",
        "microbatches": "micro-batches",
        "chunks": "chunks per device",
        "latency": "seconds of a transfer",
        "share": "time as a share of the rival's",
    },
    how="a value for each open name, in order: a number, or for example '1f1b, 16'",
    read=_read,
    measure=_measure,
    best=_best,
    solve=_solve,
    ready=_ready,
)
