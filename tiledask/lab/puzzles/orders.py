"""Puzzles whose answer is the order of every device's actions, against the proven best order."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any

from tiledask.errors import ConfigError, ScheduleError
from tiledask.lab.judging.result import BOUND, OPTIMUM, Best, within
from tiledask.lab.puzzles.fields import choice, counts, either, flag, number, numbers, text, whole
from tiledask.lab.puzzles.kind import Inputs, Kind, Measured, Targets, frozen_key
from tiledask.lab.puzzles.lost_time import fullest, longest_wait
from tiledask.plan.pipelines.needs import peak_in_flight, validate
from tiledask.plan.pipelines.optimum import Optimum, optimal_schedule
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.whole import is_whole

__all__ = [
    "ORDER",
    "devices_of",
    "in_full",
    "limits_of",
    "order_of",
    "read_order",
    "run_order",
]

TIMES = ("forward", "backward", "backward_input", "backward_weight", "latency")
_LONGEST = 100_000
_MOST_PAIRS = 48
"""Stages x micro-batches up to which the best order is proven in about a second."""
_PATIENCE = 30.0
"""Seconds for one proof; they take well below one."""


def _times(inputs: Inputs) -> dict[str, Any]:
    return {name: inputs[name] for name in TIMES if name in inputs}


def devices_of(inputs: Inputs) -> int:
    """How many devices there are."""
    place = inputs.get("place")
    return inputs.get("devices") or (1 + max(place) if place else inputs["stages"])


def _places(inputs: Inputs) -> Iterator[tuple[int, ...]]:
    """The placements that are allowed, but for the devices' numbers."""
    stages, place = inputs["stages"], inputs.get("place")
    if place != "free":
        yield tuple(place or range(stages))
        return
    for tried in product(range(devices_of(inputs)), repeat=stages):
        firsts = list(dict.fromkeys(tried))  # devices numbered as they come: no mirror images
        if firsts == list(range(devices_of(inputs))):
            yield tried


def limits_of(inputs: Inputs) -> list[int] | None:
    """The most activations that each device may keep; None if that is no rule here."""
    limit = inputs.get("memory_limit")
    return [limit] * devices_of(inputs) if is_whole(limit) else limit


def order_of(answer: Any) -> Schedule:
    """The answer as a schedule, right or wrong; ConfigError for what is none at all, ScheduleError
    for one that no puzzle has room for."""
    if isinstance(answer, str):
        if len(answer) > _LONGEST:
            raise ConfigError(
                f"an order of {len(answer)} letters is longer than any puzzle's; use at most "
                f"{_LONGEST}"
            )
        large = re.search(r"\d{5,}", answer)
        if large:
            raise ConfigError(f"stages and micro-batches have 4 digits at most, got {large[0]}")
        try:
            answer = Schedule.from_text(in_full(answer))
        except ScheduleError as error:
            raise ConfigError(f"{error}") from None
    if not isinstance(answer, Schedule):
        raise ConfigError(f"write the order as text, a line per device; got {answer!r}")
    if answer.replicas > 1:
        raise ScheduleError(f"every stage is on one device here; got {answer.replicas} replicas")
    if answer.paired.any():
        raise ScheduleError("a device does one action at a time here; write F and B one by one")
    return answer


def in_full(text: str) -> str:
    """Every action with its stage; one without is of the stage of its line, as "F0" in line 2 is
    2F0. Stages count from 0; "device 3:" or "rank 2:" before a line is left out.

    >>> in_full("f0,b0; device 2: F0 B0")
    '0F0,0B0\\n1F0 1B0'
    """
    lines = [line for line in re.split(r"[\n;]", text) if line.strip()]
    if "OVERLAP" in text or "@" in text:
        return text
    for n, line in enumerate(lines):
        line = re.sub(r"^\s*(?:(?:device|rank)\s*)?\d+\s*:\s*", "", line, flags=re.IGNORECASE)
        lines[n] = re.sub(
            r"(?<![\w])(\d*)([fbiw])(\d+)(?!\w)",
            lambda m, n=n: f"{m[1] or n}{m[2].upper()}{m[3]}",
            line,
            flags=re.IGNORECASE,
        )
    return "\n".join(lines)


