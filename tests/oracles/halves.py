"""Gradients summed in half precision: what overflows, what is lost, and what helps.

float16      largest 65504; 65520 rounds to infinity; below 2^-25 all is 0

as_they_are       cast, sum, divide               the sum of n gradients overflows first
average_first     divide, cast, sum               no sum is larger than a gradient; small ones / n
                                                  are lost
wide              divide, cast, sum in float32    as many bytes; partial sums can't overflow, and
                                                  are rounded once
in_single         sum in float32, divide, cast    twice the bytes; only the mean itself can overflow
smaller_scale     as they are, with the loss scaled down first
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.threads import run_threads

__all__ = [
    "REMEDIES",
    "Outcome",
    "as_they_are",
    "average_first",
    "in_single",
    "outcomes",
    "smaller_scale",
    "wide",
]


def as_they_are(group: Group, gradient: Any) -> Any:
    """The mean over ranks of float32 gradients: cast, summed in float16, divided. The fault."""
    return group.all_reduce(_half(gradient)) / np.float16(group.size)


def average_first(group: Group, gradient: Any) -> Any:
    """Divided by the number of ranks before the cast, then summed in float16."""
    return group.all_reduce(_half(gradient / group.size))


def wide(group: Group, gradient: Any) -> Any:
    """As `average_first`, but each sum is carried out in float32 and rounded once."""
    return group.all_reduce(_half(gradient / group.size), wide=True)


def in_single(group: Group, gradient: Any) -> Any:
    """Summed in float32, divided, then cast: twice the bytes."""
    return _half(group.all_reduce(gradient) / group.size)


def smaller_scale(group: Group, gradient: Any, down: float = 2.0**-4) -> Any:
    """As they are, of a loss scaled by ``down`` more; what comes back is unscaled, in float32."""
    mean = as_they_are(group, gradient * np.float32(down))
    return mean.astype(np.float32) / np.float32(down)


REMEDIES: Mapping[str, Callable[..., Any]] = {
    "as they are": as_they_are,
    "average first": average_first,
    "wide": wide,
    "in single": in_single,
    "smaller scale": smaller_scale,
}
"""Ways of averaging, by name; each is called with a group and a float32 gradient."""


@dataclass(frozen=True)
class Outcome:
    """What came of one way of averaging."""

    name: str
    mean: Any
    """As it came out, in float32."""
    overflows: int
    """Elements that are infinite though the mean is not too large for float16."""
    lost: int
    """Elements that are 0 though the mean is not."""
    error: float
    """The largest relative error of the others."""
    sent: int
    """Bytes that all ranks sent."""

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.overflows} overflow, {self.lost} lost, the rest within "
            f"{self.error:.1e}, {self.sent} bytes"
        )


def outcomes(gradients: Sequence[Any]) -> list[Outcome]:
    """An Outcome of every way, for one float32 gradient per rank; on threads.

    >>> for each in outcomes([np.float32([65504, 1e-7]), np.float32([16, 1e-7])])[:2]:
    ...     print(each)  # doctest: +ELLIPSIS
    as they are: 1 overflow, 0 lost, the rest within ..., 8 bytes
    average first: 0 overflow, 0 lost, the rest within ..., 8 bytes
    """
    exact = np.mean([np.asarray(g, np.float64) for g in gradients], axis=0)
    return [_outcome(name, gradients, exact) for name in REMEDIES]


def _outcome(name: str, gradients: Sequence[Any], exact: Any) -> Outcome:
    def program(rank: Any, gradient: Any) -> Any:
        with rank.group().label(name):
            return REMEDIES[name](rank.group(), np.asarray(gradient, np.float32))

    done = run_threads(program, len(gradients), per_rank=gradients)
    mean = done.results[0].astype(np.float32)
    fits = np.isfinite(_half(exact))
    overflow, lost = ~np.isfinite(mean) & fits, (mean == 0) & (exact != 0)
    rest = ~overflow & ~lost & fits & (exact != 0)
    errors = np.abs(mean[rest] / exact[rest] - 1)
    sent = sum(record.sent for record in done.records)
    return Outcome(
        name, mean, int(overflow.sum()), int(lost.sum()), float(max(errors, default=0.0)), sent
    )


def _half(x: Any) -> Any:
    with np.errstate(over="ignore"):  # what is too large is infinite, which is what is shown here
        return x.astype(np.float16)
