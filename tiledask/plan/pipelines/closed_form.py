"""What pencil and paper say about pipelines: bubbles, makespans, bounds, the fewest micro-batches.

p devices, m micro-batches, v chunks per device, F and B the seconds of a stage's forward and
full backward, c the seconds between two stages. Two shares are in use; they are not the same:
  fraction   idle / (devices x makespan)   of all device-time
  overhead   idle / busy                   over the ideal
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import lcm

from tiledask.errors import ConfigError
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate

__all__ = [
    "bubble_fraction",
    "bubble_overhead",
    "fewest_microbatches",
    "lower_bound",
]

MOST, TRIED = 1_000_000, 100_000
"""Actions of one schedule; and of all that are simulated one after the other, some seconds."""


def bubble_fraction(devices: int, microbatches: int, chunks: int = 1) -> float:
    """Idle share of all device-time, (p - 1) / (v m + p - 1), of GPipe, 1F1B and interleaved 1F1B
    of equal stages without latency (arXiv 1811.06965, section 2.3).

    >>> round(bubble_fraction(4, 8), 4)
    0.2727
    """
    return (devices - 1) / (chunks * microbatches + devices - 1)


def bubble_overhead(devices: int, microbatches: int, chunks: int = 1) -> float:
    """Idle time over ideal time, (p - 1) / (v m), as there (arXiv 2104.04473, section 2.2).

    >>> bubble_overhead(4, 8), bubble_overhead(4, 8, chunks=2)
    (0.375, 0.1875)
    """
    return (devices - 1) / (chunks * microbatches)


def lower_bound(
    forward: Sequence[float],
    backward: Sequence[float],
    microbatches: int,
    latency: float = 0.0,
    split: bool = False,
) -> float:
    """Seconds that no order beats, one stage per device.

    Stage s starts when a micro-batch has come down, works m (F_s + B_s), and its last gradient
    has to go back up: the largest over s of sum over k < s of (F_k + B_k + 2c), + m (F_s + B_s).
    Where the backward is ``split`` in I and W a device can end with W, which nobody waits for: only
    the way down counts, F_k + c.

    >>> lower_bound([1] * 4, [2] * 4, microbatches=8), lower_bound([1] * 4, [2] * 4, 8, split=True)
    (33.0, 27.0)
    """
    best = way = 0.0
    for f, b in zip(forward, backward, strict=True):
        best = max(best, way + microbatches * (f + b))
        way += f + latency + (0.0 if split else b + latency)
    return best


def fewest_microbatches(
    make: Callable[[int], Schedule],
    wanted: Fraction,
    times: Mapping[str, Fraction | Sequence[Fraction]],
) -> list[tuple[int, Fraction]]:
    """(micro-batches, utilisation) of a number that falls short, and of one more, which reaches
    ``wanted``; the first is left out if that is one. Where none is found, only of the last tried.

    ``times``, seconds by `simulate`'s names, are whole units in it: 0.9 is 27 of 30, not nearly.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> times = {"forward": Fraction(1), "backward": Fraction(2)}
    >>> found = fewest_microbatches(lambda m: schedule("1f1b", 4, m), Fraction("0.9"), times)
    >>> [(m, str(u)) for m, u in found]
    [(26, '26/29'), (27, '9/10')]
    """
    each = {name: x if isinstance(x, Sequence) else [x] for name, x in times.items()}
    unit = 2 * lcm(*(x.denominator for row in each.values() for x in row))  # and of half a backward
    whole = {name: [float(x * unit) for x in row] for name, row in each.items()}
    units = {name: row if len(row) > 1 else row[0] for name, row in whole.items()}

    def share(m: int, bound: bool = False) -> Fraction:
        """The utilisation; or what no order of the same actions surpasses."""
        t = simulate(make(m), **units)
        seconds = t.lower_bound if bound else t.makespan
        if not seconds or seconds >= 2**53:
            raise ConfigError("a step takes no time, or times have too many digits to be exact")
        return Fraction(t.busy) / (t.devices * Fraction(seconds))

    # what the bound allows grows with m: no fewer than the first that it allows will do
    below, m, size = 0, 1, len(make(1))
    while share(m, bound=True) < wanted:
        below, m = m, 2 * m
        if m * size > MOST:
            return [(below, share(below))]
    m = bisect_left(range(m), wanted, below + 1, key=lambda k: share(k, bound=True))
    tried, left = [(k, share(k)) for k in (m - 1, m) if k], TRIED
    while tried[-1][1] < wanted and left > 0:
        m, left = m + 1, left - m * size
        tried = [tried[-1], (m, share(m))]
    return tried if tried[-1][1] >= wanted else tried[-1:]
