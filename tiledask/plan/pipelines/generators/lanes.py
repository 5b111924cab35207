"""A device's order from words for its steps: a kind and a lane, whose micro-batches count up.

F0 F0 F1 I1 W1 F0+B1      lane 0 and lane 1 are the two chunks of a device; the next F0 takes
                          lane 0's next micro-batch; F0+B1 is done at once
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Action, Schedule

__all__ = ["Lane", "from_steps", "half_of", "v_from_steps", "v_places"]

Lane = tuple[int, Iterable[int]]
"""One chunk of a device: a stage, and the micro-batches that pass through it."""


def from_steps(
    steps: Callable[[int], Iterable[str]],
    lanes: Callable[[int], Iterable[Lane]],
    place: Iterable[int] | Iterable[Iterable[int]],
    devices: int,
    microbatches: int,
    name: str,
) -> Schedule:
    """The schedule whose device d does ``steps(d)`` on ``lanes(d)``.

    Micro-batches from ``microbatches`` on are left out, so that steps for more of them serve
    for fewer; what is left of a pair is then done alone.
    """
    orders: list[list[Action]] = [[] for _ in range(devices)]
    pairs = []
    for device, order in enumerate(orders):
        mine = [
            (stage, iter(numbers), deque[int](), deque[int]()) for stage, numbers in lanes(device)
        ]
        for word in steps(device):
            block = []
            for part in word.split("+"):
                kind, (stage, numbers, forwards, inputs) = part[0], mine[int(part[1:])]
                if kind == "F":
                    forwards.append(microbatch := next(numbers))
                else:
                    microbatch = (inputs if kind == "W" else forwards).popleft()
                if kind == "I":
                    inputs.append(microbatch)
                if microbatch < microbatches:
                    block.append(Action(kind, stage, microbatch))
            order += block
            pairs += block[:-1]
    return Schedule.of(orders, place, name, pairs)


def v_from_steps(
    steps: Callable[[int], Iterable[str]], devices: int, microbatches: int, name: str
) -> Schedule:
    """The same where lane 0 goes down the devices and lane 1 up again."""
    last = 2 * devices - 1
    lanes = {d: [(d, count()), (last - d, count())] for d in range(devices)}
    places = v_places(devices)
    return from_steps(steps, lanes.__getitem__, places, devices, microbatches, name)


def half_of(stages: int) -> int:
    """The devices of a V, which holds two stages on each. Raises ScheduleError for odd stages."""
    if stages % 2:
        raise ScheduleError(
            f"a V has two stages on every device, and {stages} stages are odd; "
            f"use {stages + 1} stages"
        )
    return stages // 2


def v_places(devices: int) -> list[int]:
    """The device of each stage: down the devices and up again."""
    return [*range(devices), *reversed(range(devices))]
