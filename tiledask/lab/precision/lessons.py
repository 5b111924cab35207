"""Lessons on half precision in training, a table each: said by exact fractions, then run."""

from fractions import Fraction
from math import fsum
from typing import Any

import numpy as np

from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError
from tiledask.lab.claim import Claim
from tiledask.lab.precision.formats import FORMATS, format_of
from tiledask.lab.precision.small import train
from tiledask.lab.table import Comparison
from tiledask.tile.backend import as_dtype
from tiledask.tile.optimizers import SGD, LossScale, advance, begin, flush

__all__ = ["loss_scaling", "lost_update", "order_of_sums", "overflow", "underflow"]

HALF = FORMATS["float16"]


def overflow(ranks: int = 4, gradient: float = 20000.0) -> Comparison:
    """Gradients of replicas summed by an all-reduce in fp16, and three ways round the overflow.

    The mean of equal gradients is that gradient; the sum on the way to it need not be a number.
    """

    def mean(dtype: str, first: float = 1.0) -> tuple[float, int]:
        """(mean over the ranks in ``dtype``, bytes that a rank sends); divided by ``first`` before."""  # noqa: E501

        def program(rank: Any) -> float:
            mine = flush(np.full(1024, gradient) / first, dtype)
            total = rank.group().all_reduce(mine, algorithm="ring")
            return float(total[0]) * first / rank.ranks

        done = run_threads(program, ranks)
        return done.results[0], next(iter(done.records)).sent

    halves = FORMATS["bfloat16"]
    nearest = 65520 - 2.0**-20
    plain, sent = mean("float16")
    before, _ = mean("float16", first=ranks)
    wide, twice = mean("float32")
    brain, same = mean("bfloat16")
    # as the ranks sum: by addition, rounded after each
    said = _summed(HALF, [gradient] * ranks) / ranks
    rows = (
        Claim(
            "the largest number below 65,520",
            HALF.nearest(nearest),
            None,
            float(flush(np.array(nearest), "float16")),
            rule="equal",
        ),
        Claim(
            "65,520",
            HALF.nearest(65520),
            None,
            float(flush(np.array(65520.0), "float16")),
            rule="equal",
            note="half-way to 65,536, which fp16 does not have",
        ),
        Claim(
            f"mean of {ranks} x {gradient:,g}, summed in fp16",
            str(said),
            None,
            str(plain),
            rule="equal",
        ),
        Claim(
            "divided before it is summed",
            gradient,
            None,
            before,
            rule="equal",
            note="small gradients may become 0",
        ),
        Claim("summed in fp32", gradient, None, wide, rule="equal"),
        Claim(
            "  bytes that a rank sends",
            2 * sent,
            None,
            twice,
            unit="bytes",
            rule="equal",
            note="twice those of fp16",
        ),
        Claim(
            "summed in bf16",
            _summed(halves, [gradient] * ranks) / ranks,
            None,
            brain,
            rule="equal",
            note="range of fp32, 8 significant bits",
        ),
        Claim("  bytes that a rank sends", sent, None, same, unit="bytes", rule="equal"),
    )
    return Comparison("Overflow in an all-reduce of fp16 gradients", rows)


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


def order_of_sums(ranks: int = 8, seed: int = 0) -> Comparison:
    """One sum of ``ranks`` numbers in the orders in which a ring adds: how far apart they are.

    In a ring every chunk begins its way at another rank. Ranks that bring one number each, in all
    chunks, get as many sums of it as there are chunks. ``simulated`` adds in a loop, ``predicted``
    is the worst case, (p - 1) u times the sum of sizes, both ways: twice that.
    """
    if ranks < 2:
        raise ConfigError(f"an order of sums needs 2 ranks or more, got {ranks}")
    given, rows = np.random.default_rng(seed).standard_normal(ranks), []
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        addends = flush(given, dtype)

        def program(rank: Any, addends: Any = addends) -> Any:
            mine = np.full(rank.ranks, addends[rank.index])
            return rank.group().all_reduce(mine, algorithm="ring").astype(np.float64)

        sums = run_threads(program, ranks).results[0]
        # chunks go from rank to rank downwards
        turned = [_added(np.roll(addends[::-1], first)) for first in range(ranks)]
        sizes = fsum(abs(float(x)) for x in addends)
        bound = 2 * (ranks - 1) * format_of(dtype).roundoff * sizes
        rows += [
            Claim(
                f"{dtype}: spread over {ranks} ring orders",
                bound,
                float(np.ptp(turned)),
                float(np.ptp(sums)),
                rule="at most",
            ),
            Claim(
                "  different results",
                None,
                len(set(turned)),
                len(set(sums.tolist())),
                unit="count",
                rule="equal",
            ),
        ]
    return Comparison("Addition is not associative", tuple(rows))


def loss_scaling(steps: int = 40, seed: int = 0) -> Comparison:
    """One small network trained in fp16 three ways: unscaled, scaled too far, scaled dynamically.

    Its gradients are made 2^22 times smaller. Unscaled they are 0, or nearly; 2^24 times as large
    as they were they overflow; a dynamic scale begins too high and finds its way.
    """
    small = 2.0**-22
    single = train("float32", steps, seed=seed, rule=SGD(0.02))
    unscaled_run = train("float16", steps, seed=seed, rule=SGD(0.02), times=small)
    fixed = train("float16", steps, seed=seed, rule=SGD(0.02), times=2.0**24)
    begun = LossScale(2.0**38, interval=10)
    dynamic = train("float16", steps, seed=seed, rule=SGD(0.02), times=small, scale=begun)
    first, last = single.losses[0], single.losses[-1]
    learned = (first - last) / first
    rows = (
        Claim("fp32: loss at first", None, None, first),
        Claim("fp32: share of it that goes", None, None, learned, unit="percent"),
        Claim(
            "fp16, unscaled: share that goes",
            learned / 2,
            None,
            1 - unscaled_run.losses[-1] / first,
            unit="percent",
            rule="at most",
            note="gradients are rounded to 0",
        ),
        Claim(
            "fp16, times 2^24, nothing skipped: finite",
            False,
            None,
            fixed.finite,
            rule="equal",
            note="one overflow, and all weights are NaN",
        ),
        Claim("fp16, dynamic scale: finite", True, None, dynamic.finite, rule="equal"),
        Claim(
            "fp16, dynamic scale: share that goes",
            learned,
            None,
            1 - dynamic.losses[-1] / first,
            unit="percent",
            rule=("within", 0.15),
            note="of the same steps, less the skipped ones",
        ),
        Claim("  steps skipped", None, None, dynamic.skipped, unit="count"),
        Claim("  scale at the end", None, None, dynamic.scales[-1]),
    )
    return Comparison("Loss scaling in fp16", rows)


def _summed(form: Any, numbers: list[float]) -> float:
    """Their sum from the left, rounded after each addition, by exact fractions."""
    total = form.nearest(numbers[0])
    for x in numbers[1:]:
        if total in (float("inf"), float("-inf")):
            return total
        total = form.nearest(Fraction(total) + Fraction(form.nearest(x)))
    return total


def _added(numbers: np.ndarray) -> float:
    """Their sum from the left, in their own type."""
    total = numbers[0]
    for x in numbers[1:]:
        total = total + x
    return float(total)
