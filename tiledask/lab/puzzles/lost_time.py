"""Where a simulated run loses its time, in words: the device and the action to look at first."""

import numpy as np

from tiledask.plan.pipelines.needs import peaks
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_seconds

__all__ = ["fullest", "idle_causes", "longest_wait"]


def longest_wait(run: Timeline) -> str:
    """The longest wait between two actions of a device, or for its first if there is no other;
    empty if none waits.

    >>> import tiledask as td
    >>> longest_wait(td.simulate(td.schedule("gpipe", 2, 2), 1, 2))
    'longest wait: 3 s before 0B0, from 2 s on'
    """
    waits = run.waits
    waited = waits.true_idle + waits.transfer
    if not waited.any():
        return ""
    inner = np.append(False, np.diff(waits.device) == 0)
    k = int(np.argmax(np.where(inner, waited, waited * 1e-9)))
    at = np.flatnonzero(run.computes)[k]
    sent = f", {format_seconds(waits.transfer[k])} of it for a transfer" * bool(waits.transfer[k])
    since = format_seconds(waits.free[k]) if waits.free[k] else "0 s"
    action = f"{run.stage[at]}{run.kind[at]}{run.microbatch[at]}"
    return f"longest wait: {format_seconds(waited[k])} before {action}, from {since} on{sent}"


def idle_causes(run: Timeline) -> str:
    """The shares of all idle time by their causes; empty if there is none.

    >>> import tiledask as td
    >>> idle_causes(td.simulate(td.schedule("gpipe", 2, 2), 1, 2))
    'of the idle time 17 % is warm-up, 50 % dependency, 33 % draining'
    """
    shares = {cause: s / run.idle for cause, s in run.idle_time.total.items() if s > 0}
    told = [
        f"{100 * share:.0f} %{' is' * (not n)} {cause}"
        for n, (cause, share) in enumerate(shares.items())
    ]
    return f"of the idle time {', '.join(told)}" if told else ""


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
