"""The schedules whose backward is one action: layer-wise, GPipe, 1F1B, and their loops."""

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.intervals import split
from tiledask.plan.pipelines.schedule import Columns, Schedule
from tiledask.plan.whole import MOST_COUNT, whole_number

__all__ = [
    "chunks_each",
    "count_of",
    "eager_one_forward_one_backward",
    "even_groups",
    "gpipe",
    "interleaved",
    "looped_bfs",
    "naive",
    "one_forward_one_backward",
]


def naive(stages: int, microbatches: int) -> Schedule:
    """Layer-wise execution: one micro-batch goes all the way forward and back, then the next.

    F0 .. .. B0 F1 .. .. B1      with equal stages each device
    .. F0 B0 .. .. F1 B1 ..      computes 1 / stages of the time
    """
    numbers = np.repeat(np.arange(microbatches), 2)
    kinds = np.tile([0, 1], microbatches)
    rows = (Columns.of(kinds, s, numbers) for s in range(stages))
    return Schedule.of_columns(rows, range(stages), "naive")


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965, figure 2c).

    F0 F1 .. .. B0 B1      every device keeps the activations
    .. F0 F1 B0 B1 ..      of all micro-batches
    """
    numbers = np.tile(np.arange(microbatches), 2)
    kinds = np.repeat([0, 1], microbatches)
    rows = (Columns.of(kinds, s, numbers) for s in range(stages))
    return Schedule.of_columns(rows, range(stages), "gpipe")


def one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """A backward as soon as there is one (PipeDream-flush; arXiv 2104.04473, figure 3).

    Stage s keeps the activations of at most stages - s micro-batches.
    """
    return _one_and_one(stages, microbatches, "1f1b", 1)


def eager_one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """1F1B with twice as many forwards ahead, so that results on their way are not waited for.

    Stage s keeps the activations of at most 2 (stages - s) - 1 micro-batches. While a result
    travels no longer than an action takes, its latency is paid only on the way in and out
    (eager-1F1B, arXiv 2211.05322).
    """
    return _one_and_one(stages, microbatches, "eager-1f1b", 2)


def _one_and_one(stages: int, microbatches: int, name: str, ahead: int) -> Schedule:
    """Before its first backward a device does ``ahead`` forwards for each stage behind it."""
    numbers = np.arange(microbatches)
    rows = (
        _alternate(Columns.of(0, s, numbers), Columns.of(1, s, numbers), ahead * (stages - 1 - s))
        for s in range(stages)
    )
    return Schedule.of_columns(rows, range(stages), name)


def interleaved(stages: int, microbatches: int, devices: int) -> Schedule:
    """1F1B with several chunks of layers per device (arXiv 2104.04473, section 2.2).

    Stage s is on device s mod devices; v = stages / devices. Micro-batches go in groups: a
    device takes a whole group through its first chunk, then through its next. Groups have
    ``devices`` micro-batches each; where that does not divide, there are fewer and larger
    groups, as even as possible.
    """
    chunks = chunks_each(stages, devices)
    groups = even_groups(microbatches, max(1, microbatches // devices))
    numbers = np.concatenate([np.tile(group, chunks) for group in groups])

    def walk(kind: int, device: int, order: range) -> Columns:
        mine = device + devices * np.array(order)
        return Columns.of(
            kind, np.concatenate([np.repeat(mine, len(group)) for group in groups]), numbers
        )

    rows = (
        _alternate(
            walk(0, d, range(chunks)),
            walk(1, d, range(chunks)[::-1]),
            warmup=2 * (devices - 1 - d) + (chunks - 1) * len(groups[0]),
        )
        for d in range(devices)
    )
    return Schedule.of_columns(rows, (s % devices for s in range(stages)), "interleaved")


def looped_bfs(stages: int, microbatches: int, devices: int) -> Schedule:
    """GPipe with several chunks per device: every micro-batch through a chunk, then the next.

    Breadth-first pipeline parallelism (arXiv 2211.05953). Stage s is on device s mod devices.
    """
    chunks = chunks_each(stages, devices)
    numbers = np.tile(np.arange(microbatches), 2 * chunks)
    kinds = np.repeat([0, 1], chunks * microbatches)

    def row(device: int) -> Columns:
        there = np.arange(device, stages, devices)
        back_and_forth = np.concatenate([there, there[::-1]])
        return Columns.of(kinds, np.repeat(back_and_forth, microbatches), numbers)

    rows = map(row, range(devices))
    return Schedule.of_columns(rows, (s % devices for s in range(stages)), "looped-bfs")


def _alternate(forwards: Columns, backwards: Columns, warmup: int) -> Columns:
    """``warmup`` forwards, then forward and backward in turns, then the backwards left over."""
    count = len(forwards.kind)
    warmup = min(warmup, count)
    turn = np.arange(count)
    of_forward = np.where(turn < warmup, turn, 2 * turn - warmup)
    of_backward = np.where(turn < count - warmup, 2 * turn + warmup + 1, turn + count)
    rows = []
    for f, b in zip(forwards, backwards, strict=True):
        row = np.empty(2 * count, f.dtype)
        row[of_forward], row[of_backward] = f, b
        rows.append(row)
    return Columns(*rows)


def even_groups(count: int, groups: int) -> list[range]:
    """0 .. count - 1 in ``groups`` runs, the larger ones first."""
    return [range(*ends) for ends in split(0, count, groups)]


def chunks_each(stages: int, devices: int) -> int:
    count_of(devices, "devices")
    if stages % devices:
        near = {stages - stages % devices, stages + devices - stages % devices} - {0}
        raise ScheduleError(
            f"every device needs equally many stages, and {stages} stages do not divide over "
            f"{devices} devices; use {' or '.join(map(str, sorted(near)))} stages"
        )
    return stages // devices


def count_of(value: int, name: str) -> int:
    return whole_number(name, value, 1, MOST_COUNT, error=ScheduleError)
