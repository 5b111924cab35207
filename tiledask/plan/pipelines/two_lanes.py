"""Schedules with two lanes on each device: of a V, or of two streams of micro-batches that meet.

    rank 0     stage 0    stage 7        rank 0     stage 0    stage 3'
    rank 1     stage 1    stage 6        rank 1     stage 1    stage 2'
    rank 2     stage 2    stage 5        rank 2     stage 2    stage 1'
    rank 3       stage 3, stage 4        rank 3     stage 3    stage 0'

In a V ``stages`` is twice the number of devices: every device holds an early chunk, whose
activations live long, and a late one. In DualPipe and Chimera there are two replicas of the model:
even micro-batches go down the devices, odd up. A device's order is written in words for its steps,
a kind and a lane, whose micro-batches count up:

F0 F0 F1 I1 W1 F0+B1      the next F0 takes lane 0's next micro-batch; F0+B1 is done at once
"""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.validate import most_kept, needs

__all__ = ["chimera", "dualpipe", "dualpipev", "in_blocks", "zb_v"]


def zb_v(stages: int, microbatches: int) -> Schedule:
    """ZB-V: no bubble within a device's span, in the memory of 1F1B (arXiv 2401.10241, section 6).

    When F, I and W of a chunk take equally long and m >= 2p - 1, the makespan is the least there
    is: (p-1) F + m (time of both chunks). A device keeps at most 2p chunk activations, each half
    of a 1F1B stage's. Raises ScheduleError for an odd number of stages.
    """
    places, p = _v_places(stages), stages // 2
    n = max(microbatches, 2 * p - 1)  # as PyTorch: with fewer, those beyond m are left out
    steps = [
        [
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
        for d in range(p)
    ]
    return _from_steps(steps, [places], microbatches, "zb-v")


def dualpipe(stages: int, microbatches: int) -> Schedule:
    """DualPipe: one stage and its mirror image on each device, so that all weights are there twice
    (DeepSeek-V3, arXiv 2412.19437, figure 5).

    As DeepSeek's for an even m of at least 2p. A device keeps at most p + 1 activations. In
    the README's table (F&B the seconds of a pair, B of a full backward) a device idles
    (p/2 - 1)(F&B + B - 3W). Raises ScheduleError for an odd number of stages.
    """
    if stages % 2:
        middle = f"two directions meet in the middle, and {stages} devices have none"
        raise ScheduleError(f"{middle}; use {stages + 1} stages")
    half, each = stages // 2, max(-(-microbatches // 2), stages)
    down, other = list(range(stages)), str.maketrans("01", "10")
    steps = [list(_meeting(half, each, d)) for d in range(half)]
    steps += [[word.translate(other) for word in words] for words in reversed(steps)]
    return _from_steps(steps, [down, down[::-1]], microbatches, "dualpipe")


def dualpipev(stages: int, microbatches: int) -> Schedule:
    """DualPipeV, DualPipe cut in half: each stage is there once. As DeepSeek's for m >= 2p."""
    places, half = _v_places(stages), stages // 2
    steps = [_meeting(half, max(microbatches, stages), d) for d in range(half)]
    return _from_steps(steps, [places], microbatches, "dualpipev")


def _meeting(p: int, n: int, d: int) -> Iterator[str]:
    """Of the device that is d-th of p from the outside, for n micro-batches in each lane."""
    behind = p - 1 - d
    last = "10" * (d + 1)  # the lanes of the last backwards: half of them in full
    split = last[d + 1 :]
    weights = iter(split + "0" * behind)
    meetings = [step for _ in range(n - 2 * p + d + 1) for step in ("F0+B1", "F1+B0")]
    if not behind and meetings:  # in the middle the first pair is done one after the other
        meetings[:1] = ["F0", "B1"]
    yield from ["F0"] * (2 * behind)
    yield from ["F0", "F1"] * (d + 1)
    yield from ["I1", "W1", "F1"] * behind
    yield from meetings
    yield from ["B1", "F1+B0"] * behind
    yield from (f"B{lane}" for lane in last[: d + 1])
    yield from (f"I{lane}" for lane in split)
    for _ in range(behind):
        yield from (f"W{next(weights)}", "I0")
    yield from (f"W{lane}" for lane in weights)


def _from_steps(
    steps: Iterable[Iterable[str]], places: list[list[int]], microbatches: int, name: str
) -> Schedule:
    """The schedule whose devices do these ``steps``. Micro-batches from ``microbatches`` on are
    left out, so that steps for more serve for fewer; what is left of a pair is then done alone."""
    orders, pairs = list[list[Action]](), list[Action]()
    for device, words in enumerate(steps):
        lanes = [
            (stage, count(r, len(places)), deque[int](), deque[int]())
            for r, row in enumerate(places)
            for stage, there in enumerate(row)
            if there == device
        ]
        orders.append([])
        for word in words:
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


def _v_places(stages: int) -> list[int]:
    """The device of each stage of a V."""
    if stages % 2:
        rule = "a V has two stages on a device"
        raise ScheduleError(f"{rule}; use {stages + 1} stages, not {stages}")
    return [*range(stages // 2), *reversed(range(stages // 2))]


# -- what a device does in each slot ---------------------------------------------------------------


def chimera(stages: int, microbatches: int) -> Schedule:
    """Chimera: half the bubble of 1F1B for twice the weights (arXiv 2107.06925, figure 3).

    Units of p micro-batches follow one another without a flush: (2m + p - 2) F if B is as long as F
    and m a multiple of an even p. A device keeps p activations at most, and takes a backward first,
    then the forward that has come furthest.
    """
    down = list(range(stages))
    places, kept = [down, down[::-1]], [0] * stages
    orders: list[list[Action]] = [[] for _ in down]
    # heaps of (forward, unit, minus the stage, micro-batch): the first goes first
    ready: list[list[tuple[bool, int, int, int]]] = [[] for _ in down]
    able = [(True, 0, i) for i in range(microbatches)]
    while able or any(ready):
        for forward, stage, i in able:
            heappush(ready[places[i % 2][stage]], (forward, i // stages, -stage, i))
        able = []
        free = [d for d in down if ready[d] and (not ready[d][0][0] or kept[d] < stages)]
        for device in free:
            forward, _, up, i = heappop(ready[device])
            orders[device].append(Action("BF"[forward], -up, i))
            kept[device] += 1 if forward else -1
            if forward:
                able.append((1 - up < stages, min(1 - up, stages - 1), i))
            elif up:
                able.append((False, -up - 1, i))
    return Schedule.of(orders, places, "chimera")


def in_blocks(
    name: str,
    each: int,
    gap: int,
    offsets: tuple[tuple[int, int, int], ...],
    stages: int,
    microbatches: int,
) -> Schedule:
    """A V of building blocks, one every 6 slots (arXiv 2405.15362). ``offsets``: of F0, F1, I1 and
    I0 a slot, so many p, and so many more, and d; W has the rest. Where p is a multiple of
    ``each``, I1 and I0 are ``gap`` slots later. Then a device that would wait does the next thing
    that it can, in the memory of the blocks; W in turn, but once the forwards of its first chunk
    are through, only when it can do nothing else."""
    places, p = _v_places(stages), stages // 2
    later = np.array([0, 0, gap, gap]) * (p % each == 0)
    left = [
        _blocks(later + np.array(offsets) @ (p, 1, d), d, microbatches, stages) for d in range(p)
    ]
    blocks = Schedule.of(left, places)
    waits, most = needs(blocks), max(most_kept(blocks)[0])
    orders: list[list[Action]] = [[] for _ in left]
    kept, done, change = [0] * p, set[Action](), {"F": 1, "I": 0, "W": -1}
    while any(left):
        slot = list[tuple[int, Action]]()
        for device, rest in enumerate(left):
            height = peak = kept[device]
            seen, found, weight = set[tuple[str, int]](), None, None
            for a in rest:  # of each kind and stage only the first can be done now
                if a[:2] not in seen:
                    seen.add(a[:2])
                    fits = a is rest[0] or a.kind != "F" or peak < most
                    if fits and done.issuperset(waits[a]):
                        weight = weight or a
                        if a.kind != "W" or ("F", device, microbatches - 1) not in done:
                            found = a
                            break
                    if len(seen) == 6:  # F, I and W of two chunks
                        break
                height += change[a.kind]
                peak = max(peak, height)
            if action := found or weight:
                slot.append((device, action))
        for device, action in slot:
            left[device].remove(action)
            orders[device].append(action)
            kept[device] += change[action.kind]
        done |= {action for _, action in slot}
    return Schedule.of(orders, places, name)


def _blocks(slots: np.ndarray, device: int, microbatches: int, stages: int) -> list[Action]:
    """A device's building blocks, with W in the slots that are free."""
    up = stages - 1 - device
    block = list(zip(slots.tolist(), "FFII", (device, up, up, device), strict=True))
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
