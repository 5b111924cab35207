"""Puzzles whose answer is a partition and a schedule at once: any split, any order, within memory.

What a device holds at its fullest, in bytes:

    weights of its layers + for each activation in flight, the activations of that stage's layers
"""

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import tiledask as td
from tiledask.errors import ConfigError, PartitionError, ScheduleError, short
from tiledask.lab.tasks.kind import Inputs, Measured, Targets, frozen_key, idle_causes
from tiledask.lab.tasks.order import order_of
from tiledask.lab.tasks.partition import legal
from tiledask.plan.formulas import lower_bound
from tiledask.plan.pipelines.schedules import LOOPED, called, schedule, schedules
from tiledask.plan.pipelines.validate import most_kept, validate
from tiledask.plan.splitting.partition import capacities, layer_ranges
from tiledask.plan.units import format_bytes

__all__ = ["YARDSTICK", "best", "check_inputs", "measure", "read", "runs", "solve"]

SEARCHED = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")
"""The schedules with one stage per device that the search tries with every split."""
YARDSTICK = "best of the table"
_MOST_SPLITS, _MOST_PAIRS = 20_000, 512

Stages = Sequence[Sequence[int]]
"""The layers of each, from 1."""


class Composition(NamedTuple):
    """The run that a partition and an order make together."""

    run: td.Timeline
    held: tuple[float, ...]
    """Bytes of each device at its fullest."""


def _sums(inputs: Inputs, name: str, stages: Stages) -> list[float]:
    """What the layers of each stage have of an input, all together."""
    return [sum(inputs[name][n - 1] for n in group) for group in stages]


def _times(inputs: Inputs, stages: Stages, place: Sequence[int]) -> tuple[list[float], list[float]]:
    """Seconds of each stage, forward and backward."""
    speeds = inputs.get("speeds", [1.0] * inputs["devices"])
    costs = _sums(inputs, "costs", stages)
    forward = [cost / speeds[device] for cost, device in zip(costs, place, strict=True)]
    return forward, [inputs["backward"] * seconds for seconds in forward]


def _composed(inputs: Inputs, stages: Stages, order: td.Schedule) -> Composition:
    run = td.simulate(order, *_times(inputs, stages, order.place), inputs.get("latency", 0.0))
    weights = [0.0] * inputs["devices"]
    for device, nbytes in zip(order.place, _sums(inputs, "weights", stages), strict=True):
        weights[device] += nbytes
    kept = _sums(inputs, "activations", stages)
    return Composition(run, td.memory_over_time(run, kept, static=weights).peaks)


def read(inputs: Inputs, answer: Any) -> Composition:
    composition = _unlimited(inputs, answer)
    caps = capacities(inputs["capacity"], inputs["devices"])
    for device, (used, cap) in enumerate(zip(composition.held, caps, strict=True)):
        if used > cap:
            raise ScheduleError(
                f"over memory: device {device} holds {format_bytes(used)} at its fullest, and has "
                f"{format_bytes(cap)}; give it fewer layers, or an order that keeps less"
            )
    return composition


def _unlimited(inputs: Inputs, answer: Any) -> Composition:
    """The answer as a Composition that could run if memory were no question."""
    layers, _, order = str(answer).replace("\n", ";", 1).partition(";")
    if not order.strip():
        rule = (
            "write the layers of each stage, a semicolon, and a schedule, as in '1-6 | 7-12 ; 1f1b'"
        )
        raise ConfigError(f"{rule}; got {answer!r}")
    # as many stages as the answer has: the order says whether so many are on the devices
    stages = legal(layers, inputs["devices"], layers=len(inputs["costs"])).stages
    return _composed(inputs, stages, _order(inputs, len(stages), order.strip()))


def _order(inputs: Inputs, stages: int, given: str) -> td.Schedule:
    devices, microbatches = inputs["devices"], inputs["microbatches"]
    if re.search(r"(?i)(?<!\w)\d*F\d+(?!\w)", given):
        order = order_of(given)
    else:
        name = called(given.lower())
        if name not in schedules:
            raise ConfigError(f"no schedule {short(name)}; there are {', '.join(schedules)}")
        options = {"devices": devices} if name in LOOPED else {}
        order = schedule(name, stages, microbatches, **options)
    if order.replicas > 1:
        raise ScheduleError(f"every stage is on one device here; got {order.replicas} replicas")
    validate(order, stages, microbatches)
    if order.devices != devices:
        rule = "give as many stages as devices, or several times as many to a looped schedule"
        there = f"{stages} stages on {order.devices} devices, and there are {devices}"
        raise ScheduleError(f"{there}; {rule}")
    return order


def measure(inputs: Inputs, composition: Composition) -> Measured:
    return {"makespan": (composition.run.makespan, idle_causes(composition.run))}


@lru_cache(maxsize=32)
def _found(key: str) -> tuple[float, str]:
    """(seconds, answer) of the fastest of SEARCHED with any split; PartitionError if none fits."""
    inputs = json.loads(key)
    devices, m, latency = inputs["devices"], inputs["microbatches"], inputs.get("latency", 0.0)
    orders = [schedule(name, devices, m) for name in SEARCHED]
    most, caps = [most_kept(order)[0] for order in orders], capacities(inputs["capacity"], devices)

    def bounded(bounds: Sequence[int]) -> tuple[float, Stages]:
        stages = [range(a + 1, b + 1) for a, b in pairwise(bounds)]
        return lower_bound(*_times(inputs, stages, range(devices)), m, latency, split=True), stages

    fastest, answer = math.inf, ""
    splits = map(bounded, td.contiguous_splits(len(inputs["costs"]), devices))
    for least, stages in sorted(splits, key=itemgetter(0)):
        if least >= fastest:
            break  # no order of this split, nor of those after it, is faster
        weights, kept = _sums(inputs, "weights", stages), _sums(inputs, "activations", stages)
        for order, peak in zip(orders, most, strict=True):
            held = (w + n * k for w, n, k in zip(weights, peak, kept, strict=True))
            if all(nbytes <= cap for nbytes, cap in zip(held, caps, strict=True)):
                seconds = _composed(inputs, stages, order).run.makespan
                if seconds < fastest:
                    fastest = seconds
                    answer = f"{' | '.join(map(layer_ranges, stages))} ; {order.name}"
    if not answer:
        raise PartitionError("no split fits with any schedule; give the devices more capacity")
    return fastest, answer


def check_inputs(inputs: Inputs) -> None:
    layers, devices = len(inputs["costs"]), inputs["devices"]
    td.partition(inputs["costs"], devices, inputs.get("speeds"))  # refuses what is no split
    for name in ("weights", "activations"):
        if len(inputs[name]) != layers:
            raise PartitionError(f"{len(inputs[name])} {name} for {layers} layers: give one each")
    splits, pairs = math.comb(layers - 1, devices - 1), devices * inputs["microbatches"]
    if splits > _MOST_SPLITS or pairs > _MOST_PAIRS:
        rule = (
            f"{_MOST_SPLITS:,} and {_MOST_PAIRS} are searched at most; use fewer layers or devices"
        )
        raise PartitionError(f"there are {splits:,} splits with {pairs} forwards; {rule}")
    _found(frozen_key(inputs))


def best(inputs: Inputs, targets: Targets) -> dict[str, float]:
    return {"makespan": _found(frozen_key(inputs))[0]}


def solve(inputs: Inputs, targets: Targets) -> str:
    return _found(frozen_key(inputs))[1]


def runs(inputs: Inputs, answer: Any) -> dict[str, td.Timeline]:
    return {"the run": _unlimited(inputs, answer).run}
