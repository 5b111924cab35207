"""Floating-point formats, and what half precision loses: predicted, then run.

             digits   smallest   largest         1 + its last digit
float16      11       2^-24      65504           1 + 2^-10
bfloat16     8        2^-133     3.39e38         1 + 2^-7
float32      24       2^-149     3.40e38         1 + 2^-23
float64      53       2^-1074    1.80e308        1 + 2^-52
"""

from dataclasses import dataclass

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.claim import Claim
from tiledask.lab.table import Comparison
from tiledask.tile.backend import as_dtype
from tiledask.tile.optimizers import SGD, advance, begin, flush

__all__ = ["FORMATS", "Format", "format_of", "lost_update", "underflow"]


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


def underflow(gradient: float = 1e-8, scale: float = 2.0**16) -> Comparison:
    """A gradient too small for fp16, and the same with the loss scaled."""
    half, single = FORMATS["float16"], FORMATS["float32"]
    scaled = flush(np.array(np.float64(gradient) * scale), "float16")
    kept, back = half.nearest(gradient * scale), np.float32(scaled) / np.float32(scale)
    rows = (
        ("the smallest above 0", 2.0**-24, np.finfo(np.float16).smallest_subnormal),
        (f"{gradient:g} in fp16", half.nearest(gradient), flush(np.array(gradient), "float16")),
        (f"  times {scale:g}", kept, scaled),
        ("  and back, in fp32", single.nearest(kept / scale), back),
    )
    claims = (Claim(name, said, None, float(ran), rule="equal") for name, said, ran in rows)
    return Comparison("Underflow, and a scaled loss", tuple(claims))


def lost_update(dtype: str = "float16", steps: int = 64) -> Comparison:
    """A weight of 1 that grows by half of its last digit in each step, with and without a master."""  # noqa: E501
    form, rule = format_of(dtype), SGD(rate=1.0)
    ends, rounded = {}, 1.0
    for master in (False, True):
        state = begin({"w": np.ones(1, np.float32)}, rule, dtype, master=master)
        for _ in range(steps):
            grads = {"w": np.full(1, -form.roundoff).astype(as_dtype(dtype))}
            state, *_ = advance(state, rule, grads)
        ends[master] = float(state.weights["w"][0])
    for _ in range(steps):
        rounded = form.nearest(rounded + form.roundoff)
    alone = f"{steps} updates of 2^-{form.digits}, {dtype} weights alone"
    exact = form.nearest(1 + steps * form.roundoff)
    rows = (
        Claim(alone, rounded, None, ends[False], rule="equal", note="each is rounded away"),
        Claim(
            "  with a master in fp32", exact, None, ends[True], rule="equal", note="none is lost"
        ),
    )
    return Comparison("Updates smaller than the weight's last digit", rows)
