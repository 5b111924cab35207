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

__all__ = ["from_steps", "v_half", "v_min", "v_places", "zb_v"]


def zb_v(stages: int, microbatches: int) -> Schedule:
    """ZB-V: no bubble within a device's span, in the memory of 1F1B (arXiv 2401.10241, section 6).

    When F, I and W of a chunk take equally long and m >= 2p - 1, the makespan is the least there
    is: (p-1) F + m (time of both chunks). A device keeps at most 2p chunk activations, each half
    of a 1F1B stage's. Raises ScheduleError for an odd number of stages.
    """
    places, p = v_places(stages), stages // 2
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

    return from_steps(steps, [places], microbatches, "zb-v")


def v_half(stages: int, microbatches: int) -> Schedule:
    """V-Half: about half of the memory of 1F1B, and less idle time (arXiv 2405.15362).

    With p > 2 devices, m >= 2p and F = I = W the makespan is that of the authors' program. Raises
    ScheduleError for an odd number of stages.
    """
    places, p = v_places(stages), stages // 2
    gap = 0 if p % 2 else 3
    slots = [(2 * d, 3 * p - 2 - d, 3 * p + gap - 1 + 2 * d, 6 * p + gap - 2 - d) for d in range(p)]
    return _repeated(slots, places, microbatches, "v-half")


def v_min(stages: int, microbatches: int) -> Schedule:
    """V-Min: about a third of the memory of 1F1B (arXiv 2405.15362); as :func:`v_half`."""
    places, p = v_places(stages), stages // 2
    gap = 0 if p % 3 else 2
    slots = [(d, 2 * p - 1 - d, 2 * p + gap + d, 4 * p + gap - 1 - d) for d in range(p)]
    return _repeated(slots, places, microbatches, "v-min")


def _repeated(
    slots: Sequence[tuple[int, ...]], places: list[int], microbatches: int, name: str
) -> Schedule:
    """The paper's building block every 6 slots: ``slots[d]`` has F0, F1, I1 and I0, and W the rest.

    Then a device that would wait does the next thing that it can, in the memory of the blocks. What
    is left of them always can run, so there is no deadlock. W is done in turn, but once the
    forwards of its first chunk are through a device, only when it can do nothing else.
    """
    left = [_blocks(each, d, microbatches, len(places)) for d, each in enumerate(slots)]
    blocks = Schedule.of(left, places)
    waits, most = needs(blocks), max(peak_in_flight(blocks))
    orders: list[list[Action]] = [[] for _ in left]
    kept, done, change = [0] * len(left), set[Action](), {"F": 1, "I": 0, "W": -1}

    def chosen(device: int) -> Action | None:
        """What of the rest is done now. Of each kind and stage only the first can be."""
        height = peak = kept[device]
        seen, weight = set[tuple[str, int]](), None
        for a in left[device]:
            if a[:2] not in seen:
                seen.add(a[:2])
                fits = a is left[device][0] or a.kind != "F" or peak < most
                if fits and done.issuperset(waits[a]):
                    if a.kind != "W" or ("F", device, microbatches - 1) not in done:
                        return a
                    weight = weight or a
                if len(seen) == 6:  # F, I and W of two chunks
                    break
            height += change[a.kind]
            peak = max(peak, height)
        return weight

    while any(left):
        slot = [(d, a) for d, rest in enumerate(left) if rest and (a := chosen(d))]
        for device, action in slot:
            left[device].remove(action)
            orders[device].append(action)
            kept[device] += change[action.kind]
        done |= {action for _, action in slot}
    return Schedule.of(orders, places, name)


def _blocks(slots: tuple[int, ...], device: int, microbatches: int, stages: int) -> list[Action]:
    """A device's building blocks, with W in the slots that are free."""
    up = stages - 1 - device
    block = list(zip(slots, "FFII", (device, up, up, device), strict=True))
    placed = sorted(
        (n + 6 * i, Action(kind, stage, i)) for n, kind, stage in block for i in range(microbatches)
    )
    actions, weights, turn = list[Action](), deque[Action](), placed[0][0]
    for slot, action in placed:
        while weights and turn < slot:
            actions.append(weights.popleft())
            turn += 1
        actions.append(action)
        turn = slot + 1
        if action.kind == "I":
            weights.append(action._replace(kind="W"))
    return [*actions, *weights]


# -- orders from words -----------------------------------------------------------------------------


def from_steps(
    steps: Callable[[int], Iterable[str]], places: list[list[int]], microbatches: int, name: str
) -> Schedule:
    """The schedule whose device d does ``steps(d)``: its lanes are the stages that it has in the
    rows of ``places``, which the micro-batches take in turn.

    Micro-batches from ``microbatches`` on are left out, so that steps for more of them serve
    for fewer; what is left of a pair is then done alone.
    """
    orders, pairs = list[list[Action]](), list[Action]()
    for device in range(1 + max(places[0])):
        lanes = [
            (stage, count(r, len(places)), deque[int](), deque[int]())
            for r, row in enumerate(places)
            for stage, there in enumerate(row)
            if there == device
        ]
        orders.append([])
        for word in steps(device):
            block = []
            for part in word.split("+"):
                kind, (stage, numbers, forwards, inputs) = part[0], lanes[int(part[1:])]
                if kind == "F":
                    forwards.append(microbatch := next(numbers))
                else:
                    microbatch = (inputs if kind == "W" else forwards).popleft()
                if kind == "I":
                    inputs.append(microbatch)
                if microbatch < microbatches:
                    block.append(Action(kind, stage, microbatch))
            orders[-1] += block
            pairs += block[:-1]
    return Schedule.of(orders, places, name, pairs)


def v_places(stages: int) -> list[int]:
    """The device of each stage of a V: down the devices and up again. Raises ScheduleError for odd
    stages."""
    if stages % 2:
        raise ScheduleError(
            f"a V has two stages on a device; use {stages + 1} stages, not {stages}"
        )
    return [*range(stages // 2), *reversed(range(stages // 2))]
