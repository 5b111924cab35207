"""One schedule against another: the same model on the same devices, simulated over and over.

    a device's share of the model takes ``forward`` seconds forward and ``backward`` back;
    a schedule with v chunks per device cuts that share in v equal stages

So every schedule has the same work, and idle time can be compared.
"""

import inspect
from collections.abc import Iterable

from tiledask.plan.pipelines.schedules import V_SHAPED, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["bubble_by_latency", "same_work"]


def same_work(
    name: str,
    devices: int,
    microbatches: int,
    *,
    forward: float = 1.0,
    backward: float = 2.0,
    latency: float = 0.0,
    chunks: int = 2,
) -> Timeline:
    """The simulated Timeline of the schedule ``name``, equal work on every device.

    ``forward`` and ``backward`` are seconds of a device's whole share of the model; half of the
    backward is for the weights. ``chunks``: stages per device of the schedules that leave the
    choice.

    >>> same_work("zb-v", devices=4, microbatches=8).makespan
    25.5
    """
    takes = inspect.signature(schedules[name]).parameters if name in schedules else {}
    half = backward / 2
    if "devices" in takes:
        built = schedule(name, chunks * devices, microbatches, devices=devices)
    else:
        each = 2 if name in V_SHAPED else 1  # stages per device
        times: dict[str, float] = {}
        if "backward_weight" in takes:  # made for these times
            seconds = (forward / each, half / each, half / each, latency)
            names = ("forward", "backward_input", "backward_weight", "latency")
            times = dict(zip(names, seconds, strict=True))
        built = schedule(name, each * devices, microbatches, **times)
    share = built.devices / built.stages
    return simulate(
        built,
        forward * share,
        backward * share,
        latency,
        backward_input=half * share,
        backward_weight=half * share,
    )


def bubble_by_latency(
    names: Iterable[str], devices: int, microbatches: int, latencies: Iterable[float], **options
) -> dict[str, dict[float, float]]:
    """Bubble by schedule: seconds between two devices -> idle share of device-time."""
    times = list(latencies)
    return {
        n: {
            c: same_work(n, devices, microbatches, latency=c, **options).bubble_fraction
            for c in times
        }
        for n in names
    }
