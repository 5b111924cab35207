"""What a training takes: how often to save its state, days, device-hours and money.

    |--- interval ---|C|--- interval ---|C|---- x   lost: half an interval, and a restart

Savings cost C / interval of the time, losses (interval / 2 + restart) / MTBF. Both together are
least at interval = sqrt(2 C MTBF): J. W. Young, CACM 17 (1974). It holds while the interval is far
below the MTBF; J. T. Daly, FGCS 22 (2006), has the whole sum.

days = tokens / tokens a second / 86,400        device-hours = 24 x days x devices
                                                       money = device-hours x price
"""

from math import exp, expm1, inf, isfinite, sqrt
from typing import NamedTuple

from tiledask.errors import ConfigError, short
from tiledask.plan.units import format_bytes, format_count, format_seconds

__all__ = ["MTBF", "RESTART", "STORAGE", "Budget", "Checkpointing", "budget"]
__all__ += ["checkpoint_interval", "checkpointing"]

MTBF = 54 * 86_400 * 16_384 / 419
"""Seconds between two losses of one GPU, 51,000 hours: 419 unexpected interruptions in 54 days on
16,384 of them (Llama team 2024, arXiv:2407.21783, section 3.3.4)."""
STORAGE = 2e12 / 16_384
"""Bytes per second that each of those writes, 122 MB/s: 2 TB/s for all (section 3.3.1)."""
RESTART = 600.0
"""Seconds until a large training goes on; assumed."""


def checkpoint_interval(cost: float, mtbf: float) -> float:
    """Seconds from one save of ``cost`` seconds to the next, with a loss every ``mtbf`` seconds.

    >>> checkpoint_interval(cost=2.0, mtbf=3600.0)
    120.0
    """
    if not (cost >= 0 and mtbf > 0):
        raise ConfigError(
            f"a save takes 0 s or more and losses are more than 0 s apart, got {cost!r} and "
            f"{mtbf!r}; measure the one, and estimate the other from what failed so far"
        )
    return sqrt(2 * cost * mtbf)


class Checkpointing(NamedTuple):
    """How often to save, and what that costs."""

    state_bytes: float  # of a rank
    bandwidth: float  # bytes per second that it writes
    mtbf: float  # seconds between two failures of one device, on average
    devices: int  # the failure of any ends the step for all
    restart: float  # seconds from a failure until steps go on
    cost: float  # seconds of a save
    between_failures: float  # seconds, of any device
    steps: int  # from one save to the next
    interval: float  # seconds of work from one save to the next
    saving: float  # seconds of saving for each of work
    redone: float  # the share of the time whose work is lost and done again
    restarting: float  # the share of the time that goes into restarts
    # wall time over the work's, if failures come at random, in restarts and saves too: Daly 2006,
    # equation 20; infinite where nearly nothing is ever reached
    stretch: float

    @property
    def line(self) -> str:
        """In words, for a plan."""
        source = ", as in Llama 3's training" if self.mtbf == MTBF else ""
        return (
            f"save every {self.steps:,} steps ({_time(self.interval)}): "
            f"{format_bytes(round(self.state_bytes))} of a rank take {_time(self.cost)} at "
            f"{format_bytes(round(self.bandwidth))}/s, one of {self.devices:,} is lost every "
            f"{_time(self.between_failures)}{source}; saving {100 * self.saving:.2f} %, done again "
            f"{100 * self.redone:.2f} %, restarting {100 * self.restarting:.2f} %, "
            f"{100 * (self.stretch - 1):.2f} % more time in all"
        )

    def to_dict(self) -> dict[str, float | None]:
        """As plain values for JSON; None for what is infinite."""
        return {name: None if value == inf else value for name, value in self._asdict().items()}


def checkpointing(
    state_bytes: float,
    step: float,
    devices: int = 1,
    bandwidth: float = STORAGE,
    mtbf: float = MTBF,
    restart: float = RESTART,
) -> Checkpointing:
    """The Checkpointing of ranks that keep ``state_bytes`` each, in steps of ``step`` seconds.

    >>> found = checkpointing(60.0, step=1.0, bandwidth=1.0, mtbf=3600.0, restart=30.0)
    >>> found.steps, round(found.saving, 3), round(found.stretch, 3)
    (657, 0.091, 1.218)
    """
    given = {"step": step, "devices": devices, "bandwidth": bandwidth, "mtbf": mtbf}
    for name, value in (given | {"state_bytes": state_bytes, "restart": restart}).items():
        if not (isfinite(value) and (value > 0 or (value == 0 and name not in given))):
            rule = "above 0" if name in given else "0 or more"
            raise ConfigError(f"{name} must be finite and {rule}, got {value!r}; measure it")
    cost, between = state_bytes / bandwidth, mtbf / devices
    steps = max(1, round(checkpoint_interval(cost, between) / step))
    work = steps * step
    shares = cost / work, work / 2 / between, restart / between
    of, stretch = (state_bytes, bandwidth, mtbf, devices, restart), inf
    if restart + work + cost <= 700 * between:
        stretch = exp(restart / between) * expm1((work + cost) / between) * between / work
    return Checkpointing(*of, cost, between, steps, work, *shares, stretch)


def _time(seconds: float) -> str:
    for least, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 1.5 * least:
            return f"{seconds / least:,.1f} {unit}"
    return format_seconds(seconds)


class Budget(NamedTuple):
    """What a number of tokens takes."""

    tokens: float
    days: float
    device_hours: float
    price: float | None  # of a device for an hour, in any currency, as ``cost``; None: not asked
    cost: float | None
    stretch: float  # wall time over the work's, for savings and losses
    error: tuple[float, float]  # shares by which all of it may be less, and more

    @property
    def line(self) -> str:
        """All of it in a line, each with the band (least, most) of its error."""
        parts = [(self.days, "days"), (self.device_hours, "device-hours")]
        parts += [] if self.cost is None else [(self.cost, f"at {self.price:g} an hour")]
        words = []
        for n, unit in parts:
            low, high = (format_count(n * (1 + e)) for e in (-self.error[0], self.error[1]))
            words.append(f"{format_count(n)} {unit} ({low} to {high})")
        return f"{format_count(self.tokens)} tokens: {', '.join(words)}"


def budget(
    tokens: float,
    tokens_per_second: float,
    devices: int,
    error: tuple[float, float],
    price: float | None = None,
    stretch: float = 1.0,
) -> Budget:
    """The Budget of ``devices`` that together take so many tokens a second.

    >>> budget(15e12, 400 * 16_384, 16_384, (0.15, 0.15), price=2.5).line
    '15T tokens: 26.5 days (22.5 to 30.5), 10.4M device-hours (8.85M to 12M), 26M at 2.5 an hour \
(22.1M to 29.9M)'
    """
    for name, value in (("tokens", tokens), ("price", price or 0)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 <= value < inf):
            raise ConfigError(f"{name} must be a number of 0 or more, got {short(value)}")
    days = tokens / tokens_per_second * stretch / 86_400
    hours = 24 * days * devices
    return Budget(tokens, days, hours, price, price and price * hours, stretch, error)
