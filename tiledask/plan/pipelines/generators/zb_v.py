"""Schedules whose stages go down the devices and come back up: in a V, or in several waves.

    rank 0     stage 0    stage 7        the first and the last stage share a device, so that
    rank 1     stage 1    stage 6        every device holds an early chunk, whose activations
    rank 2     stage 2    stage 5        live long, and a late one, whose activations do not;
    rank 3       stage 3, stage 4        between 3 and 4 nothing is sent

In a V ``stages`` is twice the number of devices: stage s is on device s, or on 2p - 1 - s.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.generators.classic import count_of
from tiledask.plan.pipelines.generators.given import Given, PerStage
from tiledask.plan.pipelines.generators.lanes import Lane, from_steps, half_of, zigzag
from tiledask.plan.pipelines.needs import peak_in_flight
from tiledask.plan.pipelines.schedule import Action, Schedule

__all__ = ["v_auto", "v_half", "v_min", "wave", "zb_v"]


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


def v_half(stages: int, microbatches: int) -> Schedule:
    """V-Half: about half of the memory of 1F1B, and less idle time (arXiv 2405.15362).

    The paper's building block, repeated every 6 slots; then each device that would wait does
    the next thing it can without more memory. With p > 2 devices, m >= 2p and F = I = W the
    makespan is that of the authors' program. Raises ScheduleError for an odd number of stages.

    >>> v_half(8, 8)
    Schedule(v-half: 8 stages on 4 devices, 8 micro-batches, 192 actions)
    """
    return _squeezed(_half(half_of(stages), microbatches))


def v_min(stages: int, microbatches: int) -> Schedule:
    """V-Min: about a third of the memory of 1F1B (arXiv 2405.15362).

    What is said of :func:`v_half` holds for it."""
    return _squeezed(_minimum(half_of(stages), microbatches))


def _half(p: int, microbatches: int, period: int = 6) -> Schedule:
    gap = 0 if p % 2 else 3
    return _repeated(
        lambda d: (2 * d, 3 * p - 2 - d, 3 * p + gap - 1 + 2 * d, 6 * p + gap - 2 - d),
        p,
        microbatches,
        period,
        "v-half",
    )


def _minimum(p: int, microbatches: int, period: int = 6) -> Schedule:
    gap = 0 if p % 3 else 2
    return _repeated(
        lambda d: (d, 2 * p - 1 - d, 2 * p + gap + d, 4 * p + gap - 1 - d),
        p,
        microbatches,
        period,
        "v-min",
    )


def _repeated(
    slots: Callable[[int], tuple[int, int, int, int]],
    devices: int,
    microbatches: int,
    period: int,
    name: str,
) -> Schedule:
    """A building block every ``period`` slots: ``slots(d)`` has F0, F1, I1 and I0, and W fills the
    rest. The longer the period, the less is kept."""

    def order(device: int) -> list[Action]:
        down, up = device, 2 * devices - 1 - device
        block = zip(slots(device), (("F", down), ("F", up), ("I", up), ("I", down)), strict=True)
        placed = sorted(
            (slot + period * i, Action(kind, stage, i))
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

    return Schedule.of(map(order, range(devices)), zigzag(2 * devices, devices), name)


def _squeezed(schedule: Schedule) -> Schedule:
    """In slots of equal length, within the activations that it keeps."""
    slots = Given.of(schedule.stages, 1, 1, 1, limit=max(peak_in_flight(schedule)))
    return slots.squeezed(schedule)


def v_auto(
    stages: int,
    microbatches: int,
    forward: PerStage = 1.0,
    backward_input: PerStage = 1.0,
    backward_weight: PerStage = 1.0,
    latency: float = 0.0,
    memory_limit: float | None = None,
    activation: float = 1.0,
    weight_part: float = 0.5,
    tries: int = 0,
    goal: str = "makespan",
) -> Schedule:
    """The best order in a V that is found for these times within a memory.

    ZB-V and the building blocks of V-Half and V-Min (arXiv 2405.15362), repeated as often as the
    memory allows, are squeezed by the given times, with W in turn, last, or only where it ends
    before the next result comes (arXiv 2401.10241, section 3.1); the order with the least makespan
    (or span) is returned. So it is never slower than "zb-v", "v-half" and "v-min", if these fit.

    Times, memory, ``tries`` and ``goal`` as in :func:`zb_auto`, but of a stage, two of which are on
    each device: ``activation`` is a chunk's. Default of ``memory_limit``: stages * activation,
    which is what ZB-V and 1F1B of half as many stages take.

    Raises ScheduleError for an odd number of stages, or if not even one micro-batch fits.

    >>> v_auto(4, 3, memory_limit=2)
    Schedule(v-auto: 4 stages on 2 devices, 3 micro-batches, 36 actions)
    """
    p, limit = half_of(stages), stages * activation if memory_limit is None else memory_limit
    times = forward, backward_input, backward_weight, latency
    given = Given.of(stages, *times, limit, activation, weight_part)
    given.check_room(2)
    bases = [zb_v(stages, microbatches)]
    for block in (_half, _minimum):
        periods = (block(p, microbatches, period) for period in range(6, 6 * p + 9))
        bases += [next(filter(given.fits, periods))]
    found = [*bases, v_half(stages, microbatches), v_min(stages, microbatches)]
    for base in filter(given.fits, bases):
        found += [given.squeezed(base, weights) for weights in ("in turn", "last", "between")]
        found.append(given.squeezed(base, "between", gradients_first=True))
    best = replace(given.best(found, goal), name="v-auto")
    return given.searched(best, tries, goal)


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
    slots = Given.of(stages, 1, 1, 1, limit=stages * microbatches)
    return slots.squeezed(Schedule.of(orders, place, "wave"))
