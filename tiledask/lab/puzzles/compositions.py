"""Puzzles whose answer is a partition and a schedule at once: any split, any order, within memory.

What a device holds at its fullest, in bytes:

    weights of its layers + for each activation in flight, the activations of that stage's layers
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError, PartitionError, ScheduleError, short
from tiledask.lab.judging.result import TABLE, Best, within
from tiledask.lab.puzzles.fields import either, number, numbers, size, sizes, whole
from tiledask.lab.puzzles.kind import Inputs, Kind, Measured, Targets, frozen_key
from tiledask.lab.puzzles.lost_time import idle_causes, longest_wait
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
from tiledask.plan.splitting.partition import contiguous_splits, count_contiguous_splits
from tiledask.plan.units import format_bytes

__all__ = ["COMPOSITION", "Composition", "memory_of", "read_unlimited"]

SEARCHED = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")
"""The schedules with one stage per device that the search tries with every split."""
_MOST_SPLITS = 20_000


class Composition(NamedTuple):
    """A partition and an order that go together, and the run that they make."""

    stages: tuple[tuple[int, ...], ...]
    """The layers of each stage, from 1."""
    order: Schedule
    run: Timeline

    def layers(self, device: int) -> list[int]:
        """The layers that a device holds."""
        place = self.order.place
        return [n for s, group in enumerate(self.stages) if place[s] == device for n in group]


def _composed(inputs: Inputs, stages: tuple[tuple[int, ...], ...], order: Schedule) -> Composition:
    speeds = inputs.get("speeds", [1.0] * inputs["devices"])
    forward = [
        sum(inputs["costs"][n - 1] for n in group) / speeds[device]
        for group, device in zip(stages, order.place, strict=True)
    ]
    backward = [inputs["backward"] * seconds for seconds in forward]
    return Composition(
        stages, order, simulate(order, forward, backward, inputs.get("latency", 0.0))
    )


def memory_of(inputs: Inputs, composition: Composition) -> tuple[float, ...]:
    """Bytes of each device at its fullest."""
    each = [sum(inputs["activations"][n - 1] for n in group) for group in composition.stages]
    weights = [
        sum(inputs["weights"][n - 1] for n in composition.layers(device))
        for device in range(inputs["devices"])
    ]
    return memory_over_time(composition.run, each, static=weights).peaks


def _read(inputs: Inputs, answer: Any) -> Composition:
    composition = read_unlimited(inputs, answer)
    caps = capacities(inputs["capacity"], inputs["devices"])
    held = zip(memory_of(inputs, composition), caps, strict=True)
    for device, (used, cap) in enumerate(held, 1):
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
    verdict = legal(parts["layers"], inputs["devices"], layers=len(inputs["costs"]))
    stages = verdict.stages
    return _composed(inputs, stages, _order_of(inputs, len(stages), parts["schedule"]))


def _order_of(inputs: Inputs, stages: int, order: Any) -> Schedule:
    devices, microbatches = inputs["devices"], inputs["microbatches"]
    if isinstance(order, str) and re.search(r"(?i)(?<!\w)\d*F\d+(?!\w)", order):
        order = order_of(order)
    elif isinstance(order, str):
        name = called(order.strip().lower())
        if name not in schedules:
            raise ConfigError(f"no schedule {short(name)}; there are {', '.join(schedules)}")
        options = {"devices": devices} if is_looped(name) else {}
        order = schedule(name, stages, microbatches, **options)
    if not isinstance(order, Schedule):
        raise ConfigError(f"a schedule is a name, or an order as text; got {order!r}")
    if order.replicas > 1:
        raise ScheduleError(
            f"every stage is on one device here, and {order.name or 'this order'} has "
            f"{order.replicas} replicas of each; choose another schedule"
        )
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
    run = composition.run
    where = "; ".join(filter(None, (idle_causes(run), longest_wait(run))))
    return {"makespan": (run.makespan, where)}


# -- the best of the table -------------------------------------------------------------------------


@lru_cache(maxsize=32)
def _found(key: str) -> tuple[float, str] | None:
    """(seconds, answer) of the fastest of SEARCHED with every split; None if nothing fits."""
    inputs = json.loads(key)
    best: tuple[float, str] | None = None
    for least, bounds, names in sorted(_fitting(inputs), key=lambda row: row[0]):
        if best and least >= best[0]:
            break  # no order of this split, nor of those after it, is faster
        stages = tuple(tuple(range(a + 1, b + 1)) for a, b in pairwise(bounds))
        for name in names:
            order = _named(name, inputs["devices"], inputs["microbatches"])
            seconds = _composed(inputs, stages, order).run.makespan
            if best is None or seconds < best[0]:
                text = " | ".join(f"{a + 1}-{b}" for a, b in pairwise(bounds))
                best = seconds, f"{text} ; {name}"
    return best


@lru_cache(maxsize=32)
def _named(name: str, devices: int, microbatches: int) -> Schedule:
    return schedule(name, devices, microbatches)


def _fitting(inputs: Inputs) -> Iterator[tuple[float, tuple[int, ...], list[str]]]:
    """For each split that fits with some schedule: what no order beats, bounds, and which fit."""
    devices, m, latency = inputs["devices"], inputs["microbatches"], inputs.get("latency", 0.0)
    speeds = inputs.get("speeds", [1.0] * devices)
    caps = np.array(capacities(inputs["capacity"], devices), float)
    sums = [
        np.cumsum([0, *inputs[name]], dtype=float) for name in ("costs", "weights", "activations")
    ]
    peaks = {name: np.array(peak_in_flight(_named(name, devices, m))) for name in SEARCHED}
    for bounds in contiguous_splits(len(inputs["costs"]), devices):
        cost, weight, kept = (np.diff(each[list(bounds)]) for each in sums)
        names = [n for n in SEARCHED if (weight + peaks[n] * kept <= caps).all()]
        if names:
            forward = cost / speeds
            backward = inputs["backward"] * forward
            yield split_lower_bound(forward, backward, m, latency), bounds, names


def _best(inputs: Inputs, targets: Targets) -> dict[str, Best]:
    found = _found(frozen_key(inputs))
    return {"makespan": Best(found[0], TABLE)} if found and "makespan" in targets else {}


def _solve(inputs: Inputs, targets: Targets) -> str | None:
    found = _found(frozen_key(inputs))
    return found[1] if found and within(found[0], targets["makespan"]) else None


def _validate(inputs: Inputs) -> None:
    layers, devices = len(inputs["costs"]), inputs["devices"]
    for name, count in (("weights", layers), ("activations", layers), ("speeds", devices)):
        if name in inputs and len(inputs[name]) != count:
            each = "devices" if name == "speeds" else "layers"
            raise PartitionError(f"{len(inputs[name])} {name} for {count} {each}: give one each")
    if layers < devices or count_contiguous_splits(layers, devices) > _MOST_SPLITS:
        raise PartitionError(
            f"{layers} layers on {devices} devices: between 1 and {_MOST_SPLITS} splits are "
            f"searched; use fewer layers or devices"
        )
    if _found(frozen_key(inputs)) is None:
        raise PartitionError("no split fits with any schedule; give the devices more capacity")


COMPOSITION = Kind(
    needed={
        "costs": numbers(number(above=True)),
        "weights": sizes(),
        "activations": sizes(),
        "devices": whole(2, 8),
        "capacity": either(size, sizes()),
        "microbatches": whole(1, 64),
        "backward": number(above=True),
    },
    optional={"speeds": numbers(number(above=True)), "latency": number()},
    measures={"makespan": "seconds until the end"},
    how="the layers of each stage, a semicolon, and a schedule: '1-9 | 10-14 | ... ; 1f1b', or in "
    "place of the name an order with a line per device",
    validate=_validate,
    read=_read,
    measure=_measure,
    best=_best,
    solve=_solve,
    run=lambda inputs, answer: read_unlimited(inputs, answer).run,
)
