"""Puzzles that ask for numbers: what is the utilisation, who does what when? The simulator knows.

The answer lists what was asked for, in order: "0.9, 15 %, 2/7, idle, F0".
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.judging.reading import COUNT, RATIO, SECONDS, SHARE, parts, read_number
from tiledask.lab.judging.result import NEAR, WRONG, Best
from tiledask.lab.puzzles.choices import TIMES, run_setting
from tiledask.lab.puzzles.fields import choice, number, whole
from tiledask.lab.puzzles.kind import Inputs, Kind, Measured, Targets
from tiledask.plan.pipelines.schedules import schedules
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["QUESTION", "right_answers", "setting_of"]

_CLOSE = 2e-3
"""Relative: 0.333 is good enough for a third."""
_DIGIT = 5e-4
"""Absolute, of a share: 17.1 % is good enough for 17.05 %."""

_NUMBERS = {
    "utilisation": lambda t: t.utilisation,
    "idle share": lambda t: t.bubble_fraction,
    "idle over busy": lambda t: t.bubble_overhead,
    "seconds": lambda t: t.makespan,
    "activations": lambda t: float(max(t.peak_in_flight)),
}
"""What can be asked of a run -> how the simulated run tells."""
_UNITS = {
    "utilisation": SHARE,
    "idle share": SHARE,
    "idle over busy": RATIO,
    "seconds": SECONDS,
    "activations": COUNT,
}

_SETTING = {
    "schedule": choice(tuple(schedules)),
    "devices": whole(1, 64),
    "microbatches": whole(1, 1000),
    "chunks": whole(1, 16),
    "latency": number(),
    **{name: number() for name in TIMES},
}
_ASKED = {
    "what": choice((*_NUMBERS, "state")),
    "device": whole(0, 63),
    "time": number(),
}


def setting_of(ask: Mapping[str, Any]) -> dict[str, Any]:
    """The run that an ask is about."""
    return {name: value for name, value in ask.items() if name in _SETTING}


def right_answers(inputs: Inputs) -> list[float | str]:
    """What the simulated runs say, in the order of the asks."""
    right: list[float | str] = []
    for ask in inputs["asks"]:
        t: Timeline = run_setting(setting_of(ask))
        asked_state = ask["what"] == "state"
        right.append(
            t.state(ask["device"], ask["time"]) if asked_state else _NUMBERS[ask["what"]](t)
        )
    return right


def _read(inputs: Inputs, answer: Any) -> list[float | str]:
    given, asks = parts(answer), inputs["asks"]
    if len(given) != len(asks):
        raise ConfigError(
            f"{len(asks)} answer{'s' * (len(asks) > 1)} needed, between commas; got {len(given)}"
        )
    return [_word(ask, i, word) for i, (ask, word) in enumerate(zip(asks, given, strict=True), 1)]


def _word(ask: Mapping[str, Any], i: int, word: Any) -> float | str:
    if ask["what"] != "state":
        return read_number(word, _UNITS[ask["what"]], f"answer {i}")
    match = re.fullmatch(r"(idle|[FBIW]\d+)", str(word).strip(), re.IGNORECASE)
    if not match:
        raise ConfigError(
            f"answer {i} is what device {ask['device']} does: idle, or kind and micro-batch "
            f"as in F0; got {word!r}"
        )
    return match[1].lower() if match[1].lower() == "idle" else match[1].upper()


def _off(ask: Mapping[str, Any]) -> float:
    return _DIGIT if _UNITS[ask["what"]] is SHARE else 1e-9


def _measure(inputs: Inputs, given: list[float | str]) -> Measured:
    remarks = []
    for i, (right, mine) in enumerate(zip(right_answers(inputs), given, strict=True), 1):
        ask = inputs["asks"][i - 1]
        if isinstance(right, str):
            if mine != right:
                where = f"device {ask['device']} after {ask['time']:g} s"
                remarks.append(f"answer {i} is not {mine} ({where})")
        elif math.isclose(mine / 100, right, rel_tol=_CLOSE) and _UNITS[ask["what"]] in (
            SHARE,
            RATIO,
        ):
            remarks.append(f"answer {i}, {mine:g}, is in percent: write {mine:g} %")
        elif not math.isclose(mine, right, rel_tol=_CLOSE, abs_tol=_off(ask)):
            side = "low" if mine < right else "high"
            near = ", but near" if abs(mine - right) <= NEAR * abs(right) else ""
            remarks.append(f"answer {i}, {mine:g}, is too {side}{near} ({ask['what']})")
    return Measured({"wrong": len(remarks)}, tuple(remarks))


def _solve(inputs: Inputs, targets: Targets) -> str:
    return ", ".join(a if isinstance(a, str) else repr(a) for a in right_answers(inputs))


def _guesses(inputs: Inputs) -> list[Any]:
    """Nothing is ever idle."""
    ideal = {"utilisation": 1.0, "idle share": 0.0, "idle over busy": 0.0, "state": "F0"}
    return [[ideal.get(ask["what"], 1.0) for ask in inputs["asks"]]]


def _asks(value: Any) -> list[dict]:
    if not isinstance(value, list) or not 1 <= len(value) <= 12:
        raise ValueError("must be a list of 1 to 12 objects, one for each thing that is asked")
    return [_ask(i, item) for i, item in enumerate(value, 1)]


def _ask(i: int, item: Any) -> dict:
    readers = {**_SETTING, **_ASKED}
    if not isinstance(item, dict) or not {"what", "schedule", "devices", "microbatches"} <= set(
        item
    ):
        raise ValueError(f"item {i} must be an object with what, schedule, devices, microbatches")
    unknown = sorted(set(item) - set(readers))
    if unknown:
        raise ValueError(f"item {i} has the unknown key {unknown[0]!r}; known: {sorted(readers)}")
    try:
        read = {name: readers[name](value) for name, value in item.items()}
    except ValueError as error:
        raise ValueError(f"item {i}: a value {error}") from None
    if (read["what"] == "state") != ({"device", "time"} <= set(read)):
        raise ValueError(f"item {i}: a state is asked for with device and time, nothing else is")
    if read.get("device", 0) >= read["devices"]:
        raise ValueError(f"item {i}: device {read['device']} of {read['devices']}, from 0")
    return read


QUESTION = Kind(
    needed={"asks": _asks},
    optional={},
    measures={"wrong": WRONG},
    how="what is asked for, between commas or spaces, for example '0.9, 15 %, 2/7' or '12 s'",
    read=_read,
    measure=_measure,
    best=lambda inputs, targets: {"wrong": Best(0)},
    solve=_solve,
    guesses=_guesses,
    ready=right_answers,
)
