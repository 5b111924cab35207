"""Schedules whose stages go down the devices and come back up, in a V.

    rank 0     stage 0    stage 7        the first and the last stage share a device, so that
    rank 1     stage 1    stage 6        every device holds an early chunk, whose activations
    rank 2     stage 2    stage 5        live long, and a late one, whose activations do not;
    rank 3       stage 3, stage 4        between 3 and 4 nothing is sent

In a V ``stages`` is twice the number of devices: stage s is on device s, or on 2p - 1 - s.
"""

from collections.abc import Callable

from tiledask.plan.pipelines.generators.lanes import half_of, v_from_steps, v_places
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.validate import needs, peak_in_flight

__all__ = ["v_half", "v_min", "zb_v"]


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

    The paper's building block, repeated every 6 slots; then each device that would wait does
    the next thing it can without more memory. With p > 2 devices, m >= 2p and F = I = W the
    makespan is that of the authors' program. Raises ScheduleError for an odd number of stages.

    >>> v_half(8, 8)
    Schedule(v-half: 8 stages on 4 devices, 8 micro-batches, 192 actions)
    """
    p = half_of(stages)
    gap = 0 if p % 2 else 3

    def slots(d: int) -> tuple[int, int, int, int]:
        return 2 * d, 3 * p - 2 - d, 3 * p + gap - 1 + 2 * d, 6 * p + gap - 2 - d

    return _repeated(slots, p, microbatches, "v-half")


def v_min(stages: int, microbatches: int) -> Schedule:
    """V-Min: about a third of the memory of 1F1B (arXiv 2405.15362).

    What is said of :func:`v_half` holds for it."""
    p = half_of(stages)
    gap = 0 if p % 3 else 2

    def slots(d: int) -> tuple[int, int, int, int]:
        return d, 2 * p - 1 - d, 2 * p + gap + d, 4 * p + gap - 1 - d

    return _repeated(slots, p, microbatches, "v-min")


def _repeated(
    slots: Callable[[int], tuple[int, int, int, int]], devices: int, microbatches: int, name: str
) -> Schedule:
    """A building block every 6 slots: ``slots(d)`` has F0, F1, I1 and I0, and W fills the rest;
    then with its gaps filled."""

    def order(device: int) -> list[Action]:
        down, up = device, 2 * devices - 1 - device
        block = zip(slots(device), (("F", down), ("F", up), ("I", up), ("I", down)), strict=True)
        placed = sorted(
            (slot + 6 * i, Action(kind, stage, i))
            for slot, (kind, stage) in block
            for i in range(microbatches)
        )
        actions, weights, turn = list[Action](), list[Action](), placed[0][0]
        for slot, action in placed:
            free = max(0, slot - turn)
            actions += [*weights[:free], action]
            weights, turn = weights[free:], slot + 1
            if action.kind == "I":
                weights.append(action._replace(kind="W"))
        return [*actions, *weights]

    return _filled(Schedule.of(map(order, range(devices)), v_places(devices), name))


def _filled(schedule: Schedule) -> Schedule:
    """``schedule`` in slots of equal length where a device that would wait does the next thing
    that it can.

    What is pulled ahead never passes the activations that it keeps. The given order can run, and
    what is left of it always can, so there is no deadlock. W is done in turn, but once the forwards
    of its first chunk are through a device does it only when it can do nothing else.
    """
    waits, most = needs(schedule), max(peak_in_flight(schedule))
    left = [list(order) for order in schedule.orders]
    orders: list[list[Action]] = [[] for _ in left]
    kept, forwards = [0] * len(left), [schedule.microbatches] * len(left)
    change = {"F": 1, "I": 0, "W": -1}
    done: set[Action] = set()

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
    return Schedule.of(orders, schedule.places, schedule.name)
