"""Schedules whose stages go down the devices and come back up: in a V, or in several waves.

    device 0   stage 0    stage 7        the first and the last stage share a device, so that
    device 1   stage 1    stage 6        every device holds an early chunk, whose activations
    device 2   stage 2    stage 5        live long, and a late one, whose activations do not;
    device 3     stage 3, stage 4        between 3 and 4 nothing is sent

In a V ``stages`` is twice the number of devices: stage s is on device s, or on 2p - 1 - s.
"""

from collections import deque
from collections.abc import Callable
from itertools import count

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.generators.classic import count_of
from tiledask.plan.pipelines.generators.lanes import Lane, from_steps, half_of, zigzag
from tiledask.plan.pipelines.needs import needs, peak_in_flight
from tiledask.plan.pipelines.schedule import Action, Schedule

__all__ = ["v_half", "v_min", "wave", "zb_v"]


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

    place = zigzag(2 * p, p)
    return from_steps(
        steps,
        lambda d: [Lane(d, count()), Lane(2 * p - 1 - d, count())],
        place,
        p,
        microbatches,
        "zb-v",
    )


# --- from a feasible order to a better one -------------------------------------------------


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
    return _building_block(
        lambda d: (2 * d, 3 * p - 2 - d, 3 * p + gap - 1 + 2 * d, 6 * p + gap - 2 - d),
        p,
        microbatches,
        "v-half",
    )


def v_min(stages: int, microbatches: int) -> Schedule:
    """V-Min: about a third of the memory of 1F1B (arXiv 2405.15362).

    What is said of :func:`v_half` holds for it."""
    p = half_of(stages)
    gap = 0 if p % 3 else 2
    return _building_block(
        lambda d: (d, 2 * p - 1 - d, 2 * p + gap + d, 4 * p + gap - 1 - d),
        p,
        microbatches,
        "v-min",
    )


def _building_block(
    slots: Callable[[int], tuple[int, int, int, int]], devices: int, microbatches: int, name: str
) -> Schedule:
    """A block repeated every 6 slots: ``slots(d)`` has F0, F1, I1 and I0, and W fills the rest."""

    def order(device: int) -> list[Action]:
        down, up = device, 2 * devices - 1 - device
        block = zip(slots(device), (("F", down), ("F", up), ("I", up), ("I", down)), strict=True)
        placed = sorted(
            (slot + 6 * i, Action(kind, stage, i))
            for slot, (kind, stage) in block
            for i in range(microbatches)
        )
        actions: list[Action] = []
        weights: deque[Action] = deque()
        turn = placed[0][0]
        for slot, action in placed:
            for _ in range(min(slot - turn, len(weights))):
                actions.append(weights.popleft())
            actions.append(action)
            turn = slot + 1
            if action.kind == "I":
                weights.append(action._replace(kind="W"))
        return [*actions, *weights]

    repeated = Schedule.of(map(order, range(devices)), zigzag(2 * devices, devices), name)
    return _squeeze(repeated, max(peak_in_flight(repeated)))


def wave(stages: int, microbatches: int, devices: int) -> Schedule:
    """Several Vs one after the other: stages placed as in Hanayo's waves (arXiv 2308.15762).

    ``stages`` is a multiple of 2 * devices: two chunks per device and wave, so that no stage is
    there twice, and the next device is always a neighbour. The order is a rule of its own, not
    Hanayo's: a device does what it can for the earliest micro-batch. Meant for as many
    micro-batches as devices; with many more, "interleaved" idles and keeps less. Raises
    ScheduleError for another number of stages.

    >>> print(wave(4, 2, devices=2).to_text())
    0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1
    1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1
    """
    count_of(devices, "devices")
    if stages % (2 * devices):
        least = max(1, stages // (2 * devices))
        raise ScheduleError(
            f"a wave goes down and up the devices, and {stages} stages are no multiple of "
            f"2 x {devices} devices; use {2 * devices * least} stages"
        )
    place = zigzag(stages, devices)
    held = [[s for s in range(stages) if place[s] == d] for d in range(devices)]
    orders = [
        [
            Action(kind, s, i)
            for i in range(microbatches)
            for kind, mine in (("F", down), ("B", down[::-1]))
            for s in mine
        ]
        for down in held
    ]
    return _squeeze(Schedule.of(orders, place, "wave"), memory_limit=stages * microbatches)


SLOTS = {"F": 1, "B": 2, "I": 1, "W": 1}
"""How long each kind takes when orders are squeezed."""
KEPT = {"F": 1, "B": -1, "I": 0, "W": -1}
"""By how much each kind changes the activations kept."""


def _squeeze(schedule: Schedule, memory_limit: int) -> Schedule:
    """``schedule`` where a device that would wait does the next thing that it can.

    What is pulled ahead never passes the memory limit. Once the forwards of its first chunk are
    through, a device does W only when it can do nothing else. The given order can run, and
    what is left of it always can, so there is no deadlock.
    """
    waits = needs(schedule)
    left = [list(order) for order in schedule.orders]
    orders: list[list[Action]] = [[] for _ in left]
    free, kept = [0] * len(left), [0] * len(left)
    end: dict[Action, int] = {}
    forwards = [schedule.microbatches] * len(left)
    queues = [len({(a.kind, a.stage) for a in order}) for order in left]
    now = 0

    def is_ready(a: Action) -> bool:
        return all(end.get(b, now + 1) <= now for b in waits[a])

    while any(left):
        for d, rest in enumerate(left):
            if not rest or free[d] > now:
                continue
            turn = _next_turn(
                rest,
                is_ready,
                room=memory_limit - kept[d],
                weights_last=not forwards[d],
                queues=queues[d],
            )
            if turn is None:
                continue
            action = rest.pop(turn)
            orders[d].append(action)
            kept[d] += KEPT[action.kind]
            forwards[d] -= action.kind == "F" and action.stage == d
            end[action] = free[d] = now + SLOTS[action.kind]
        now += 1
    return Schedule.of(orders, schedule.place, schedule.name)


def _next_turn(
    rest: list[Action],
    is_ready: Callable[[Action], bool],
    room: int,
    weights_last: bool,
    queues: int,
) -> int | None:
    """The first turn in ``rest`` that is ready and, pulled ahead, leaves what is kept in ``room``.

    Of each kind and stage, ``queues`` of them, only the first action can be ready.
    """
    kept = high = 0
    weight, seen = None, set()
    for turn, action in enumerate(rest):
        queue = (action.kind, action.stage)
        if queue not in seen:
            seen.add(queue)
            if is_ready(action) and (turn == 0 or KEPT[action.kind] <= 0 or high < room):
                if action.kind != "W" or not weights_last:
                    return turn
                weight = turn if weight is None else weight
            if len(seen) == queues:
                break
        kept += KEPT[action.kind]
        high = max(high, kept)
    return weight
