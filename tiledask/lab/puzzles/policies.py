"""An order of actions from a policy: a few lines of Python that say what a device does next.

    def next_action(device, ready, done):       # called whenever a device is free
        backwards = [a for a in ready if a.kind == "B"]
        return (backwards or ready)[0]

``ready``: the actions of this device whose inputs are there, by micro-batch, never empty.
``done``: what this device has done, in order. None waits until another action is ready.
"""

import heapq
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.needs import needs
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.simulate import simulate

__all__ = ["Policy", "order_of_policy"]

_SLACK = 1 + 1e-12
"""What arrives together arrives together, whatever its sum of seconds is rounded to."""
Policy = Callable[[int, list[Action], list[Action]], Action | str | None]


def order_of_policy(policy: Policy, work: Schedule, times: Mapping[str, Any]) -> Schedule:
    """The order in which ``policy`` does the actions of ``work``, each on its device there.

    ``times``: what `simulate` takes: forward, backward, ..., latency. ScheduleError where the
    policy names what is not ready, or waits while nothing more can come.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> work = schedule("gpipe", stages=2, microbatches=2)
    >>> print(order_of_policy(lambda device, ready, done: ready[0], work, {}).to_text())
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1
    """
    latency = times.get("latency", 0.0)
    spans = simulate(work, **times)
    names = map(Action, spans.kind.tolist(), spans.stage.tolist(), spans.microbatch.tolist())
    seconds = dict(zip(names, (spans.end - spans.start).tolist(), strict=True))
    before, place = needs(work), work.place
    waiting, ended = list(work), dict[Action, float]()
    orders: list[list[Action]] = [[] for _ in range(work.devices)]
    free = [0.0] * work.devices

    def there(action: Action) -> float:
        """When its inputs are on its device; inf as long as one has not begun."""
        arrivals = (
            ended.get(need, inf) + latency * (place[need.stage] != place[action.stage])
            for need in before[action]
        )
        return max(arrivals, default=0.0)

    moments = [0.0]
    while moments:
        now = heapq.heappop(moments)
        for device in range(len(orders)):
            ready = [
                a
                for a in waiting
                if place[a.stage] == device and max(there(a), free[device]) <= now * _SLACK
            ]
            if not ready:
                continue
            ready.sort(key=lambda a: (a.microbatch, a.stage, a.kind))
            chosen = _chosen(policy(device, list(ready), list(orders[device])), device, ready)
            if chosen is None:
                continue
            waiting.remove(chosen)
            orders[device].append(chosen)
            free[device] = ended[chosen] = now + seconds[chosen]
            for moment in {free[device], free[device] + latency} - {now}:
                heapq.heappush(moments, moment)
            if free[device] == now:  # what takes no time leaves room for the next
                heapq.heappush(moments, now)
    if waiting:
        stuck = {place[a.stage]: a for a in reversed(waiting) if there(a) < inf}
        device, action = min(stuck.items())
        raise ScheduleError(
            f"the policy waits for ever: device {device} could do {action} and was told None, "
            f"and nothing else is under way; {len(waiting)} actions are left"
        )
    return Schedule.of(orders, place)


def _chosen(said: Any, device: int, ready: list[Action]) -> Action | None:
    if said is None:
        return None
    for action in ready:
        if said in (action, str(action), f"{action.kind}{action.microbatch}"):
            return action
    raise ScheduleError(
        f"the policy named {said!r} for device {device}, where {', '.join(map(str, ready))} "
        f"{'are' if len(ready) > 1 else 'is'} ready; return one of them, or None to wait"
    )
