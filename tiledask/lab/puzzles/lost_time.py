"""Where a simulated run loses its time, in words: the device and the action to look at first."""

import numpy as np

from tiledask.plan.pipelines.needs import peaks
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import COMPUTE, Timeline
from tiledask.plan.units import format_seconds

__all__ = ["busiest", "fullest", "idle_parts", "longest_wait"]


def longest_wait(run: Timeline) -> str:
    """The longest wait between two actions of a device, or for its first if there is no other;
    empty if none waits.

    >>> import tiledask as td
    >>> longest_wait(td.simulate(td.schedule("gpipe", 2, 2), 1, 2))
    'longest wait: 3 s before 0B0, from 2 s on'
    """
    rows = np.flatnonzero(np.isin(run.kind, COMPUTE))
    waited = run.waits.true_idle + run.waits.transfer
    if not waited.any():
        return ""
    inner = np.append(False, run.waits.device[1:] == run.waits.device[:-1])
    k = int(np.argmax(np.where(inner, waited, waited * 1e-9)))
    at, sent = rows[k], float(run.waits.transfer[k])
    action = f"{run.stage[at]}{run.kind[at]}{run.microbatch[at]}"
    part = f", {format_seconds(sent)} of it for a transfer" if sent else ""
    since = format_seconds(float(run.start[at] - waited[k])) if run.start[at] > waited[k] else "0 s"
    return (
        f"longest wait: {format_seconds(float(waited[k]))} before {action}, from {since} on{part}"
    )


def idle_parts(run: Timeline) -> str:
    """Shares of all idle time before devices' first actions, between actions, after the last.

    >>> import tiledask as td
    >>> idle_parts(td.simulate(td.schedule("gpipe", 2, 2), 1, 2))
    'of the idle time 17 % is before the first actions of devices, 50 % between actions, 33 % after'
    """
    before = after = 0.0
    for device in range(run.devices):
        mine = (run.device == device) & np.isin(run.kind, COMPUTE)
        begin = float(run.start[mine].min(initial=run.makespan))  # the end if it does nothing
        before += begin
        after += run.makespan - float(run.end[mine].max(initial=begin))
    if not run.idle:
        return ""
    first, last = before / run.idle, after / run.idle
    return (
        f"of the idle time {100 * first:.0f} % is before the first actions of devices, "
        f"{100 * max(0.0, 1 - first - last):.0f} % between actions, {100 * last:.0f} % after"
    )


def busiest(run: Timeline) -> str:
    """The device that works longest, beside the one that works least."""
    busy = run.busy_per_device
    most, least = int(np.argmax(busy)), int(np.argmin(busy))
    if busy[most] <= busy[least] * (1 + 1e-9):
        return f"every device works {format_seconds(busy[most])}"
    return (
        f"device {most + 1} works longest, {format_seconds(busy[most])}, device {least + 1} "
        f"{format_seconds(busy[least])}"
    )


def fullest(order: Schedule) -> str:
    """How many activations a device keeps at most, and the action from which on it does.

    >>> import tiledask as td
    >>> fullest(td.schedule("gpipe", 2, 3))
    '3 kept from 0F2 on'
    """
    found = list(peaks(order))
    device = max(range(order.devices), key=lambda d: found[d][0])
    kept, turn = found[device]
    return f"{kept:g} kept from {order.orders[device][turn]} on"
