"""The table of schedules by name, and the one function that makes any of them.

Most are in rounds, a row of numbers: some forwards to warm up, then a forward and a backward in
turns. 1F1B, 3 stages, 4 micro-batches, and ZB-H1, which splits the backward in I and W:

    rank 0     F0 F1 F2 B0 F3 B1 B2 B3         F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
    rank 1     F0 F1 B0 F2 B1 F3 B2 B3         F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2     F0 B0 F1 B1 F2 B2 F3 B3         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

I, the gradient of the input, is what the stage before waits for; W, the gradient of the weights,
nobody waits for: it comes as many turns late as there are stages before.
"""

import inspect
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan.data import meant
from tiledask.plan.intervals import split
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.two_lanes import chimera, dualpipe, dualpipev, in_blocks, zb_v
from tiledask.plan.pipelines.zb_auto import zb_auto
from tiledask.plan.whole import MOST_COUNT, whole_number

__all__ = ["called", "layout_schedule", "schedule", "schedules"]

MOST_BLOCKS = 10**6  # stages x micro-batches: some seconds and a gigabyte; more is a typing error
ALL = 10**9  # forwards ahead: every one there is
HALF = (0, 0, 2), (3, -2, -1), (3, -1, 2), (6, -2, -1)  # slots of a block, as `in_blocks` says
THIRD = (0, 0, 1), (2, -1, -1), (2, 0, 1), (4, -1, -1)
_count = partial(whole_number, error=ScheduleError)


def looped(
    name: str, ahead: int, late: int | None, stages: int, microbatches: int, devices: int
) -> Schedule:
    """The schedule with stage s on device s mod devices: ``ahead`` forwards for each device behind,
    then a forward and a backward in turns, then what is left. ``late``: turns from I to W for each
    device before. Groups of ``devices`` micro-batches, or as even larger ones, go through all
    chunks of a device, one after the other."""
    chunks, rest = divmod(stages, _count("devices", devices, 1, MOST_COUNT))
    if rest:
        near = sorted({stages - rest, stages + devices - rest} - {0})
        raise ScheduleError(
            f"every device needs equally many stages, and {stages} stages do not divide over "
            f"{devices} devices; use {' or '.join(map(str, near))} stages"
        )
    parts = 1 if ahead == ALL else max(1, microbatches // devices)
    groups = split(0, microbatches, parts)
    # chunk and micro-batch of a device's forwards, one after the other
    chunk, number = np.hstack([np.mgrid[:chunks, a:b].reshape(2, -1) for a, b in groups])
    device, at = np.arange(devices)[:, None], np.arange(len(number))
    # forwards that a device does before its first backward
    begun = ahead * (devices - device - (ahead != ALL)) + (chunks - 1) * groups[0][1]
    # the turn of each action, by device: -1 for the first forwards, then a forward, a backward
    turns = [np.maximum(at - begun, -1), at + 0 * device]
    turns += [] if late is None else [at + late * device]
    order = np.argsort(np.hstack(turns), axis=1, kind="stable")
    kinds = [0, 1] if late is None else [0, 2, 3]
    back = [chunks - 1 - chunk] * (len(kinds) - 1)
    stage, kind = device + devices * np.hstack([chunk, *back])[order], np.repeat(kinds, len(at))
    columns = kind[order], stage, np.tile(number, len(kinds))[order]
    ends, place = np.arange(devices + 1) * order.shape[1], tuple(s % devices for s in range(stages))
    kind, stage, number = (column.ravel() for column in columns)
    return Schedule(kind, stage, number, np.zeros(kind.shape), ends, (place,), name)


def in_rounds(name: str, ahead: int, late: int | None, stages: int, microbatches: int) -> Schedule:
    """The same with a device for each stage."""
    return looped(name, ahead, late, stages, microbatches, stages)


schedules: dict[str, Callable[..., Schedule]] = {
    "naive": partial(in_rounds, "naive", 0, None),
    "gpipe": partial(in_rounds, "gpipe", ALL, None),
    "1f1b": partial(in_rounds, "1f1b", 1, None),
    "eager-1f1b": partial(in_rounds, "eager-1f1b", 2, None),
    "interleaved": partial(looped, "interleaved", 2, None),
    "looped-bfs": partial(looped, "looped-bfs", ALL, None),
    "zb-h1": partial(in_rounds, "zb-h1", 1, 1),
    "zb-h2": partial(in_rounds, "zb-h2", 2, 2),
    "zb-auto": zb_auto,
    "interleaved-zb": partial(looped, "interleaved-zb", 1, 1),
    "zb-v": zb_v,
    "v-half": partial(in_blocks, "v-half", 2, 3, HALF),
    "v-min": partial(in_blocks, "v-min", 3, 2, THIRD),
    "chimera": chimera,
    "dualpipe": dualpipe,
    "dualpipev": dualpipev,
}
"""Each takes stages and microbatches, the looped ones devices, "zb-auto" times and memory."""
WHAT = {
    "naive": "layer-wise: a micro-batch goes all the way forward and back, then the next",
    "gpipe": "all forwards, then all backwards (GPipe, arXiv 1811.06965, figure 2c)",
    "1f1b": "a backward as soon as there is one (PipeDream-flush; arXiv 2104.04473, figure 3)",
    "eager-1f1b": "1F1B with twice as many forwards ahead, to hide latency (arXiv 2211.05322)",
    "interleaved": "1F1B with chunks, a group of micro-batches through each (arXiv 2104.04473)",
    "looped-bfs": "GPipe with chunks, breadth first (arXiv 2211.05953)",
    "zb-h1": "1F1B with backwards in two, in its memory (zero bubble, arXiv 2401.10241)",
    "zb-h2": "the same in about twice that memory",
    "zb-auto": "the best of several such orders for given times within a memory (section 3.1)",
    "interleaved-zb": "ZB-H1 with chunks: one forward ahead for each device behind, not two",
    "zb-v": "chunks down the devices and back, backwards in two (arXiv 2401.10241, section 6)",
    "v-half": "the same in about half of the memory of 1F1B (arXiv 2405.15362)",
    "v-min": "and in about a third",
    "chimera": "two streams that meet, each stage on two devices (arXiv 2107.06925)",
    "dualpipe": "two streams that meet, a forward and a backward at once (DeepSeek-V3)",
    "dualpipev": "half of DualPipe, its stages down the devices and back",
}
"""What each does first or keeps, and its source."""
OF_PYTORCH = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved",
    "loopedbfs": "looped-bfs",
    "interleavedzerobubble": "interleaved-zb",
    "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipev",
}
"""What PyTorch calls them, in lower case; its classes' names begin with Schedule."""
LOOPED = ("interleaved", "looped-bfs", "interleaved-zb")  # any number of stages on each of devices=
V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipev")  # down the stages and back: two on each device
BOTH_WAYS = ("chimera", "dualpipe")  # two copies of the model, the second from its last stage on


