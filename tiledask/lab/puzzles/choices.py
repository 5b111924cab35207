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
from tiledask.lab.puzzles.fields import LONGEST, choice, number, numbers, whole
from tiledask.lab.puzzles.kind import Inputs, Kind, Measured, Targets, frozen_key
from tiledask.lab.puzzles.lost_time import idle_causes
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["CHOICE", "chunks_of", "first_choice", "run_choice"]

Choice = Mapping[str, Any]
"""A value for every name that is open."""

TIMES = ("forward", "backward", "backward_input", "backward_weight")
_OPEN = ("schedule", "devices", "microbatches", "chunks", "latency")
_MOST_ACTIONS = 20_000


def chunks_of(setting: Inputs) -> int:
    """Stages per device: what is asked of looped schedules, two in a V, otherwise one."""
    if setting["schedule"] in V_SHAPED:
        return 2
    return int(setting.get("chunks", 1)) if is_looped(setting["schedule"]) else 1


def run_choice(setting: Inputs) -> Timeline:
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


def _measures(setting: Inputs, run: Timeline) -> dict[str, float]:
    values = {
        "idle": run.bubble_fraction,
        "makespan": run.makespan,
        "kept": max(run.peak_in_flight) / chunks_of(setting),
        **{name: setting.get(name, 1) for name in ("microbatches", "chunks", "latency")},
    }
    if "rival" in setting:
        rival = run_choice({**setting, "schedule": setting["rival"]})
        values["share"] = run.makespan / rival.makespan
    return values


def _measure(inputs: Inputs, value: Choice) -> Measured:
    setting = {**inputs, **value}
    run = run_choice(setting)
    lost = dict.fromkeys(("idle", "makespan", "share"), idle_causes(run))
    kept = ", ".join(f"{n / chunks_of(setting):g}" for n in run.peak_in_flight)
    where = {**lost, "kept": f"by device {kept}"}
    return {name: (got, where.get(name, "")) for name, got in _measures(setting, run).items()}


def _options(inputs: Inputs) -> dict[str, list[Any]]:
    """The values that each open name may have."""
    return {
        name: list(range(values["from"], values["to"] + 1, values.get("step", 1)))
        if isinstance(values, dict)
        else values
        for name, values in inputs["open"].items()
    }


@lru_cache(maxsize=64)
def _tried(key: str) -> list[tuple[Choice, dict[str, float]]]:
    """Every choice that can run, with all its measures."""
    inputs, found = json.loads(key), list[tuple[Choice, dict[str, float]]]()
    options = _options(inputs)
    for values in product(*options.values()):
        value = dict(zip(options, values, strict=True))
        with suppress(ScheduleError):  # some schedules refuse some numbers
            setting = {**inputs, **value}
            found.append((value, _measures(setting, run_choice(setting))))
    return found


def _meeting(inputs: Inputs, targets: Targets) -> Iterator[tuple[Choice, dict[str, float]]]:
    for value, reached in _tried(frozen_key(inputs)):
        if all(within(reached[name], wanted) for name, wanted in targets.items()):
            yield value, reached


def _best(inputs: Inputs, targets: Targets) -> dict[str, Best]:
    best: dict[str, Best] = {}
    for name in targets:
        others = {other: wanted for other, wanted in targets.items() if other != name}
        reached = [reached[name] for _, reached in _meeting(inputs, others)]
        best |= {name: Best(min(reached))} if reached else {}
    return best


def _solve(inputs: Inputs, targets: Targets) -> str | None:
    value = next((value for value, _ in _meeting(inputs, targets)), None)
    return None if value is None else ", ".join(map(str, value.values()))


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
    words = dict(zip(options, given, strict=True))
    value = {name: _one_of(name, options[name], word) for name, word in words.items()}
    run_choice({**inputs, **value})  # some schedules refuse some numbers
    return value


def _one_of(name: str, values: list[Any], word: Any) -> Any:
    known = {str(value).removesuffix(".0"): value for value in values}
    written = str(word).strip().lower().removesuffix(".0")
    if written in known:
        return known[written]
    first, *others = known
    many = len(values) > 16
    listed = f"{first} to {others[-1]}" if many else f"one of {', '.join(known)}"
    raise ConfigError(f"{name} is {listed}; got {word!r}")


def first_choice(inputs: Inputs) -> str:
    """The first value of every open name, as people write it."""
    return ", ".join(str(values[0]) for values in _options(inputs).values())


def _validate(inputs: Inputs) -> None:
    options = _options(inputs)
    lacking = {"schedule", "microbatches", "devices"} - set(options) - set(inputs)
    odd = lacking | (set(options) & set(inputs)) | (set(options) - set(_OPEN))
    if odd:
        raise ScheduleError(
            f"schedule, devices and microbatches are each either given or open, and chunks and "
            f"latency may be; look at {', '.join(sorted(odd))}"
        )
    if not any(name in inputs for name in TIMES):
        raise ScheduleError("say how long things take: forward and backward, in seconds")
    if prod(map(len, options.values())) > LONGEST:
        raise ScheduleError(f"there are more than {LONGEST} choices to try; leave fewer open")
    if not _tried(frozen_key(inputs)):
        raise ScheduleError("none of the choices can run: some schedules refuse some numbers")


def _open(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ValueError('must be an object such as {"microbatches": {"from": 1, "to": 64}}')
    return {name: _values(name, values) for name, values in value.items()}


def _values(name: str, values: Any) -> Any:
    count = whole(1, LONGEST)
    one = {"schedule": choice(schedules), "latency": number()}.get(name, count)
    try:
        if not isinstance(values, dict):
            return numbers(one)(values)
        first, last, _ = (count(values.get(key, 1)) for key in ("from", "to", "step"))
    except ValueError as error:
        raise ValueError(f"has a {name} that {error}") from None
    if first > last or not {"from", "to"} <= set(values) <= {"from", "to", "step"}:
        raise ValueError(f"has a range of {name} from {first} to {last}: give from, to, step")
    return values


CHOICE = Kind(
    needed={"open": _open},
    optional={
        "schedule": choice(schedules),
        "rival": choice(schedules),
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
    validate=_validate,
    read=_read,
    measure=_measure,
    best=_best,
    solve=_solve,
    run=lambda inputs, answer: run_choice({**inputs, **_read(inputs, answer)}),
)
