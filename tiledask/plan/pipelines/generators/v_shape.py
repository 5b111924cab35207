"""Schedules whose stages go down the devices and come back up, in a V.

    rank 0     stage 0    stage 7        the first and the last stage share a device, so that
    rank 1     stage 1    stage 6        every device holds an early chunk, whose activations
    rank 2     stage 2    stage 5        live long, and a late one, whose activations do not;
    rank 3       stage 3, stage 4        between 3 and 4 nothing is sent

In a V ``stages`` is twice the number of devices: stage s is on device s, or on 2p - 1 - s. A
device's order is written in words for its steps, a kind and a lane, whose micro-batches count up:

F0 F0 F1 I1 W1 F0+B1      lane 0 and lane 1 are the two chunks of a device; the next F0 takes
                          lane 0's next micro-batch; F0+B1 is done at once
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.validate import needs, peak_in_flight

__all__ = ["Lane", "from_steps", "half_of", "v_from_steps", "v_half", "v_min", "zb_v"]

Lane = tuple[int, Iterable[int]]
"""One chunk of a device: a stage, and the micro-batches that pass through it."""


def zb_v(stages: int, microbatches: int) -> Schedule:
    """ZB-V: no bubble within a device's span, in the memory of 1F1B (arXiv 2401.10241, section 6).

    When F, I and W of a chunk take equally long and m >= 2p - 1, the makespan is the least there
    is: (p-1) F + m (time of both chunks). A device keeps at most 2p chunk activations, each half
    of a 1F1B stage's. Raises ScheduleError for an odd number of stages.
    """
    p = half_of(stages)
    n = max(microbatches, 2 * p - 1)  # as PyTorch: with fewer, those beyond m are left out

    def steps(d: int) -> list[str]:
        return [
            *["F0"] * (2 * (p - d) - 1),
            *["F1", "F0"] * d,
            *["F1", "I1", "W1"] * (p - d),
            *["F0", "I0", "W0", "F1", "I1", "W1"] * (n - (2 * p - 1 - d)),
            *["I0", "W0", "F1", "I1", "W1"] * (p - 1 - d),
            *["I0", "I1"] * d,
            *["I0", "W0"] * (p - d),
            *["W1"] * d,
            *["W0"] * d,
        ]

    return v_from_steps(steps, p, microbatches, "zb-v")


def v_half(stages: int, microbatches: int) -> Schedule:
    """V-Half: about half of the memory of 1F1B, and less idle time (arXiv 2405.15362).

    With p > 2 devices, m >= 2p and F = I = W the makespan is that of the authors' program. Raises
    ScheduleError for an odd number of stages.
    """
    p = half_of(stages)
    gap = 0 if p % 2 else 3
    slots = [(2 * d, 3 * p - 2 - d, 3 * p + gap - 1 + 2 * d, 6 * p + gap - 2 - d) for d in range(p)]
    return _repeated(slots, microbatches, "v-half")


def v_min(stages: int, microbatches: int) -> Schedule:
    """V-Min: about a third of the memory of 1F1B (arXiv 2405.15362); as :func:`v_half`."""
    p = half_of(stages)
    gap = 0 if p % 3 else 2
    slots = [(d, 2 * p - 1 - d, 2 * p + gap + d, 4 * p + gap - 1 - d) for d in range(p)]
    return _repeated(slots, microbatches, "v-min")


def _repeated(slots: Sequence[tuple[int, ...]], microbatches: int, name: str) -> Schedule:
    """The paper's building block every 6 slots: ``slots[d]`` has F0, F1, I1 and I0, and W the rest.

    Then a device that would wait does the next thing that it can, in the memory of the blocks. What
    is left of them always can run, so there is no deadlock. W is done in turn, but once the
    forwards of its first chunk are through a device, only when it can do nothing else.
    """
    last = 2 * len(slots) - 1
    left = [_blocks(each, d, last - d, microbatches) for d, each in enumerate(slots)]
    blocks = Schedule.of(left, v_places(len(slots)), name)
    waits, most = needs(blocks), max(peak_in_flight(blocks))
    orders: list[list[Action]] = [[] for _ in left]
    kept, forwards, done = [0] * len(left), [microbatches] * len(left), set[Action]()
    change = {"F": 1, "I": 0, "W": -1}

    def turn_of(device: int) -> int | None:
        """Which of what is left is done now. Of each kind and stage only the first can be."""
        height = peak = kept[device]
        seen, weight = set(), None
        for turn, a in enumerate(left[device]):
            if a[:2] not in seen:
                seen.add(a[:2])
                fits = turn == 0 or a.kind != "F" or peak < most
                if fits and done.issuperset(waits[a]):
                    if a.kind != "W" or forwards[device]:
                        return turn
                    weight = turn if weight is None else weight
                if len(seen) == 6:  # F, I and W of two chunks
                    break
            height += change[a.kind]
            peak = max(peak, height)
        return weight

    while any(left):
        slot = []
        for device, rest in enumerate(left):
            if (turn := turn_of(device)) is not None:
                slot.append(action := rest.pop(turn))
                orders[device].append(action)
                kept[device] += change[action.kind]
                forwards[device] -= action[:2] == ("F", device)
        done |= set(slot)
    return Schedule.of(orders, blocks.places, name)


def _blocks(slots: tuple[int, ...], down: int, up: int, microbatches: int) -> list[Action]:
    """A device's building blocks, with W in the slots that are free."""
    block = list(zip(slots, "FFII", (down, up, up, down), strict=True))
    placed = sorted(
        (n + 6 * i, Action(kind, stage, i)) for n, kind, stage in block for i in range(microbatches)
    )
    actions, weights, turn = list[Action](), list[Action](), placed[0][0]
    for slot, action in placed:
        free = max(0, slot - turn)
        actions += [*weights[:free], action]
        weights, turn = weights[free:], slot + 1
        if action.kind == "I":
            weights.append(action._replace(kind="W"))
    return [*actions, *weights]


# -- orders from words -----------------------------------------------------------------------------


def from_steps(
    steps: Callable[[int], Iterable[str]],
    lanes: list[list[Lane]],
    place: Iterable[int] | Iterable[Iterable[int]],
    microbatches: int,
    name: str,
) -> Schedule:
    """The schedule whose device d does ``steps(d)`` on ``lanes[d]``.

    Micro-batches from ``microbatches`` on are left out, so that steps for more of them serve
    for fewer; what is left of a pair is then done alone.
    """
    orders, pairs = [list[Action]() for _ in lanes], list[Action]()
    for device, order in enumerate(orders):
        mine = [(s, iter(numbers), deque[int](), deque[int]()) for s, numbers in lanes[device]]
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
    lanes: list[list[Lane]] = [
        [(d, count()), (2 * devices - 1 - d, count())] for d in range(devices)
    ]
    return from_steps(steps, lanes, v_places(devices), microbatches, name)


def half_of(stages: int) -> int:
    """The devices of a V, which holds two stages on each. Raises ScheduleError for odd stages."""
    if stages % 2:
        raise ScheduleError(
            f"a V has two stages on a device; use {stages + 1} stages, not {stages}"
        )
    return stages // 2


def v_places(devices: int) -> list[int]:
    """The device of each stage: down the devices and up again."""
    return [*range(devices), *reversed(range(devices))]