def called(name: str) -> str:
    """The schedule's name, of that or PyTorch's or "layer-wise"; others come back as they are."""
    lower = str(name).lower()
    if lower.replace("-", "") == "layerwise":
        return "naive"
    return OF_PYTORCH.get(lower.removeprefix("schedule")) or (lower if lower in schedules else name)


def layout_schedule(name: str, stages: int, microbatches: int, devices: int) -> Schedule:
    """What a layout means by ``name``: 1F1B of several stages on a device is interleaved."""
    name = "interleaved" if name == "1f1b" and stages > devices else name
    options: dict[str, Any] = {"devices": devices} if name in LOOPED else {}
    return schedule(name, stages, microbatches, **options)


def schedule(
    name: str, stages: int, microbatches: int, *, forward_only: bool = False, **options: Any
) -> Schedule:
    """The schedule called ``name`` (see :data:`schedules`), for any number of each.

    PyTorch's names are taken too, as "Interleaved1F1B"; the orders are PyTorch's, but for the
    backwards of "LoopedBFS", which it does from the last micro-batch to the first.

    ``stages`` counts all stages of the model. "interleaved", "looped-bfs" and "interleaved-zb" put
    several on a device and need ``devices=``; "zb-v", "v-half", "v-min" and "dualpipev" put two on
    each. "zb-auto" is made for the seconds ``forward``, ``backward_input``, ``backward_weight`` and
    ``latency`` within a ``memory_limit``. ``forward_only`` leaves the backwards out.
    Raises ScheduleError for an unknown name or option, a count below 1, stages that do not
    divide over the devices, and a forward-only "naive" with several micro-batches, which as
    an order of actions is GPipe's.

    >>> print(schedule("1f1b", stages=2, microbatches=3).to_text())
    0F0,0F1,0B0,0F2,0B1,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
    """
    if (name := called(name)) not in schedules:
        there = f"there are {', '.join(schedules)}, and PyTorch's names, such as Interleaved1F1B"
        raise ScheduleError(f"no schedule {short(name)}; {meant(str(name), schedules)}{there}")
    counts = {"stages": stages, "microbatches": microbatches}
    size = prod(_count(*each, 1, MOST_COUNT) for each in counts.items())
    if size > MOST_BLOCKS:
        got = f"{short(stages)} x {short(microbatches)}; what repeats is seen with fewer"
        raise ScheduleError(f"there are {MOST_BLOCKS:,} stages x micro-batches at most, got {got}")
    takes = inspect.signature(schedules[name])
    try:
        takes.bind(stages, microbatches, **options)
    except TypeError as wrong:
        known = ", ".join(sorted({*takes.parameters, "forward_only"}))
        raise ScheduleError(f"{name!r} takes {known}: {wrong}") from None
    built = schedules[name](stages, microbatches, **options)
    if not forward_only:
        return built
    if built.name == "naive" and microbatches > 1:
        back = f"without backwards nothing holds the next of {microbatches} micro-batches back"
        raise ScheduleError(f"{back}: that is 'gpipe'; for layer-wise inference use microbatches=1")
    forwards = ([a for a in order if a.kind == "F"] for order in built.orders)
    return Schedule.of(forwards, built.places, f"{built.name}, forward only")
