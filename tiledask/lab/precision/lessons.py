"""What half precision loses, a table each: predicted by exact fractions, then run."""

from fractions import Fraction

import numpy as np

from tiledask.lab.claim import Claim
from tiledask.lab.precision.formats import FORMATS, format_of
from tiledask.lab.table import Comparison
from tiledask.tile.backend import as_dtype
from tiledask.tile.optimizers import SGD, advance, begin, flush

__all__ = ["lost_update", "underflow"]

HALF = FORMATS["float16"]


def underflow(gradient: float = 1e-8, scale: float = 2.0**16) -> Comparison:
    """A gradient too small for fp16, and the same with the loss scaled."""
    scaled = flush(np.array(np.float64(gradient) * scale), "float16")
    back = scaled.astype(np.float32) / np.float32(scale)
    said = HALF.nearest(Fraction(gradient) * Fraction(scale))
    rows = (
        Claim(
            "the smallest above 0",
            2.0**-24,
            None,
            float(np.finfo(np.float16).smallest_subnormal),
            rule="equal",
        ),
        Claim(
            f"{gradient:g} in fp16",
            HALF.nearest(gradient),
            None,
            float(flush(np.array(gradient), "float16")),
            rule="equal",
        ),
        Claim(f"  times {scale:g}", said, None, float(scaled), rule="equal"),
        Claim(
            "  and back, in fp32",
            FORMATS["float32"].nearest(Fraction(said) / Fraction(scale)),
            None,
            float(back),
            rule="equal",
        ),
    )
    return Comparison("Underflow, and a scaled loss", rows)


def lost_update(dtype: str = "float16", steps: int = 64) -> Comparison:
    """A weight of 1 that grows by half of its last digit in each step, with and without a master."""  # noqa: E501
    form, rule = format_of(dtype), SGD(rate=1.0)
    update = form.roundoff
    ends = {}
    for master in (False, True):
        state = begin({"w": np.ones(1, np.float32)}, rule, dtype, master=master)
        for _ in range(steps):
            grads = {"w": np.full(1, -update).astype(as_dtype(dtype))}
            state, *_ = advance(state, rule, grads)
        ends[master] = float(state.weights["w"][0])
    said, exact = Fraction(1), Fraction(1)
    for _ in range(steps):
        said = Fraction(form.nearest(said + Fraction(update)))
        exact += Fraction(update)
    rows = (
        Claim(
            f"{steps} updates of 2^-{form.digits}, {dtype} weights alone",
            float(said),
            None,
            ends[False],
            rule="equal",
            note="each is rounded away",
        ),
        Claim(
            "  with a master in fp32",
            form.nearest(exact),
            None,
            ends[True],
            rule="equal",
            note="none is lost",
        ),
    )
    return Comparison("Updates smaller than the weight's last digit", rows)
