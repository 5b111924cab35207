"""How often a training saves its state, so that savings and losses together cost least.

    |--- interval ---|C|--- interval ---|C|---- x   lost: half an interval, and a restart

Savings cost C / interval of the time, losses (interval / 2 + restart) / MTBF. Both together are
least at interval = sqrt(2 C MTBF): J. W. Young, "A first order approximation to the optimum
checkpoint interval", CACM 17 (1974). It holds while the interval is far below the MTBF; J. T. Daly,
FGCS 22 (2006), has more terms. The least is flat: twice or half the interval costs a quarter more.
"""

from dataclasses import dataclass
from math import sqrt

from tiledask.errors import ConfigError
from tiledask.plan.units import format_seconds

__all__ = ["Checkpointing", "checkpoint_interval"]


def checkpoint_interval(cost: float, mtbf: float) -> float:
    """Seconds from one save to the next, if each takes ``cost`` seconds and something is lost every
    ``mtbf`` seconds.

    >>> checkpoint_interval(cost=2.0, mtbf=3600.0)
    120.0
    """
    if not (cost >= 0 and mtbf > 0):
        raise ConfigError(
            f"a save takes 0 s or more and losses are more than 0 s apart, got {cost!r} and "
            f"{mtbf!r}; measure the one, and estimate the other from what failed so far"
        )
    return sqrt(2 * cost * mtbf)


@dataclass(frozen=True, repr=False)
class Checkpointing:
    """How often to save, and what that costs.

    Llama 3 405B had 419 unexpected interruptions in 54 days on 16,384 GPUs, and storage of 2 TB/s
    (Llama team, 2024, sections 3.3.1 and 3.3.4): about 50,000 hours for each GPU.

    >>> Checkpointing(405e9 * 14, bandwidth=2e12, mtbf=50_000 * 3600, devices=16_384)
    Checkpointing(every 250 s: 1.1% for saving, 1.1% lost again)
    """

    state_bytes: float
    """Of all devices together: what is saved."""
    bandwidth: float
    """Bytes per second, of all that write together."""
    mtbf: float
    """Seconds between two failures of one device, on average."""
    devices: int = 1
    """How many there are: the failure of any ends the step for all."""
    restart: float = 0.0
    """Seconds from a failure until steps go on."""

    def __post_init__(self) -> None:
        if not (self.state_bytes >= 0 and self.bandwidth > 0 and self.devices >= 1):
            raise ConfigError(
                f"what is saved has 0 bytes or more, goes at more than 0 B/s and is of 1 device or "
                f"more; got {self.state_bytes!r}, {self.bandwidth!r} and {self.devices!r}"
            )

    @property
    def cost(self) -> float:
        """Seconds of a save."""
        return self.state_bytes / self.bandwidth

    @property
    def between_failures(self) -> float:
        """Seconds between two failures of any device."""
        return self.mtbf / self.devices

    @property
    def interval(self) -> float:
        """Seconds from one save to the next."""
        return checkpoint_interval(self.cost, self.between_failures)

    @property
    def saving(self) -> float:
        """The share of the time that goes into saving."""
        return self.cost / self.interval if self.cost else 0.0

    @property
    def lost(self) -> float:
        """The share of the time that is lost and done again, restarts included."""
        return (self.interval / 2 + self.restart) / self.between_failures

    def __repr__(self) -> str:
        return (
            f"Checkpointing(every {format_seconds(self.interval)}: {self.saving:.1%} for saving, "
            f"{self.lost:.1%} lost again)"
        )
