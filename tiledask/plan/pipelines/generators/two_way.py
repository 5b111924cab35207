"""Two streams of micro-batches that meet: Chimera, DualPipe and DualPipeV.

DualPipe    rank 0     stage 0   stage 3'      two replicas of the model in opposite directions;
            rank 1     stage 1   stage 2'      even micro-batches go down the devices, odd up
            rank 2     stage 2   stage 1'
            rank 3     stage 3   stage 0'

DualPipeV is the upper half alone, one replica in a V; in Chimera the replicas fill each other's
bubbles, an action at a time.
"""

from collections.abc import Iterator
from functools import partial
from heapq import heappop, heappush

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.generators.v_shape import from_steps, v_places
from tiledask.plan.pipelines.schedule import Action, Schedule

__all__ = ["chimera", "dualpipe", "dualpipev"]


def chimera(stages: int, microbatches: int) -> Schedule:
    """Chimera, with every stage on two devices: half the bubble of 1F1B for twice the weights
    (arXiv 2107.06925, figure 3).

    Units of p micro-batches follow one another without a flush; if F and B take equally long
    and m is a multiple of an even p, the makespan is (2m + p - 2) F. A device keeps at most p
    activations. It takes a backward first, then the forward that has come furthest.
    """
    down = list(range(stages))
    places, kept = [down, down[::-1]], [0] * stages
    orders: list[list[Action]] = [[] for _ in down]
    # heaps of (rank, action)
    ready: list[list[tuple[tuple[bool, int, int, int], Action]]] = [[] for _ in down]

    def offer(kind: str, stage: int, microbatch: int) -> None:
        rank = kind == "F", microbatch // stages, -stage, microbatch
        heappush(ready[places[microbatch % 2][stage]], (rank, Action(kind, stage, microbatch)))

    for i in range(microbatches):
        offer("F", 0, i)
    while any(ready):  # a slot, in which every device does one action
        able = [d for d in down if ready[d] and (ready[d][0][1].kind == "B" or kept[d] < stages)]
        for device, (_, action) in [(d, heappop(ready[d])) for d in able]:
            kind, s, i = action
            orders[device].append(action)
            kept[device] += 1 if kind == "F" else -1
            if kind == "F":
                offer(*(("F", s + 1, i) if s + 1 < stages else ("B", s, i)))
            elif s:
                offer("B", s - 1, i)
    return Schedule.of(orders, places, "chimera")


def dualpipe(stages: int, microbatches: int) -> Schedule:
    """DualPipe: one stage and its mirror image on each device, so that all weights are there twice
    (DeepSeek-V3, arXiv 2412.19437, figure 5).

    As DeepSeek's for an even m of at least 2p. A device keeps at most p + 1 activations. In
    the README's table (F&B the seconds of a pair, B of a full backward) a device idles
    (p/2 - 1)(F&B + B - 3W). Raises ScheduleError for an odd number of stages.
    """
    if stages % 2:
        raise ScheduleError(
            f"two directions meet in the middle, and {stages} devices have none; use {stages + 1} "
            f"stages"
        )
    half, each = stages // 2, max(-(-microbatches // 2), stages)
    down, other = list(range(stages)), str.maketrans("01", "10")

    def steps(d: int) -> Iterator[str]:
        if d < half:
            return _steps(half, each, d)
        return (word.translate(other) for word in _steps(half, each, stages - 1 - d))

    return from_steps(steps, [down, down[::-1]], microbatches, "dualpipe")


def dualpipev(stages: int, microbatches: int) -> Schedule:
    """DualPipeV: DualPipe cut in half, so that each stage is there once.

    As DeepSeek's and PyTorch's for m >= 2p; a device keeps at most 2p + 1 chunk activations.
    Raises ScheduleError for an odd number of stages.
    """
    places = v_places(stages)
    steps = partial(_steps, stages // 2, max(microbatches, stages))
    return from_steps(steps, [places], microbatches, "dualpipev")


def _steps(p: int, n: int, d: int) -> Iterator[str]:
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