def read_order(inputs: Inputs, answer: Any) -> Schedule:
    """The answer as a schedule that can run and does all of the puzzle's work, or ScheduleError."""
    several = inputs.get("place") is not None or inputs["stages"] != devices_of(inputs)
    if several and isinstance(answer, str) and re.search(r"(?<!\w)[FBIWfbiw]\d", answer):
        raise ScheduleError("a device holds several stages here; say which, as in 0F3 for stage 0")
    answer = order_of(answer)
    validate(answer, inputs["stages"], inputs["microbatches"])
    devices, place = devices_of(inputs), inputs.get("place")
    if answer.devices != devices:
        raise ScheduleError(f"{devices} devices need {devices} lines; got {answer.devices}")
    wanted = tuple(place or range(inputs["stages"]))
    if place != "free" and answer.place != wanted:
        rule = (
            "stage s is on rank s here"
            if place is None
            else f"the stages are on ranks {', '.join(map(str, wanted))} here"
        )
        places = ", ".join(map(str, answer.place))
        raise ScheduleError(f"{rule}; the answer places them on {places}")
    kinds = {a.kind for a in answer}
    if not kinds & {"B", "W"}:
        raise ScheduleError(
            f"training needs a forward and a full backward (F and B) of each micro-batch; the "
            f"answer has only {', '.join(sorted(kinds))}"
        )
    if kinds & {"I", "W"} and not inputs.get("split"):
        raise ScheduleError("a backward is one piece here: write B, not I and W")
    return validate(answer, memory_limit=limits_of(inputs))


def run_order(inputs: Inputs, order: Schedule) -> Timeline:
    """The simulated run of ``order`` with the puzzle's times."""
    return simulate(order, **_times(inputs))


def _measure(inputs: Inputs, order: Schedule) -> Measured:
    run = run_order(inputs, order)
    values = {"makespan": run.makespan, "kept": max(peak_in_flight(order))}
    return Measured(values, where={"makespan": longest_wait(run), "kept": fullest(order)})


def _shortest(inputs: Inputs, kept: float | None = None) -> Optimum | None:
    """The best order that keeps ``kept`` activations at most; None if there is none."""
    limits = limits_of(inputs) or [10**6] * devices_of(inputs)
    if kept is not None:
        limits = [min(limit, int(kept)) for limit in limits]
    return _solved(frozen_key(inputs), tuple(limits))


@lru_cache(maxsize=256)
def _solved(key: str, limits: tuple[int, ...]) -> Optimum | None:
    inputs = json.loads(key)
    stages, microbatches = inputs["stages"], inputs["microbatches"]
    all_of_them = [min(limit, stages * microbatches) for limit in limits]
    best: Optimum | None = None
    if min(limits) < 1:
        return None
    least = {place: _bound(inputs, place) for place in _places(inputs)}
    for place in sorted(least, key=least.__getitem__):
        if best and least[place] >= best.makespan:
            break
        try:
            found = optimal_schedule(
                stages,
                microbatches,
                **_times(inputs),
                split=bool(inputs.get("split")),
                place=place,
                memory_limit=all_of_them,
                timeout=_PATIENCE,
            )
        except ScheduleError:  # no order keeps within these limits
            continue
        if best is None or found.makespan < best.makespan:
            best = found
    return best


def _bound(inputs: Inputs, place: tuple[int, ...]) -> float:
    """Seconds that no order goes below with the stages on these devices."""
    return simulate(_all_forwards_first(inputs, place), **_times(inputs)).lower_bound


def _all_forwards_first(inputs: Inputs, place: tuple[int, ...]) -> Schedule:
    """The forwards of stage after stage, then the backwards from the last stage to the first."""
    rows: list[list[Action]] = [[] for _ in range(max(place) + 1)]
    numbers = range(inputs["microbatches"])
    for s, device in enumerate(place):
        rows[device] += [Action("F", s, i) for i in numbers]
    for s, device in reversed(list(enumerate(place))):
        kinds = "IW" if inputs.get("split") else "B"
        rows[device] += [Action(kind, s, i) for i in numbers for kind in kinds]
    return Schedule.of(rows, place)


