"""Puzzles whose answer is a partition and a schedule at once: any split, any order, within memory.

What a device holds at its fullest, in bytes:

    weights of its layers + for each activation in flight, the activations of that stage's layers
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tiledask.errors import ConfigError, PartitionError, ScheduleError, short
from tiledask.lab.puzzles.kind import Inputs, Kind, Measured, Targets, frozen_key, idle_causes
from tiledask.lab.puzzles.orders import order_of
from tiledask.lab.puzzles.partitions import legal
from tiledask.plan.pipelines.closed_form import split_lower_bound
from tiledask.plan.pipelines.footprint import memory_over_time
from tiledask.plan.pipelines.needs import peak_in_flight, validate
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import called, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.splitting.exact import capacities
from tiledask.plan.splitting.partition import (
    contiguous_splits,
    count_contiguous_splits,
    partition,
)
from tiledask.plan.units import format_bytes

__all__ = ["COMPOSITION", "Composition", "read_unlimited"]

SEARCHED = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")
"""The schedules with one stage per device that the search tries with every split."""
_MOST_SPLITS, _MOST_PAIRS = 20_000, 512


class Composition(NamedTuple):
    """A partition and an order that go together, and the run that they make."""

    order: Schedule
    run: Timeline
    layers: list[list[int]]
    """Of each device, from 1."""
    held: tuple[float, ...]
    """Bytes of each device at its fullest."""


def _composed(inputs: Inputs, stages: tuple[tuple[int, ...], ...], order: Schedule) -> Composition:
    devices = inputs["devices"]
    speeds = inputs.get("speeds", [1.0] * devices)
    cost, activations = (
        [sum(inputs[name][n - 1] for n in group) for group in stages]
        for name in ("costs", "activations")
    )
    forward = [seconds / speeds[device] for seconds, device in zip(cost, order.place, strict=True)]
    backward = [inputs["backward"] * seconds for seconds in forward]
    run = simulate(order, forward, backward, inputs.get("latency", 0.0))
    places = [*zip(stages, order.place, strict=True)]
    layers = [[n for group, place in places if place == d for n in group] for d in range(devices)]
    weights = [sum(inputs["weights"][n - 1] for n in mine) for mine in layers]
    held = memory_over_time(run, activations, static=weights).peaks
    return Composition(order, run, layers, held)


def _read(inputs: Inputs, answer: Any) -> Composition:
    composition = read_unlimited(inputs, answer)
    caps = capacities(inputs["capacity"], inputs["devices"])
    for device, (used, cap) in enumerate(zip(composition.held, caps, strict=True), 1):
        if used > cap:
            raise ScheduleError(
                f"over memory: device {device} holds {format_bytes(used)} at its fullest, weights "
                f"and activations, and has {format_bytes(cap)}; give it fewer layers, or an order "
                f"that keeps fewer micro-batches"
            )
    return composition


def read_unlimited(inputs: Inputs, answer: Any) -> Composition:
    """The answer as a Composition that could run if memory were no question."""
    if isinstance(answer, str):
        layers, _, order = answer.replace("\n", ";", 1).partition(";")
        answer = {"layers": layers, "schedule": order.strip()}
    parts = answer if isinstance(answer, Mapping) else {}
    if set(parts) != {"layers", "schedule"} or parts["schedule"] == "":
        raise ConfigError(
            f"write the layers of each stage, a semicolon, and a schedule's name (or an order, a "
            f"line per device), as in '1-6 | 7-12 ; 1f1b'; got {answer!r}"
        )
    # as many stages as the answer has: the order says whether so many are on the devices
    stages = legal(parts["layers"], inputs["devices"], layers=len(inputs["costs"])).stages
    return _composed(inputs, stages, _order_of(inputs, len(stages), parts["schedule"]))


def _order_of(inputs: Inputs, stages: int, given: Any) -> Schedule:
    devices, microbatches = inputs["devices"], inputs["microbatches"]
    if isinstance(given, str) and not re.search(r"(?i)(?<!\w)\d*F\d+(?!\w)", given):
        name = called(given.strip().lower())
        if name not in schedules:
            raise ConfigError(f"no schedule {short(name)}; there are {', '.join(schedules)}")
        options = {"devices": devices} if is_looped(name) else {}
        order = schedule(name, stages, microbatches, **options)
    else:
        order = order_of(given)
    if order.replicas > 1:
        raise ScheduleError(f"every stage is on one device here; got {order.replicas} replicas")
    validate(order, stages, microbatches)
    if order.devices != devices:
        raise ScheduleError(
            f"{stages} stages on {order.devices} devices, and there are {devices}; give as many "
            f"stages as devices, or several times as many to a looped schedule"
        )
    if not order.trains:
        raise ScheduleError("training needs backwards too; the order has only forwards")
    return order


def _measure(inputs: Inputs, composition: Composition) -> Measured:
    return {"makespan": (composition.run.makespan, idle_causes(composition.run))}


# -- the best of the table -------------------------------------------------------------------------


@lru_cache(maxsize=32)
def _found(key: str) -> tuple[float, str] | None:
    """(seconds, answer) of the fastest of SEARCHED with every split; None if nothing fits."""
    inputs = json.loads(key)
    devices, m, latency = inputs["devices"], inputs["microbatches"], inputs.get("latency", 0.0)
    orders = {name: schedule(name, devices, m) for name in SEARCHED}
    peaks = {name: peak_in_flight(order) for name, order in orders.items()}
    caps, speeds = capacities(inputs["capacity"], devices), inputs.get("speeds", [1.0] * devices)
    splits = []
    for bounds in contiguous_splits(len(inputs["costs"]), devices):
        cost, weight, kept = (
            [sum(inputs[name][a:b]) for a, b in pairwise(bounds)]
            for name in ("costs", "weights", "activations")
        )
        fitting = [
            name
            for name, peak in peaks.items()
            if all(w + n * k <= cap for w, n, k, cap in zip(weight, peak, kept, caps, strict=True))
        ]
        forward = [c / speed for c, speed in zip(cost, speeds, strict=True)]
        backward = [inputs["backward"] * seconds for seconds in forward]
        if fitting:
            splits.append((split_lower_bound(forward, backward, m, latency), bounds, fitting))
    best: tuple[float, str] | None = None
    for least, bounds, fitting in sorted(splits):
        if best and least >= best[0]:
            break  # no order of this split, nor of those after it, is faster
        stages = tuple(tuple(range(a + 1, b + 1)) for a, b in pairwise(bounds))
        for name in fitting:
            seconds = _composed(inputs, stages, orders[name]).run.makespan
            if best is None or seconds < best[0]:
                text = " | ".join(f"{a + 1}-{b}" for a, b in pairwise(bounds))
                best = seconds, f"{text} ; {name}"
    return best


def _best(inputs: Inputs, targets: Targets) -> dict[str, float]:
    found = _found(frozen_key(inputs))
    return {"makespan": found[0]} if found else {}


def _solve(inputs: Inputs, targets: Targets) -> str | None:
    found = _found(frozen_key(inputs))
    return found[1] if found else None


def _validate(inputs: Inputs) -> None:
    layers, devices = len(inputs["costs"]), inputs["devices"]
    partition(inputs["costs"], devices, inputs.get("speeds"))  # refuses what is no split
    for name in ("weights", "activations"):
        if len(inputs[name]) != layers:
            raise PartitionError(f"{len(inputs[name])} {name} for {layers} layers: give one each")
    splits, pairs = count_contiguous_splits(layers, devices), devices * inputs["microbatches"]
    if splits > _MOST_SPLITS or pairs > _MOST_PAIRS:
        raise PartitionError(
            f"{layers} layers on {devices} devices have {splits:,} splits, with {pairs} forwards; "
            f"at most {_MOST_SPLITS:,} and {_MOST_PAIRS} are searched; use fewer layers or devices"
        )
    if _found(frozen_key(inputs)) is None:
        raise PartitionError("no split fits with any schedule; give the devices more capacity")


COMPOSITION = Kind(
    needed=("costs", "weights", "activations", "devices", "capacity", "microbatches", "backward"),
    optional=("speeds", "latency"),
    single=("backward", "latency"),
    measures={"makespan": "seconds until the end"},
    how="the layers of each stage, a semicolon, and a schedule: '1-9 | 10-14 | ... ; 1f1b', or in "
    "place of the name an order with a line per device",
    validate=_validate,
    read=_read,
    measure=_measure,
    best=_best,
    solve=_solve,
    yardstick="best of the table",
    run=lambda inputs, answer: read_unlimited(inputs, answer).run,
)
