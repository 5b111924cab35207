"""One schedule against another: the same model on the same devices, simulated over and over.

    a device's share of the model takes ``forward`` seconds forward and ``backward`` back;
    a schedule with v chunks per device cuts that share in v equal stages

So every schedule has the same work, and idle time and memory can be compared. The results are
plain numbers, for the figures in tiledask.lab.plots.pipelines.schedule_curves.
"""

import inspect
from collections.abc import Iterable

from tiledask.plan.pipelines.footprint import memory_over_time
from tiledask.plan.pipelines.schedules import schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = [
    "bubble_by_latency",
    "memory_and_bubble",
    "same_work",
    "utilisation_by_devices",
    "utilisation_by_microbatches",
]

Curve = dict[float, float]
"""x -> y."""


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
    elif "backward_weight" in takes:  # made for these times
        times = {"forward": forward, "backward_input": half, "backward_weight": half}
        built = schedule(name, devices, microbatches, **times, latency=latency)
    else:
        each = 2 // schedule(name, 2, 1).devices  # stages per device: two in a V
        built = schedule(name, each * devices, microbatches)
    share = built.devices / built.stages
    return simulate(
        built,
        forward * share,
        backward * share,
        latency,
        backward_input=half * share,
        backward_weight=half * share,
    )


def utilisation_by_microbatches(
    names: Iterable[str], devices: int, microbatches: Iterable[int], **options
) -> dict[str, Curve]:
    """Utilisation by schedule: micro-batches -> busy share of device-time; options of `same_work`.

    >>> curves = utilisation_by_microbatches(["gpipe"], 4, (1, 8))
    >>> {m: round(share, 4) for m, share in curves["gpipe"].items()}
    {1: 0.25, 8: 0.7273}
    """
    counts = list(microbatches)
    return {n: {m: same_work(n, devices, m, **options).utilisation for m in counts} for n in names}


def utilisation_by_devices(
    names: Iterable[str], devices: Iterable[int], microbatches: int, **options
) -> dict[str, Curve]:
    """Utilisation by schedule: devices -> busy share of device-time; options of `same_work`."""
    counts = list(devices)
    return {
        n: {p: same_work(n, p, microbatches, **options).utilisation for p in counts} for n in names
    }


def bubble_by_latency(
    names: Iterable[str], devices: int, microbatches: int, latencies: Iterable[float], **options
) -> dict[str, Curve]:
    """Bubble by schedule: seconds between two devices -> idle share of device-time."""
    times = list(latencies)
    return {
        n: {
            c: same_work(n, devices, microbatches, latency=c, **options).bubble_fraction
            for c in times
        }
        for n in names
    }


def memory_and_bubble(
    devices: int, microbatches: int, names: Iterable[str] = tuple(schedules), **options
) -> dict[str, tuple[float, float]]:
    """(Idle share of device-time, activations on the fullest device) by schedule.

    The unit of memory is what a device keeps of one micro-batch for all of its stages, so that
    1F1B has ``devices``. It is kept until the backward of the weights is done.

    >>> memory_and_bubble(4, 8, ["gpipe", "1f1b"])
    {'gpipe': (0.2727272727272727, 8.0), '1f1b': (0.2727272727272727, 4.0)}
    """
    points = {}
    for name in names:
        timeline = same_work(name, devices, microbatches, **options)
        share = devices / timeline.evidence.schedule.stages
        peak = memory_over_time(timeline, activation=float(share)).peak.bytes
        points[name] = (timeline.bubble_fraction, peak)
    return points
