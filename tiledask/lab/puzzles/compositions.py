"""Puzzles whose answer is a partition and a schedule at once: any split, any order, within memory.

What a device holds at its fullest, in bytes:

    weights of its layers + for each activation in flight, the activations of that stage's layers
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, PartitionError, ScheduleError, short
from tiledask.lab.judging.result import TABLE, Best, within
from tiledask.lab.puzzles.fields import either, number, numbers, size, sizes, whole
from tiledask.lab.puzzles.kind import Inputs, Kind, Measured, Targets, frozen_key
from tiledask.lab.puzzles.lost_time import busiest, longest_wait
from tiledask.lab.puzzles.orders import order_of
from tiledask.plan.pipelines.closed_form import split_lower_bound
from tiledask.plan.pipelines.needs import peak_in_flight, validate
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import called, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.splitting.assignment import read_assignment
from tiledask.plan.splitting.exact import capacities
from tiledask.plan.splitting.judge import judge
from tiledask.plan.splitting.partition import contiguous_splits, count_contiguous_splits
from tiledask.plan.units import format_bytes

__all__ = [
    "COMPOSITION",
    "SEARCHED",
    "Composition",
    "memory_of",
    "read_unlimited",
    "run_composition",
]

SEARCHED = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")
"""The schedules with one stage per device that the search tries with every split."""
_MOST_SPLITS = 20_000


@dataclass(frozen=True)
class Composition:
    """The layers of each stage, from 1, and the order of the stages' actions."""

    stages: tuple[tuple[int, ...], ...]
    order: Schedule


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
    layers = len(inputs["costs"])
    try:
        stages = tuple(map(tuple, read_assignment(answer["layers"], layers, inputs["devices"])))
    except PartitionError as error:
        raise ConfigError(f"{error}") from None
    verdict = judge(stages, layers, len(stages))
    if not verdict:
        raise PartitionError(f"{verdict.rule}. {verdict.reason}")
    return Composition(stages, _order_of(inputs, len(stages), answer["schedule"]))


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


def stage_times(inputs: Inputs, composition: Composition) -> tuple[list[float], list[float]]:
    """(forward, backward) seconds of each stage."""
    speeds = inputs.get("speeds", [1.0] * inputs["devices"])
    forward = [
        sum(inputs["costs"][n - 1] for n in group) / speeds[composition.order.place[s]]
        for s, group in enumerate(composition.stages)
    ]
    return forward, [inputs["backward"] * f for f in forward]


def run_composition(inputs: Inputs, composition: Composition) -> Timeline:
    """The simulated run."""
    forward, backward = stage_times(inputs, composition)
    return simulate(composition.order, forward, backward, inputs.get("latency", 0.0))


def memory_of(inputs: Inputs, composition: Composition) -> list[float]:
    """Bytes of each device at its fullest."""

    def of_stages(name: str) -> list[float]:
        return [float(sum(inputs[name][n - 1] for n in group)) for group in composition.stages]

    weights, each = of_stages("weights"), of_stages("activations")
    peaks = []
    for device, order in enumerate(composition.order.orders):
        kept = most = 0.0
        for a in order:
            kept += {"F": 1, "B": -1, "I": 0, "W": -1}[a.kind] * each[a.stage]
            most = max(most, kept)
        held = (w for w, d in zip(weights, composition.order.place, strict=True) if d == device)
        peaks.append(most + sum(held))
    return peaks


def _measure(inputs: Inputs, composition: Composition) -> Measured:
    run = run_composition(inputs, composition)
    where = "; ".join(filter(None, (busiest(run), longest_wait(run))))
    return Measured({"makespan": run.makespan}, where={"makespan": where})


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
            seconds = run_composition(inputs, Composition(stages, order)).makespan
            if best is None or seconds < best[0]:
                text = " | ".join(f"{a + 1}-{b}" for a, b in pairwise(bounds))
                best = seconds, f"{text} ; {name}"
    return best


@lru_cache(maxsize=32)
def _named(name: str, devices: int, microbatches: int) -> Schedule:
    return schedule(name, devices, microbatches)


def _fitting(inputs: Inputs) -> Iterator[tuple[float, tuple[int, ...], list[str]]]:
    """For each split that fits with some schedule: what no order beats, bounds, and which fit."""
    devices, m = inputs["devices"], inputs["microbatches"]
    speeds = inputs.get("speeds", [1.0] * devices)
    caps = np.array(capacities(inputs["capacity"], devices), float)
    sums = {
        name: np.cumsum([0, *inputs[name]], dtype=float)
        for name in ("costs", "weights", "activations")
    }
    peaks = {name: np.array(peak_in_flight(_named(name, devices, m))) for name in SEARCHED}
    for bounds in contiguous_splits(len(inputs["costs"]), devices):
        cost, weight, kept = (np.diff(sums[name][list(bounds)]) for name in sums)
        names = [n for n in SEARCHED if (weight + peaks[n] * kept <= caps).all()]
        if names:
            forward = cost / speeds
            yield (
                split_lower_bound(
                    forward, inputs["backward"] * forward, m, inputs.get("latency", 0.0)
                ),
                bounds,
                names,
            )


def _best(inputs: Inputs, targets: Targets) -> dict[str, Best]:
    found = _found(frozen_key(inputs))
    return {"makespan": Best(found[0], TABLE)} if found and "makespan" in targets else {}


def _solve(inputs: Inputs, targets: Targets) -> str | None:
    found = _found(frozen_key(inputs))
    return found[1] if found and within(found[0], targets["makespan"]) else None


def _ready(inputs: Inputs) -> None:
    layers, devices = len(inputs["costs"]), inputs["devices"]
    for name in ("weights", "activations"):
        if len(inputs[name]) != layers:
            raise PartitionError(f"{len(inputs[name])} {name} for {layers} layers: give one each")
    if len(inputs.get("speeds", [1] * devices)) != devices:
        raise PartitionError(f"{len(inputs['speeds'])} speeds for {devices} devices: give one each")
    capacities(inputs["capacity"], devices)
    if layers < devices or count_contiguous_splits(layers, devices) > _MOST_SPLITS:
        raise PartitionError(
            f"{layers} layers on {devices} devices: between 1 and {_MOST_SPLITS} splits are "
            f"searched; use fewer layers or devices"
        )
    if _found(frozen_key(inputs)) is None:
        raise PartitionError(
            "no split fits with any schedule with one stage per device; give the devices more "
            "capacity"
        )


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
    how=(
        "the layers of each stage, a semicolon, and a schedule: '1-9 | 10-14 | ... ; 1f1b', or in "
        "place of the name an order with a line per device"
    ),
    read=_read,
    measure=_measure,
    best=_best,
    solve=_solve,
    ready=_ready,
)
