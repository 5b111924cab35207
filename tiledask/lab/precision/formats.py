"""Floating-point formats: what a number becomes in each.

             digits   smallest   largest         1 + its last digit
float16      11       2^-24      65504           1 + 2^-10
bfloat16     8        2^-133     3.39e38         1 + 2^-7
float32      24       2^-149     3.40e38         1 + 2^-23
float64      53       2^-1074    1.80e308        1 + 2^-52
"""

from dataclasses import dataclass

import numpy as np

from tiledask.errors import ConfigError
from tiledask.tile.backend import as_dtype

__all__ = ["FORMATS", "Format", "format_of"]


@dataclass(frozen=True)
class Format:
    """A binary format of IEEE 754-2019, section 3; bfloat16 is float32 with 16 digits less.

    >>> FORMATS["float16"].nearest(65519.99), FORMATS["float16"].nearest(65520)
    (65504.0, inf)
    """

    name: str
    digits: int
    """Of the significand, the leading one included."""

    @property
    def roundoff(self) -> float:
        """The largest relative error of a rounding: half of the last digit of 1."""
        return 2.0**-self.digits

    def nearest(self, x: float) -> float:
        """The number of this format nearest to ``x``; of two, the one whose last digit is even."""
        with np.errstate(over="ignore"):
            return float(np.float64(x).astype(as_dtype(self.name)))


_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
FORMATS = {name: Format(name, digits) for name, digits in _DIGITS.items()}


def format_of(dtype: str) -> Format:
    """The format of that name; ConfigError for another."""
    if dtype not in FORMATS:
        raise ConfigError(f"a floating-point format is one of {', '.join(FORMATS)}, got {dtype!r}")
    return FORMATS[dtype]