def _best(inputs: Inputs, targets: Targets) -> dict[str, Best]:
    best = {}
    shortest = _shortest(inputs, targets.get("kept"))
    if shortest is not None and "makespan" in targets:
        best["makespan"] = Best(shortest.least, OPTIMUM if shortest.proven else BOUND)
    if "kept" in targets:
        # the fewest activations with which some order meets the target for the makespan
        least = None
        for kept in range(int(targets["kept"]), 0, -1):
            found = _shortest(inputs, kept)
            if not found or not within(found.makespan, targets.get("makespan", float("inf"))):
                break
            least = kept
        if least is not None:
            best["kept"] = Best(least)
    return best


def _solve(inputs: Inputs, targets: Targets) -> str | None:
    found = _shortest(inputs, targets.get("kept"))
    if found is None or not within(found.makespan, targets.get("makespan", float("inf"))):
        return None
    return found.schedule.to_text()


def _ready(inputs: Inputs) -> None:
    pairs = inputs["stages"] * inputs["microbatches"]
    if pairs > _MOST_PAIRS:
        raise ScheduleError(
            f"{inputs['stages']} stages x {inputs['microbatches']} micro-batches are {pairs}; the "
            f"best order is proven for up to {_MOST_PAIRS}"
        )
    place = inputs.get("place")
    if place == "free" and ("devices" not in inputs or inputs["stages"] > 6):
        raise ScheduleError('a "free" place needs devices, and 6 stages at most')
    named = set(place) if isinstance(place, list) else None
    if named and (len(place) != inputs["stages"] or named != set(range(1 + max(place)))):
        raise ScheduleError(
            f"place has the rank, from 0, of each of {inputs['stages']} stages; got {place}"
        )
    limits = limits_of(inputs)
    if limits is not None and len(limits) != devices_of(inputs):
        raise ScheduleError(f"{len(limits)} memory limits for {devices_of(inputs)} devices")
    if not {"forward", "backward", "backward_input"} & set(inputs):
        raise ScheduleError("say how long things take: forward and backward, in seconds")
    _bound(inputs, next(_places(inputs)))  # refuses times of the wrong length


def _setup(inputs: Inputs, targets: Targets) -> dict[str, Any]:
    if inputs.get("place") == "free":
        raise ConfigError("here the stages are placed too, and only actions can be moved: type it")
    work = _all_forwards_first(inputs, next(_places(inputs)))
    run = simulate(work, **_times(inputs))
    spans = zip(run.kind.tolist(), run.stage.tolist(), (run.end - run.start).tolist(), strict=True)
    seconds: dict[str, list[float]] = {kind: [0.0] * work.stages for kind in set(run.kind.tolist())}
    for kind, stage, took in spans:
        seconds[kind][stage] = took
    end, kept = targets.get("makespan"), targets.get("kept")
    return {
        "stages": work.stages,
        "microbatches": inputs["microbatches"],
        "place": list(work.place),
        "kinds": "".join(kind for kind in "FBIW" if kind in seconds),
        "seconds": seconds,
        "latency": inputs.get("latency", 0.0),
        "limits": limits_of(inputs) or (None if kept is None else [kept] * work.devices),
        "end": end,
    }


ORDER = Kind(
    needed={"stages": whole(1, 16), "microbatches": whole(1, 48)},
    optional={
        **{name: either(number(), numbers()) for name in TIMES},
        "devices": whole(1, 16),
        "place": either(choice(("free",)), numbers(whole(0, 15))),
        "split": flag,
        "memory_limit": either(whole(1, 10_000), counts),
        "shown": text,
    },
    measures={"makespan": "seconds until the end", "kept": "activations kept on a device"},
    how="a line (or a part between ;) per device, in order, for example "
    "'0F0,0F1,0B0,0B1; 1F0,1B0,...': stages and micro-batches count from 0; with one stage per "
    "device F0 will do for 0F0",
    read=read_order,
    measure=_measure,
    best=_best,
    solve=_solve,
    page="orders",
    setup=_setup,
    ready=_ready,
)
