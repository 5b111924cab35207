"""One schedule against another: the same model on the same devices, simulated over and over.

    a device's share of the model takes 1 s forward and 2 s back, half of them for the weights;
    a schedule with v chunks per device cuts that share in v equal stages

So every schedule has the same work, and idle time can be compared.
"""

import inspect
from collections.abc import Iterable
from typing import Any

import tiledask as td
from tiledask.plan.pipelines.schedules import V_SHAPED, schedule, schedules

__all__ = ["compare_schedules", "same_work", "schedule_on"]


def schedule_on(
    name: str, devices: int, microbatches: int, *, chunks: int = 2, latency: float = 0.0
) -> td.Schedule:
    """The schedule ``name`` for so many devices, with as few stages on each as make it what it is.

    ``chunks`` stages per device for those that leave the choice. One that is made for its times
    takes a device's whole share of the model as 1 s forward and 2 s back.

    >>> [schedule_on(name, 4, 8).stages for name in ("1f1b", "interleaved", "zb-v")]
    [4, 8, 8]
    """
    takes = inspect.signature(schedules[name]).parameters if name in schedules else {}
    if "devices" in takes:
        return schedule(name, chunks * devices, microbatches, devices=devices)
    each = 2 if name in V_SHAPED else 1  # stages per device
    times: dict[str, Any] = {}
    if "backward_weight" in takes:  # made for these times
        times = dict.fromkeys(("forward", "backward_input", "backward_weight"), 1 / each)
        times["latency"] = latency
    return schedule(name, each * devices, microbatches, **times)


def same_work(name: str, devices: int, microbatches: int, *, latency: float = 0.0) -> td.Timeline:
    """The simulated Timeline of a `schedule_on` so many devices, equal work on every device.

    >>> same_work("zb-v", devices=4, microbatches=8).makespan
    25.5
    """
    built = schedule_on(name, devices, microbatches, latency=latency)
    share = devices / built.stages
    times = share, 2 * share, latency
    return td.simulate(built, *times, backward_input=share, backward_weight=share)


def compare_schedules(
    names: Iterable[str], devices: int, microbatches: int, *, latency: float = 0.0
) -> dict[str, dict[str, float]]:
    """Rows for `td.table`, equal work on every device as in `same_work`. Of each schedule: its end
    in seconds, the idle share of device-time, the most activations that a device keeps (1 is a
    device's whole share of the model, for one micro-batch), how often a device has its share of
    the weights, and the messages between devices.

    >>> compare_schedules(["zb-v"], devices=4, microbatches=12)["zb-v"]
    {'ends': 37.5, 'idle': 0.04, 'kept': 4.0, 'weights': 1.0, 'messages': 144}
    """
    rows: dict[str, dict[str, float]] = {}
    for name in names:
        timeline = same_work(name, devices, microbatches, latency=latency)
        built = timeline.schedule
        assert built is not None
        held = sum(len(built.holders(stage)) for stage in range(built.stages))
        rows[name] = {
            "ends": round(timeline.makespan, 12),
            "idle": round(timeline.bubble_fraction, 12),
            "kept": devices / built.stages * max(timeline.peak_in_flight),
            "weights": held / built.stages,
            "messages": int(td.program(built).traffic.messages.sum()),
        }
    return rows
