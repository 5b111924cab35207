"""Schedules in rounds: some forwards to warm up, then a forward and a backward in turns.

1F1B, 3 stages, 4 micro-batches, and ZB-H1, which splits the backward in I and W:

    rank 0     F0 F1 F2 B0 F3 B1 B2 B3         F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
    rank 1     F0 F1 B0 F2 B1 F3 B2 B3         F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2     F0 B0 F1 B1 F2 B2 F3 B3         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

I, the gradient of the input, is what the stage before waits for; W, the gradient of the weights,
nobody waits for: it comes as many turns late as there are stages before.
"""

from collections.abc import Callable

from tiledask.errors import ScheduleError
from tiledask.plan.intervals import split
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.whole import MOST_COUNT, whole_number

__all__ = [
    "count_of",
    "eager_one_forward_one_backward",
    "gpipe",
    "interleaved",
    "interleaved_zero_bubble",
    "looped_bfs",
    "naive",
    "one_forward_one_backward",
    "rounds",
    "zb_h1",
    "zb_h2",
]

Numbers = Callable[[int], int]
"""A number for each device."""


def naive(stages: int, microbatches: int) -> Schedule:
    """Layer-wise execution: one micro-batch goes all the way forward and back, then the next.

    With equal stages each device computes 1 / stages of the time.
    """
    return rounds("naive", stages, microbatches, stages, lambda d: 0)


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965, figure 2c): every device keeps
    the activations of all micro-batches."""
    return rounds("gpipe", stages, microbatches, stages, lambda d: microbatches)


def one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """A backward as soon as there is one (PipeDream-flush; arXiv 2104.04473, figure 3).

    Stage s keeps the activations of at most stages - s micro-batches.
    """
    return rounds("1f1b", stages, microbatches, stages, lambda d: stages - 1 - d)


def eager_one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """1F1B with twice as many forwards ahead, so that results on their way are not waited for.

    Stage s keeps the activations of at most 2 (stages - s) - 1 micro-batches. While a result
    travels no longer than an action takes, its latency is paid only on the way in and out
    (eager-1F1B, arXiv 2211.05322).
    """
    return rounds("eager-1f1b", stages, microbatches, stages, lambda d: 2 * (stages - 1 - d))


def interleaved(stages: int, microbatches: int, devices: int) -> Schedule:
    """1F1B with several chunks of layers per device (arXiv 2104.04473, section 2.2).

    Stage s is on device s mod devices; v = stages / devices. Micro-batches go in groups: a
    device takes a whole group through its first chunk, then through its next. Groups have
    ``devices`` micro-batches each; where that does not divide, there are fewer and larger
    groups, as even as possible.
    """
    groups = _groups(microbatches, devices)
    ahead = (stages // devices - 1) * len(groups[0])
    return rounds(
        "interleaved",
        stages,
        microbatches,
        devices,
        lambda d: 2 * (devices - 1 - d) + ahead,
        groups=groups,
    )


def looped_bfs(stages: int, microbatches: int, devices: int) -> Schedule:
    """GPipe with several chunks per device: every micro-batch through a chunk, then the next.

    Breadth-first pipeline parallelism (arXiv 2211.05953). Stage s is on device s mod devices.
    """
    return rounds("looped-bfs", stages, microbatches, devices, lambda d: stages * microbatches)


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """Zero bubble in the memory of 1F1B (arXiv 2401.10241, figure 2).

    If W <= F and m >= p, the longest span of a device is (p-1)(F+I-W) more than its work.
    Device d keeps at most p-d activations before their I, and d between I and W.
    """
    return rounds("zb-h1", stages, microbatches, stages, lambda d: stages - 1 - d, lambda d: d)


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """Zero bubble in about twice the memory of 1F1B (arXiv 2401.10241, figure 3).

    If W <= F, W <= I and m >= 2p-1, the longest span of a device is (p-1)(F+I-2W) more than its
    work: nothing when F = I = W. Device d keeps at most 2(p-d)-1 activations before their I, and
    2d between I and W.
    """
    return rounds(
        "zb-h2", stages, microbatches, stages, lambda d: 2 * (stages - 1 - d), lambda d: 2 * d
    )


def interleaved_zero_bubble(stages: int, microbatches: int, devices: int) -> Schedule:
    """ZB-H1 with several chunks of layers per device, as PyTorch's InterleavedZeroBubble.

    Stages, devices and groups of micro-batches are those of "interleaved"; the warm-up is one
    forward per device behind, not two. With one chunk per device it is ZB-H1.
    """
    groups = _groups(microbatches, devices)
    ahead = (stages // devices - 1) * len(groups[0])
    return rounds(
        "interleaved-zb",
        stages,
        microbatches,
        devices,
        lambda d: devices - 1 - d + ahead,
        lambda d: d,
        groups,
    )


def rounds(
    name: str,
    stages: int,
    microbatches: int,
    devices: int,
    warmup: Numbers,
    late: Numbers | None = None,
    groups: list[range] | None = None,
) -> Schedule:
    """The schedule whose device d does ``warmup(d)`` forwards, then a forward and a backward in
    turns, then what is left.

    ``late``: the backward is split, and W comes so many turns after its I. ``groups`` of
    micro-batches go through all chunks of a device, one group after the other.
    """
    if stages % devices:
        near = {stages - stages % devices, stages + devices - stages % devices} - {0}
        raise ScheduleError(
            f"every device needs equally many stages, and {stages} stages do not divide over "
            f"{devices} devices; use {' or '.join(map(str, sorted(near)))} stages"
        )
    groups = [range(microbatches)] if groups is None else groups

    def order(d: int) -> list[Action]:
        mine, delay = range(d, stages, devices), 0 if late is None else late(d)
        forwards = [Action("F", s, i) for group in groups for s in mine for i in group]
        back = [(s, i) for group in groups for s in reversed(mine) for i in group]
        weights = [] if late is None else [Action("W", *each) for each in back]
        begun = min(warmup(d), len(forwards))
        done = forwards[:begun]
        for turn, each in enumerate(back):
            if begun + turn < len(forwards):
                done.append(forwards[begun + turn])
            done.append(Action("B" if late is None else "I", *each))
            if weights and turn >= delay:
                done.append(weights[turn - delay])
        return done + weights[max(0, len(back) - delay) :]

    return Schedule.of(map(order, range(devices)), (s % devices for s in range(stages)), name)


def _groups(microbatches: int, devices: int) -> list[range]:
    """0 .. microbatches - 1 in runs of ``devices`` or more, the larger ones first."""
    count_of(devices, "devices")
    return [range(*ends) for ends in split(0, microbatches, max(1, microbatches // devices))]


def count_of(value: int, name: str) -> int:
    return whole_number(name, value, 1, MOST_COUNT, error=ScheduleError)
