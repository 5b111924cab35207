"""A device's order from words for its steps: a kind and a lane, whose micro-batches count up.

F0 F0 F1 I1 W1 F0+B1      lane 0 and lane 1 are the two chunks of a device; the next F0 takes
                          lane 0's next micro-batch; F0+B1 is done at once
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Action, Schedule

__all__ = ["Lane", "from_steps", "half_of", "zigzag"]


class Lane(NamedTuple):
    """One chunk of a device: a stage, and the micro-batches that pass through it."""

    stage: int
    microbatches: Iterable[int]


def from_steps(
    steps: Callable[[int], Iterable[str]],
    lanes: Callable[[int], Sequence[Lane]],
    place: Iterable[int] | Iterable[Iterable[int]],
    devices: int,
    microbatches: int,
    name: str,
) -> Schedule:
    """The schedule whose device d does ``steps(d)`` on ``lanes(d)``.

    Micro-batches from ``microbatches`` on are left out, so that steps for more of them serve
    for fewer; what is left of a pair is then done alone.
    """
    both = [_order(steps(d), lanes(d), microbatches) for d in range(devices)]
    orders = ([action for action, _ in row] for row in both)
    return Schedule.of(orders, place, name, ([pair for _, pair in row] for row in both))


def _order(
    steps: Iterable[str], lanes: Sequence[Lane], microbatches: int
) -> list[tuple[Action, bool]]:
    """(action, whether it is done at once with the next)."""
    numbers: list[Iterator[int]] = [iter(lane.microbatches) for lane in lanes]
    waiting = {kind: [deque[int]() for _ in lanes] for kind in "IW"}
    done = []
    for word in steps:
        block = []
        for part in word.split("+"):
            kind, lane = part[0], int(part[1:])
            if kind == "F":
                microbatch = next(numbers[lane])
                waiting["I"][lane].append(microbatch)
            else:
                microbatch = waiting["W" if kind == "W" else "I"][lane].popleft()
                if kind == "I":
                    waiting["W"][lane].append(microbatch)
            if microbatch < microbatches:
                block.append(Action(kind, lanes[lane].stage, microbatch))
        done += [(action, n + 1 < len(block)) for n, action in enumerate(block)]
    return done


def half_of(stages: int) -> int:
    """The devices of a V, which holds two stages on each. Raises ScheduleError for odd stages."""
    if stages % 2:
        raise ScheduleError(
            f"a V has two stages on every device, and {stages} stages are odd; "
            f"use {stages + 1} stages"
        )
    return stages // 2


def zigzag(stages: int, devices: int) -> list[int]:
    """The device of each stage: down the devices and up again, as often as needed."""
    there_and_back = [*range(devices), *reversed(range(devices))]
    return [there_and_back[s % (2 * devices)] for s in range(stages)]
