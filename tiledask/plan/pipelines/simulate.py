"""When each action of a schedule runs: the longest path over turns and data.

start(a) = max( end of the action before a on its device,
                end of each result a needs  [+ its way, if it comes from another device] )

How results travel is in transfers/: beside the work, or in its place, or both ends at once where a
transfer needs both its ends. Weights that are gathered are
one more thing to wait for.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan.pipelines.bound import Evidence
from tiledask.plan.pipelines.longest_path import longest_path
from tiledask.plan.pipelines.needs import checked
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedule as by_name
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.transfers.links import Links, PerLink

__all__ = ["Times", "durations", "simulate", "together"]

Times = float | Sequence[float] | Sequence[Sequence[float]]
"""Seconds: one number, one per stage, or one per stage and micro-batch."""


def _or_named(simulated: Callable[..., Timeline]) -> Callable[..., Timeline]:
    """``simulated``, and of a schedule's name and numbers too."""
    times = tuple(signature(simulated).parameters)[1:]

    @wraps(simulated)
    def either(schedule: Schedule | str, *numbers: Any, **options: Any) -> Timeline:
        if isinstance(schedule, str):
            given = {name: options.pop(name) for name in times if name in options}
            return simulated(by_name(schedule, *numbers, **options), **given)
        return simulated(schedule, *numbers, **options)

    return either


@_or_named
def simulate(
    schedule: Schedule,
    forward: Times = 1.0,
    backward: Times | None = None,
    latency: PerLink = 0.0,
    backward_input: Times | None = None,
    backward_weight: Times | None = None,
    *,
    overlapped: Times | None = None,
    block_bytes: float | Sequence[float] = 0.0,
    bandwidth: PerLink = float("inf"),
    transfers: str = "overlapped",
) -> Timeline:
    """The Timeline of ``schedule`` if every action takes exactly the time given.

    ``simulate("1f1b", 4, 8, forward=1.0)`` makes the schedule by its name, of 4 stages and 8
    micro-batches, with whatever else `schedule` takes; times then have their names.

    forward, backward                 seconds of F and of a full B; backward is 2.0 unless given.
    backward_input, backward_weight   seconds of I and W. Given both, a full B takes their sum
                                      unless ``backward`` says otherwise; given one, the other
                                      is what is left of B; given none, each is half of B.
    overlapped                        seconds of a forward and a backward that a device does at
                                      once (DualPipe), per forward; their sum unless given.
    latency                           seconds from one stage to the next, either way, if they
                                      are on different devices.
    block_bytes, bandwidth            bytes of a boundary's activations, and bytes/s of a link:
                                      block_bytes / bandwidth more on the way, in which the link
                                      carries nothing else. A link leads from one device to one
                                      other, and carries blocks in the order of their making.
    transfers                         "overlapped": the devices compute meanwhile.
                                      "blocking": the sender does nothing else until the block is
                                      in a buffer of the receiver, who computes meanwhile, and
                                      waits only if it lacks the block.
                                      "rendezvous": a transfer occupies both ends for that time,
                                      from when both have come to it. Between two actions a device
                                      sends the results of the first, then receives what the second
                                      uses, one after the other.
                                      "paired": the same, but all transfers between two actions
                                      are posted at once, and it goes on when all are done; so
                                      Megatron does it (send_forward_recv_backward).
    Each time is a number, a value per stage, or a table [stages][microbatches]; latency and
    bandwidth are a number, a value per boundary between stages, or a table [from device][to
    device]. Raises ScheduleError for a schedule that cannot run, and for times that are negative,
    not finite or of the wrong shape; DeadlockError, one of them, where devices wait in a circle, as
    in 1F1B by "rendezvous": of two neighbours each sends, and neither receives.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> t = simulate(schedule("1f1b", stages=4, microbatches=8), forward=1.0, backward=2.0)
    >>> t.makespan, round(t.bubble_fraction, 4), t.bubble_overhead, t.peak_in_flight
    (33.0, 0.2727, 0.375, (4, 3, 2, 1))
    >>> t.lower_bound, t.bound.why
    (33.0, 'device 4: 3 s until work reaches it, 24 s of work, 6 s from it to the end')
    >>> t.critical_path
    CriticalPath(22 actions, 33 s of compute on 4 devices, 0 s of latency, most on device 4)
    >>> pair = schedule("gpipe", 2, 1)
    >>> [simulate(pair, 3, 3, 1.5, transfers=how).makespan for how in ("blocking", "rendezvous")]
    [15.0, 15.0]
    """
    if not isinstance(schedule, Schedule):
        raise ScheduleError(
            f"a schedule is td.schedule('1f1b', 4, 8), or its name and the two numbers, got "
            f"{short(schedule)}"
        )
    seconds = durations(schedule, forward, backward, backward_input, backward_weight)
    both = together(schedule, seconds, overlapped)
    links = Links.of(schedule, latency, block_bytes, bandwidth, transfers)
    path = longest_path(schedule, seconds, both, links) if schedule.is_complete else None
    if path is None:
        checked(schedule)  # says what is wrong
        raise AssertionError("a schedule that passes every check did not run")
    return Timeline(
        schedule.devices,
        schedule.device,
        schedule.kind,
        schedule.stage,
        schedule.microbatch,
        path.start,
        path.end,
        evidence=Evidence(schedule, seconds, both, links),
    )


