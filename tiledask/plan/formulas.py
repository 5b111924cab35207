"""What can be said before anything is simulated or run: closed forms and bounds, with sources.

idle time   bubble_fraction, bubble_overhead, lower_bound of any schedule's makespan
memory      state_bytes of a rank, and the devices that hold them: minimum_devices
products    grids: how a number of ranks can be a mesh
losses      checkpointing, checkpoint_interval: how often to save what may be lost

Of a pipeline of p devices, m micro-batches, v chunks per device, F and B the seconds of a stage's
forward and full backward, c the seconds between two stages, two shares are in use:
  fraction   idle / (devices x makespan)   of all device-time
  overhead   idle / busy                   over the ideal
"""

from collections.abc import Sequence

from tiledask.plan.inputs.recipes import minimum_devices, state_bytes, zero3_minimum_degree
from tiledask.plan.products.product import grids
from tiledask.plan.timing.budget import checkpoint_interval, checkpointing

__all__ = ["bubble_fraction", "bubble_overhead", "checkpoint_interval", "checkpointing"]
__all__ += ["grids", "lower_bound", "minimum_devices", "state_bytes", "zero3_minimum_degree"]


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
