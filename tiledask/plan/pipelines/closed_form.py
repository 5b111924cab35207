"""What pencil and paper say about pipelines: utilisation, bubbles, makespans and lower bounds.

p devices, m micro-batches, v chunks per device, F and B the seconds of a stage's forward and
full backward, c the seconds between two stages. Two shares are in use; they are not the same:
  fraction   idle / (devices x makespan)   of all device-time
  overhead   idle / busy                   over the ideal
"""

from collections.abc import Iterable, Sequence

from tiledask.errors import ScheduleError

__all__ = [
    "bubble_fraction",
    "bubble_overhead",
    "gpipe_makespan",
    "interleaved_makespan",
    "lower_bound",
    "naive_utilisation",
    "one_forward_one_backward_makespan",
    "speedup",
    "split_lower_bound",
]


def naive_utilisation(devices: int) -> float:
    """Share of its time in which each of ``devices`` equal devices computes, one at a time: 1/p.

    Holds for any number of micro-batches, without latency (GPipe, arXiv 1811.06965, figure 2b).

    >>> naive_utilisation(2), naive_utilisation(4)
    (0.5, 0.25)
    """
    return 1 / devices


def bubble_fraction(devices: int, microbatches: int, chunks: int = 1) -> float:
    """Idle share of all device-time, (p - 1) / (v m + p - 1), of GPipe, 1F1B and interleaved 1F1B.

    Equal stages, no latency (GPipe, arXiv 1811.06965, section 2.3; v > 1: from the overhead).

    >>> round(bubble_fraction(4, 8), 4)
    0.2727
    """
    return (devices - 1) / (chunks * microbatches + devices - 1)


def bubble_overhead(devices: int, microbatches: int, chunks: int = 1) -> float:
    """Idle time over ideal time, (p - 1) / (v m) (arXiv 2104.04473, section 2.2).

    Equal stages, no latency; v > 1 is interleaved 1F1B with m a multiple of p.

    >>> bubble_overhead(4, 8), bubble_overhead(4, 8, chunks=2)
    (0.375, 0.1875)
    """
    return (devices - 1) / (chunks * microbatches)


def speedup(devices: int, microbatches: int) -> float:
    """How many times faster than one device: p m / (m + p - 1). Equal stages, no latency.

    >>> speedup(2, 4)
    1.6
    """
    return devices * microbatches / (microbatches + devices - 1)


def gpipe_makespan(
    forward: Sequence[float], backward: Sequence[float], microbatches: int, latency: float = 0.0
) -> float:
    """Seconds of GPipe with any stage times: sum F + (m-1) max F, the same for B, 2 (p-1) c.

    Each half is a flow shop of equal jobs, which the slowest stage paces.

    >>> gpipe_makespan([1, 2, 1, 1], [2, 4, 2, 2], microbatches=8)
    57.0
    """
    halves = sum(sum(t) + (microbatches - 1) * max(t) for t in (forward, backward))
    return float(halves + 2 * (len(forward) - 1) * latency)


def one_forward_one_backward_makespan(
    devices: int, microbatches: int, forward: float, backward: float, latency: float = 0.0
) -> float:
    """Seconds of 1F1B with equal stages: (m+p-1)(F+B) + c (2 (p-1) m/p + 2 (p-2)).

    For a latency that is small beside F and B, and m a multiple of p; each steady round trip
    pays the latency again, which GPipe does not. Reproduces the 1F1B rows of the Zero Bubble
    paper's Table 5. Raises ScheduleError if p does not divide m.

    >>> one_forward_one_backward_makespan(4, 8, 1, 2), gpipe_makespan([1] * 4, [2] * 4, 8, 0.25)
    (33.0, 34.5)
    >>> one_forward_one_backward_makespan(4, 8, 1, 2, latency=0.25)
    37.0
    """
    p, m = devices, microbatches
    if m % p and latency:
        raise ScheduleError(
            f"with latency this formula needs a multiple of {p} micro-batches, got {m}; simulate it"
        )
    hops = 2 * (p - 1) * m // p + 2 * (p - 2) if p > 1 else 0
    return float((m + p - 1) * (forward + backward) + latency * hops)


def interleaved_makespan(
    devices: int, microbatches: int, chunks: int, stage: float, latency: float = 0.0
) -> float:
    """Seconds of interleaved 1F1B as the Zero Bubble paper counts: mT + (p-1)T/v + ((2v-1)p-2)c.

    ``stage`` is T, the forward and backward seconds of all chunks of a device. From one chunk to
    the next only the first of each p micro-batches waits for what the device at the other end
    sends, and the others for nothing; a simulation, in which every one waits, gives p c more
    (Table 5 of arXiv 2401.10241).

    >>> interleaved_makespan(4, 8, 2, stage=6.0)
    57.0
    """
    p, m, v = devices, microbatches, chunks
    return m * stage + (p - 1) * stage / v + ((2 * v - 1) * p - 2) * latency


def lower_bound(
    forward: Sequence[float], backward: Sequence[float], microbatches: int, latency: float = 0.0
) -> float:
    """Seconds that no order beats, one stage per device and full backwards.

    Stage s starts when a micro-batch has come down, works m (F_s + B_s), and its last gradient
    has to go back up: the largest over s of sum over k < s of (F_k + B_k + 2c), + m (F_s + B_s).

    >>> lower_bound([1] * 4, [2] * 4, microbatches=8)
    33.0
    """
    return _bound(forward, backward, microbatches, latency, returns=True)


def split_lower_bound(
    forward: Sequence[float], backward: Sequence[float], microbatches: int, latency: float = 0.0
) -> float:
    """Seconds that no order beats, one stage per device, with the backward split in I and W.

    As :func:`lower_bound`, but a device can end with W, which nobody waits for: the largest over
    s of sum over k < s of (F_k + c), + m (F_s + B_s), with B = I + W.

    >>> split_lower_bound([1] * 4, [2] * 4, microbatches=8)
    27.0
    """
    return _bound(forward, backward, microbatches, latency, returns=False)


def _bound(
    forward: Iterable[float], backward: Iterable[float], m: int, c: float, returns: bool
) -> float:
    best = before = 0.0
    for f, b in zip(forward, backward, strict=True):
        best = max(best, before + m * (f + b))
        before += f + c + (b + c if returns else 0.0)
    return best
