"""How results travel from device to device: seconds on the way, seconds of a link, and who waits.

overlapped    rank 0    [F0][F1][F2]           a block is on its way while both devices go on;
              link        =b0=b1=b2            a link carries one block after the other
              rank 1         ..[F0][F1][F2]

blocking      rank 0    [F0]s[F1]s[F2]s        the sender is occupied until the block is in a
              rank 1         [F0] [F1]         buffer of the receiver, who at most waits for it

rendezvous    rank 0    [F0]s[F1]..s           both ends are occupied, from when both are there:
              rank 1        r[F0][B0]r         between two actions a device sends, then receives

paired        the same, but all that is sent and received between two actions is posted at once, as
              by Megatron's send_forward_recv_backward or PyTorch's batch_isend_irecv
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan.pipelines.schedule import Schedule

__all__ = ["CONVENTIONS", "RESULT", "Links", "PerLink"]

CONVENTIONS = ("overlapped", "blocking", "rendezvous", "paired")
RESULT = np.array([0, 1, 1, 2], np.int8)
"""By kind (F, B, I, W): F's activations, B's or I's gradient of the input, W's of the weights."""

PerLink = float | Sequence[float] | Sequence[Sequence[float]]
"""One number, one per boundary between stages, or a table [from device][to device]."""


@dataclass(frozen=True)
class Links:
    """What happens to each result that another stage waits for, by (result, pipeline, stage).

    Result 0 is a stage's activations, for the stage behind; 1 the gradient of its input, for the
    stage before.
    """

    latency: np.ndarray
    """float64 [2, pipelines, stages]: seconds on the way."""
    carry: np.ndarray
    """float64 [2, pipelines, stages]: seconds for which the block takes up its link."""
    link: np.ndarray
    """int32 [2, pipelines, stages]: which link, or -1 where both stages are on one device."""
    transfers: str = "overlapped"
    """One of CONVENTIONS."""

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        latency: PerLink = 0.0,
        block_bytes: float | Sequence[float] = 0.0,
        bandwidth: PerLink = np.inf,
        transfers: str = "overlapped",
    ) -> "Links":
        """The Links of ``schedule``.

        ``latency``: seconds; ``bandwidth``: bytes/s; ``block_bytes``: of the activations at a
        boundary and of their gradient, one number or one per boundary. Raises ScheduleError for
        numbers that are not finite, below 0 (a bandwidth of 0 too), or of another shape.
        """
        if transfers not in CONVENTIONS:
            known = f"{', '.join(CONVENTIONS[:-1])} or {CONVENTIONS[-1]}"
            raise ScheduleError(f"transfers are {known}, got {short(transfers)}")
        places = np.array(schedule.places)
        devices, (pipelines, stages) = schedule.devices, places.shape
        source, target = (np.zeros((2, pipelines, stages), np.int64) for _ in range(2))
        boundary = np.zeros((2, 1, stages), np.int64)
        source[:], target[:] = places, places
        target[0, :, :-1], target[1, :, 1:] = places[:, 1:], places[:, :-1]
        boundary[0, 0, :-1] = boundary[1, 0, 1:] = np.arange(stages - 1)
        sends = source != target

        def per_link(values: PerLink, name: str) -> np.ndarray:
            try:
                table = np.asarray(values, float)
            except (TypeError, ValueError):
                raise ScheduleError(f"{name} must be numbers, got {short(values)}") from None
            if table.ndim == 0:
                return np.where(sends, table, 0.0)
            if table.shape == (stages - 1,):
                return np.where(sends, np.append(table, 0.0)[boundary], 0.0)
            if table.shape == (devices, devices) and name != "block_bytes":
                return np.where(sends, table[source, target], 0.0)
            raise ScheduleError(
                f"{name} must be one number or one per boundary between stages, {stages - 1} for "
                f"{stages} stages"
                + ("" if name == "block_bytes" else f", or a table of {devices} x {devices} links")
                + f"; got shape {table.shape}"
            )

        on_the_way = per_link(latency, "latency")
        _refuse_impossible(on_the_way, "latency", "seconds")
        size, rate = per_link(block_bytes, "block_bytes"), per_link(bandwidth, "bandwidth")
        _refuse_impossible(size, "block_bytes", "bytes")
        if not (rate[sends] > 0).all():
            raise ScheduleError(
                f"bandwidth must be above 0 bytes/s, got {rate[sends].min():g}; for a block that "
                f"takes no time leave block_bytes out"
            )
        carry = np.divide(size, rate, out=np.zeros_like(size), where=sends)
        link = np.where(sends, source * devices + target, -1).astype(np.int32)
        return cls(on_the_way, carry, link, transfers)

    @property
    def blocking(self) -> bool:
        """Whether the sender, and it alone, is occupied."""
        return self.transfers == "blocking"

    @property
    def meets(self) -> bool:
        """Whether a transfer occupies both ends (rendezvous.py)."""
        return self.transfers in ("rendezvous", "paired")

    @property
    def hop(self) -> np.ndarray:
        """float64 [2, pipelines, stages]: seconds until a result is there, if its link is free."""
        hop: np.ndarray = self.latency + self.carry
        return hop

    @property
    def arriving(self) -> np.ndarray:
        """float64 [2, pipelines, stages]: the same for what reaches a stage, from the stage before
        and from the stage behind."""
        there, hop = np.zeros_like(self.latency), self.hop
        there[0, :, 1:], there[1, :, :-1] = hop[0, :, :-1], hop[1, :, 1:]
        return there


def _refuse_impossible(values: np.ndarray, name: str, unit: str) -> None:
    good = np.isfinite(values) & (values >= 0)
    if not good.all():
        wrong = values[~good].flat[0]
        raise ScheduleError(f"{name} must be finite and 0 or more {unit}, got {wrong:g}")
