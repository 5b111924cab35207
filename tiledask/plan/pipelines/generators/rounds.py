"""Schedules in rounds: some forwards to warm up, then a forward and a backward in turns.

1F1B, 3 stages, 4 micro-batches, and ZB-H1, which splits the backward in I and W:

    rank 0     F0 F1 F2 B0 F3 B1 B2 B3         F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
    rank 1     F0 F1 B0 F2 B1 F3 B2 B3         F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2     F0 B0 F1 B1 F2 B2 F3 B3         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

I, the gradient of the input, is what the stage before waits for; W, the gradient of the weights,
nobody waits for: it comes as many turns late as there are stages before.
"""

from collections.abc import Callable

from tiledask.errors import ScheduleError
from tiledask.plan.intervals import split
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.whole import MOST_COUNT, whole_number

__all__ = ["ALL", "count_of", "in_loops", "in_rounds"]

ALL = 10**9
"""Forwards ahead: every one there is."""


def in_rounds(name: str, ahead: int, late: int | None = None) -> Callable[..., Schedule]:
    """What makes the schedule with one stage on each device."""
    make = in_loops(name, ahead, late)
    return lambda stages, microbatches: make(stages, microbatches, stages)


def in_loops(name: str, ahead: int, late: int | None = None) -> Callable[..., Schedule]:
    """What makes the schedule with stage s on device s mod devices.

    A device does ``ahead`` forwards for each device behind it, then a forward and a backward in
    turns, then what is left. ``late``: the backward is split, and W comes so many turns after its
    I for each device before. Where a device has several chunks, groups of ``devices`` micro-batches
    go through all of them, one group after the other; where that does not divide, there are fewer
    and larger groups, as even as possible.
    """

    def make(stages: int, microbatches: int, devices: int) -> Schedule:
        chunks, rest = divmod(stages, count_of(devices, "devices"))
        if rest:
            near = sorted({stages - rest, stages + devices - rest} - {0})
            raise ScheduleError(
                f"every device needs equally many stages, and {stages} stages do not divide over "
                f"{devices} devices; use {' or '.join(map(str, near))} stages"
            )
        parts = 1 if ahead == ALL else max(1, microbatches // devices)
        groups = [range(*ends) for ends in split(0, microbatches, parts)]

        def order(d: int) -> list[Action]:
            mine, delay = range(d, stages, devices), (late or 0) * d
            forwards = [Action("F", s, i) for group in groups for s in mine for i in group]
            back = [(s, i) for group in groups for s in reversed(mine) for i in group]
            weights = [] if late is None else [Action("W", *each) for each in back]
            begun = ahead * (devices - 1 - d) + (chunks - 1) * len(groups[0])
            begun = len(forwards) if ahead == ALL else min(begun, len(forwards))
            done = forwards[:begun]
            for turn, each in enumerate(back):
                done += forwards[begun + turn : begun + turn + 1]
                done.append(Action("B" if late is None else "I", *each))
                done += weights[turn - delay : turn - delay + 1] if turn >= delay else []
            return done + weights[max(0, len(back) - delay) :]

        return Schedule.of(map(order, range(devices)), (s % devices for s in range(stages)), name)

    return make


def count_of(value: int, name: str) -> int:
    return whole_number(name, value, 1, MOST_COUNT, error=ScheduleError)
