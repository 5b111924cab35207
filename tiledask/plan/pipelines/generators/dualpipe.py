"""DualPipe and DualPipeV: two streams of micro-batches meet, and a device overlaps one's forward
with the other's backward (DeepSeek-V3, arXiv 2412.19437, figure 5).

    DualPipe    rank 0     stage 0   stage 3'      two replicas of the model in opposite directions;
                rank 1     stage 1   stage 2'      even micro-batches go down the devices, odd up
                rank 2     stage 2   stage 1'
                rank 3     stage 3   stage 0'

    DualPipeV   rank 0     stage 0   stage 3       the upper half alone: one replica in a V,
                rank 1     stage 1   stage 2       which every micro-batch goes down and up
"""

from collections.abc import Iterator
from itertools import count

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.generators.lanes import Lane, from_steps, half_of, zigzag
from tiledask.plan.pipelines.schedule import Schedule

__all__ = ["dualpipe", "dualpipev"]


def dualpipe(stages: int, microbatches: int) -> Schedule:
    """DualPipe: one stage and its mirror image on each device, so that all weights are there twice.

    As DeepSeek's for an even m of at least 2p. A device keeps at most p + 1 activations. In
    the README's table (F&B the seconds of a pair, B of a full backward) a device idles
    (p/2 - 1)(F&B + B - 3W). Raises ScheduleError for an odd number of stages.

    >>> dualpipe(4, 8)
    Schedule(dualpipe: 4 stages on 4 devices, 8 micro-batches, 74 actions)
    """
    if stages % 2:
        raise ScheduleError(
            f"two directions meet in the middle of the devices, and {stages} devices have none; "
            f"use {stages + 1} stages"
        )
    half = stages // 2
    down, up = range(stages), range(stages - 1, -1, -1)

    def lanes(d: int) -> list[Lane]:
        both = [Lane(d, count(0, 2)), Lane(stages - 1 - d, count(1, 2))]
        return both if d < half else both[::-1]

    each = max(-(-microbatches // 2), stages)
    return from_steps(
        lambda d: _steps(min(d, stages - 1 - d), half, each),
        lanes,
        [down, up],
        stages,
        microbatches,
        "dualpipe",
    )


def dualpipev(stages: int, microbatches: int) -> Schedule:
    """DualPipeV: DualPipe cut in half, so that each stage is there once.

    As DeepSeek's and PyTorch's for m >= 2p; a device keeps at most 2p + 1 chunk activations.
    Raises ScheduleError for an odd number of stages.

    >>> dualpipev(8, 10)
    Schedule(dualpipev: 8 stages on 4 devices, 10 micro-batches, 182 actions)
    """
    p = half_of(stages)
    return from_steps(
        lambda d: _steps(d, p, max(microbatches, 2 * p)),
        lambda d: [Lane(d, count()), Lane(stages - 1 - d, count())],
        zigzag(stages, p),
        p,
        microbatches,
        "dualpipev",
    )


def _steps(d: int, p: int, n: int) -> Iterator[str]:
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