def together(schedule: Schedule, seconds: np.ndarray, overlapped: Times | None) -> np.ndarray:
    """Seconds of a forward and a backward at once, by forward: [stages, microbatches or 1].

    -1 stands for the sum of both. Raises ScheduleError for less than the longer of both.
    """
    if overlapped is None:
        return np.full((schedule.stages, 1), -1.0)
    both = _table(overlapped, "overlapped", schedule.stages, schedule.microbatches)
    first = np.flatnonzero(schedule.paired)
    at_once = _of(schedule, first, both[None], kind=0)
    alone = np.maximum(_of(schedule, first, seconds), _of(schedule, first + 1, seconds))
    if (at_once < alone).any():
        worst = int(np.argmax(alone - at_once))
        raise ScheduleError(
            f"a forward and a backward at once take at least as long as the longer of them alone: "
            f"overlapped is {at_once[worst]:g} s and one alone {alone[worst]:g} s"
        )
    return both


def _of(
    schedule: Schedule, positions: np.ndarray, table: np.ndarray, kind: int | None = None
) -> np.ndarray:
    """What ``table`` [kinds, stages, microbatches or 1] says of the actions there."""
    kinds = schedule.kind[positions] if kind is None else kind
    number = schedule.microbatch[positions] if table.shape[2] > 1 else 0
    found: np.ndarray = table[kinds, schedule.stage[positions], number]
    return found


def durations(
    schedule: Schedule,
    forward: Times,
    backward: Times | None,
    backward_input: Times | None,
    backward_weight: Times | None,
) -> np.ndarray:
    """Seconds by kind: [4, stages, microbatches], or [4, stages, 1] if all micro-batches agree."""

    def table(times: Times, name: str) -> np.ndarray:
        return _table(times, name, schedule.stages, schedule.microbatches)

    given = {"backward_input": backward_input, "backward_weight": backward_weight}
    I, W = (None if times is None else table(times, name) for name, times in given.items())
    if backward is None and I is not None and W is not None:
        B = I + W
    else:
        B = table(2.0 if backward is None else backward, "backward")
    if I is None:
        I = B / 2 if W is None else B - W
    if W is None:
        W = B - I
    for name, times in (("backward_input", I), ("backward_weight", W)):
        if (times < 0).any():
            raise ScheduleError(
                f"the part given is more than the whole: {name} would be {times.min():g} of a "
                f"backward of {B.min():g} seconds; give backward=, or both parts"
            )
    return np.stack(np.broadcast_arrays(table(forward, "forward"), B, I, W))


def _table(times: Times, name: str, stages: int, microbatches: int) -> np.ndarray:
    """``times`` as float [stages, microbatches], or [stages, 1] if all micro-batches agree."""
    try:
        values = np.asarray(times, float)
    except (TypeError, ValueError):
        raise ScheduleError(f"{name} must be numbers of seconds, got {short(times)}") from None
    if values.shape not in ((), (stages,), (stages, microbatches)):
        raise ScheduleError(
            f"{name} must be one number, {stages} numbers (one per stage) or a table of "
            f"{stages} x {microbatches} (stage x micro-batch); got shape {values.shape}"
        )
    if not (np.isfinite(values) & (values >= 0)).all():
        wrong = values[~(np.isfinite(values) & (values >= 0))].flat[0]
        raise ScheduleError(f"{name} must be finite and 0 or more seconds, got {wrong:g}")
    return values if values.ndim == 2 else np.broadcast_to(values, stages)[:, None]
