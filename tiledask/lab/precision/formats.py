"""Floating-point formats by their definition, in exact fractions: what a number rounds to.

             digits   smallest   largest         1 + its last digit
float16      11       2^-24      65504           1 + 2^-10
bfloat16     8        2^-133     3.39e38         1 + 2^-7
float32      24       2^-149     3.40e38         1 + 2^-23
float64      53       2^-1074    1.80e308        1 + 2^-52
"""

from dataclasses import dataclass
from fractions import Fraction

from tiledask.errors import ConfigError

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
    top: int
    """The exponent of the largest numbers."""

    @property
    def roundoff(self) -> float:
        """The largest relative error of a rounding: half of the last digit of 1."""
        return 2.0**-self.digits

    def nearest(self, x: float | Fraction) -> float:
        """The number of this format nearest to ``x``; of two, the one whose last digit is even."""
        exact = Fraction(x)
        exponent = 1 - self.top  # below it all numbers have the same last digit
        while abs(exact) >= Fraction(2) ** (exponent + 1):
            exponent += 1
        last = Fraction(2) ** (exponent - self.digits + 1)
        rounded = round(exact / last) * last  # Fraction's round takes the even one
        if abs(rounded) >= Fraction(2) ** (self.top + 1):
            return float("inf") if rounded > 0 else float("-inf")
        return float(rounded)


FORMATS = {
    each.name: each
    for each in (
        Format("float16", 11, 15),
        Format("bfloat16", 8, 127),
        Format("float32", 24, 127),
        Format("float64", 53, 1023),
    )
}


def format_of(dtype: str) -> Format:
    """The format of that name; ConfigError for another."""
    if dtype not in FORMATS:
        raise ConfigError(f"a floating-point format is one of {', '.join(FORMATS)}, got {dtype!r}")
    return FORMATS[dtype]
