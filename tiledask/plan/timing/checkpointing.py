"""How often a training saves its state, so that savings and losses together cost least.

    |--- interval ---|C|--- interval ---|C|---- x   lost: half an interval, and a restart

Savings cost C / interval of the time, losses (interval / 2 + restart) / MTBF. Both together are
least at interval = sqrt(2 C MTBF): J. W. Young, "A first order approximation to the optimum
checkpoint interval", CACM 17 (1974). It holds while the interval is far below the MTBF; J. T. Daly,
FGCS 22 (2006), has the whole sum. The least is flat: twice or half the interval costs a quarter
more.
"""

from dataclasses import dataclass
from math import exp, expm1, isfinite, sqrt

from tiledask.errors import ConfigError
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["MTBF", "RESTART", "STORAGE", "Checkpointing", "checkpoint_interval"]

MTBF = 54 * 86_400 * 16_384 / 419
"""Seconds between two losses of one GPU, 51,000 hours: 419 unexpected interruptions in 54 days on
16,384 of them (Llama team 2024, arXiv:2407.21783, section 3.3.4)."""
STORAGE = 2e12 / 16_384
"""Bytes per second that each of those writes, 122 MB/s: 2 TB/s for all (section 3.3.1)."""
RESTART = 600.0
"""Seconds until a large training goes on; assumed."""


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

    Llama 3 405B on 16,384 GPUs, whose storage takes 2 TB/s:

    >>> Checkpointing(405e9 * 14, bandwidth=2e12, devices=16_384)
    Checkpointing(every 251 s: 1.1 % for saving, 1.1 % lost again)
    """

    state_bytes: float
    """Of all devices together, or of one: what is saved."""
    bandwidth: float = STORAGE
    """Bytes per second, of all that write together, or of one."""
    mtbf: float = MTBF
    """Seconds between two failures of one device, on average."""
    devices: int = 1
    """How many there are: the failure of any ends the step for all."""
    restart: float = 0.0
    """Seconds from a failure until steps go on."""
    step: float = 0.0
    """Seconds of a step; 0: not known, and saved at any time."""

    def __post_init__(self) -> None:
        least = {"state_bytes": 0, "devices": 1, "restart": 0, "step": 0}
        for name in (*least, "bandwidth", "mtbf"):
            value, floor = getattr(self, name), least.get(name)
            if not (isfinite(value) and (value > 0 if floor is None else value >= floor)):
                rule = "above 0" if floor is None else f"{floor} or more"
                raise ConfigError(f"{name} must be finite and {rule}, got {value!r}; measure it")

    @property
    def cost(self) -> float:
        """Seconds of a save."""
        return self.state_bytes / self.bandwidth

    @property
    def between_failures(self) -> float:
        """Seconds between two failures of any device."""
        return self.mtbf / self.devices

    @property
    def steps(self) -> int | None:
        """Steps from one save to the next; None where a step's time is not known."""
        if not self.step:
            return None
        best = checkpoint_interval(self.cost, self.between_failures)
        return max(1, round(best / self.step))

    @property
    def interval(self) -> float:
        """Seconds of work from one save to the next."""
        if self.steps:
            return self.steps * self.step
        return checkpoint_interval(self.cost, self.between_failures)

    @property
    def saving(self) -> float:
        """Seconds of saving for each of work."""
        return self.cost / self.interval if self.cost else 0.0

    @property
    def redone(self) -> float:
        """The share of the time whose work is lost and done again."""
        return self.interval / 2 / self.between_failures

    @property
    def restarting(self) -> float:
        """The share of the time that goes into restarts."""
        return self.restart / self.between_failures

    @property
    def lost(self) -> float:
        """The share of the time that is lost and done again, restarts included."""
        return self.redone + self.restarting

    @property
    def stretch(self) -> float:
        """Wall time over the work's, if failures come at random, in restarts and saves too: Daly
        2006, equation 20. Infinite where nearly nothing is ever reached.

        >>> said = Checkpointing(60.0, bandwidth=1.0, mtbf=3600.0, restart=30.0)
        >>> round(said.interval), round(1 + said.saving + said.lost, 3), round(said.stretch, 3)
        (657, 1.191, 1.218)
        """
        mtbf, work = self.between_failures, self.interval
        if not work:
            return exp(self.restart / mtbf) if self.restart < 700 * mtbf else float("inf")
        if self.restart + work + self.cost > 700 * mtbf:
            return float("inf")
        return exp(self.restart / mtbf) * expm1((work + self.cost) / mtbf) * mtbf / work

    @property
    def line(self) -> str:
        """In words, for a plan."""
        words = f"every {_time(self.interval)}"
        if self.steps:
            words = f"every {self.steps:,} steps ({_time(self.interval)})"
        source = ", as in Llama 3's training" if self.mtbf == MTBF else ""
        return (
            f"save {words}: {format_bytes(round(self.state_bytes))} of a rank take "
            f"{_time(self.cost)} at {format_bytes(round(self.bandwidth))}/s, one of "
            f"{self.devices:,} is lost every {_time(self.between_failures)}{source}; saving "
            f"{100 * self.saving:.2f} %, done again {100 * self.redone:.2f} %, restarting "
            f"{100 * self.restarting:.2f} %, {100 * (self.stretch - 1):.2f} % more time in all"
        )

    def to_dict(self) -> dict[str, float | None]:
        """What was given and what follows, as plain values for JSON; None for what is infinite."""
        names = "state_bytes bandwidth mtbf devices restart cost between_failures steps interval"
        names += " saving redone restarting stretch"
        found = {name: getattr(self, name) for name in names.split()}
        return {name: None if value == float("inf") else value for name, value in found.items()}

    def __repr__(self) -> str:
        return (
            f"Checkpointing(every {format_seconds(self.interval)}: {100 * self.saving:.1f} % for "
            f"saving, {100 * self.lost:.1f} % lost again)"
        )


def _time(seconds: float) -> str:
    """In the unit that people use for so long a time.

    >>> _time(0.5), _time(250.0), _time(7e3), _time(3e5)
    ('500 ms', '4.2 min', '1.9 h', '3.5 days')
    """
    for least, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 1.5 * least:
            return f"{seconds / least:,.1f} {unit}"
    return format_seconds(seconds)
