"""Days, device-hours and money of a training, with the error bar of the estimate.

days = tokens / tokens a second / 86,400        device-hours = 24 x days x devices
                                                       money = device-hours x price
"""

from dataclasses import dataclass
from math import isfinite

from tiledask.errors import ConfigError, short
from tiledask.plan.units import format_count

__all__ = ["ERROR", "Budget"]

ERROR = 0.15
"""Share by which the seconds of a step may be wrong: three in four of the published ones are
estimated within it (`python tests/oracles/published.py`, rows of a step)."""


@dataclass(frozen=True)
class Budget:
    """What a number of tokens takes. A band is (least, most), by the error of the estimate.

    >>> Budget(15e12, 400 * 16_384, 16_384, price=2.5).line
    '15T tokens: 26.5 days (22.5 to 30.5), 10.4M device-hours (8.85M to 12M), 26M at 2.5 an hour \
(22.1M to 29.9M)'
    """

    tokens: float
    tokens_per_second: float
    """Over all devices."""
    devices: int
    price: float | None = None
    """Of a device for an hour, in any currency; None: not asked."""
    stretch: float = 1.0
    """Wall time over the work's, for savings and losses (`Checkpointing.stretch`)."""
    error: float = ERROR
    """Share by which the seconds may be wrong, either way."""

    def __post_init__(self) -> None:
        for name in ("tokens", "price"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and isfinite(value) and value >= 0) and (name, value) != ("price", None):
                raise ConfigError(f"{name} must be a number of 0 or more, got {short(value)}")

    @property
    def days(self) -> float:
        return self.tokens / self.tokens_per_second * self.stretch / 86_400

    @property
    def device_hours(self) -> float:
        return 24 * self.days * self.devices

    @property
    def cost(self) -> float | None:
        """In the price's currency; None without a price."""
        return None if self.price is None else self.price * self.device_hours

    @property
    def line(self) -> str:
        """All of it in a line."""
        parts = []
        for value, words in (
            (self.days, "days"),
            (self.device_hours, "device-hours"),
            (self.cost, f"at {self.price:g} an hour" if self.price is not None else ""),
        ):
            if value is not None:
                ends = value * (1 - self.error), value * (1 + self.error)
                band = " to ".join(map(format_count, ends))
                parts.append(f"{format_count(value)} {words} ({band})")
        return f"{format_count(self.tokens)} tokens: {', '.join(parts)}"
