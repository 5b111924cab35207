"""Days, device-hours and money of a training, with the error bar of the estimate.

days = tokens / tokens a second / 86,400        device-hours = 24 x days x devices
                                                       money = device-hours x price
"""

from math import isfinite
from typing import NamedTuple

from tiledask.errors import ConfigError, short
from tiledask.plan.units import format_count

__all__ = ["Budget", "budget"]


class Budget(NamedTuple):
    """What a number of tokens takes."""

    tokens: float
    days: float
    device_hours: float
    price: float | None  # of a device for an hour, in any currency; None: not asked
    cost: float | None  # in the price's currency
    stretch: float  # wall time over the work's, for savings and losses
    error: float  # share by which all of it may be wrong, either way

    @property
    def line(self) -> str:
        """All of it in a line, each with the band (least, most) of its error."""
        parts = [(self.days, "days"), (self.device_hours, "device-hours")]
        parts += [] if self.cost is None else [(self.cost, f"at {self.price:g} an hour")]
        words = []
        for value, unit in parts:
            low, high = (format_count(value * (1 + side * self.error)) for side in (-1, 1))
            words.append(f"{format_count(value)} {unit} ({low} to {high})")
        return f"{format_count(self.tokens)} tokens: {', '.join(words)}"


def budget(
    tokens: float,
    tokens_per_second: float,
    devices: int,
    error: float,
    price: float | None = None,
    stretch: float = 1.0,
) -> Budget:
    """The Budget of ``devices`` that together take so many tokens a second.

    >>> budget(15e12, 400 * 16_384, 16_384, error=0.15, price=2.5).line
    '15T tokens: 26.5 days (22.5 to 30.5), 10.4M device-hours (8.85M to 12M), 26M at 2.5 an hour \
(22.1M to 29.9M)'
    """
    for name, value in (("tokens", tokens), ("price", price or 0)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and isfinite(value) and value >= 0):
            raise ConfigError(f"{name} must be a number of 0 or more, got {short(value)}")
    days = tokens / tokens_per_second * stretch / 86_400
    hours = 24 * days * devices
    cost = None if price is None else price * hours
    return Budget(tokens, days, hours, price, cost, stretch, error)
