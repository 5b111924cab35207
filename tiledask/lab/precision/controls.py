"""Controls: how long two losses can be compared; they are one device in other roundings.

Round-off is a random walk only as long as the training does not multiply it. Sooner or later one
does: an input of a ReLU is so near to zero that round-off moves it across, a gradient goes through
in one run and not in the other, and from then on they learn different things, each as well as the
other. No sum of roundings foretells that step. But the training can be asked for it. A control is
one device whose weights begin one rounding up or down: the same mathematics, and no split.

    difference            control _____/
    from one device   ___________/
       envelope  ----/-----------------
                   _/  split
                 ----------------------> steps
                 |  judged  |     |
                 1         h/2    h      the first step in which a control is outside

That step is a matter of chance, for the split run as for a control: steps are judged until half of
the earliest. It is enough, as a fault in the split does its work from the first steps on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiledask.errors import ConfigError
from tiledask.lab.precision.drift import GRADES, Drift, verdicts

__all__ = ["Compared", "compared"]


@dataclass(frozen=True)
class Compared:
    """Whether a split run is the training of one device; true in an ``if`` where it is.

    Of the steps that were judged; `drift` is the verdict on the one of them that decided.
    """

    drift: Drift
    step: int
    """The number of the step that decided, from 1: the first outside of the envelope, or the one
    that came nearest to it."""
    judged: int
    """Steps, from the first on."""
    steps: int
    """That there are."""
    parted: int | None
    """The first step in which a control was outside, from 1; None if all stayed inside."""
    controls: int

    @property
    def grade(self) -> str:
        """One of `GRADES`: "round-off", "doubtful" or "fault"."""
        return self.drift.grade

    def __bool__(self) -> bool:
        return bool(self.drift)

    def __repr__(self) -> str:
        judged = "all" if self.judged == self.steps else f"the first {self.judged} of"
        said = "" if self.controls else "; no controls"
        if self.parted is not None:
            said = (
                f"; one device, nudged, parts from itself at step {self.parted}, "
                f"and losses say nothing from then on"
            )
        return (
            f"Compared({self.grade} in {judged} {self.steps} steps: at step {self.step} "
            f"{self.drift.difference:.3g} apart, {self.drift.likely:.3g} likely{said})"
        )


def compared(
    alone: Sequence[float],
    split: Sequence[float],
    controls: Sequence[Sequence[float]] = (),
    *,
    dtype: str,
    ranks: int = 2,
    layers: int = 1,
) -> Compared:
    """A verdict on the losses of all steps of one device, and of ``ranks`` that share its work.

    controls
        Losses of one device with ``nudge=1``, 2, 3 (`tiledask.train`): three are good. Without
        them every step is judged, whatever the training makes of round-off.
    dtype, layers
        As of `acceptable`.

    >>> one, other, control = [2.3, 2.2, 2.1, 2.0], [2.3, 2.2, 2.1, 1.7], [2.3, 2.2, 1.9, 1.9]
    >>> compared(one, other, dtype="float32").grade
    'fault'
    >>> compared(one, other, [control], dtype="float32")
    Compared(round-off in the first 1 of 4 steps: at step 1 0 apart, 1.03e-07 likely; one device, nudged, parts from itself at step 3, and losses say nothing from then on)
    """  # noqa: E501
    lengths = {len(alone), len(split), *map(len, controls)}
    if len(lengths) > 1 or 0 in lengths:
        raise ConfigError(
            f"losses are compared step by step: every run needs as many, 1 or more; got "
            f"{len(alone)} of one device, {len(split)} split, "
            f"{', '.join(str(len(c)) for c in controls) or 'no'} of controls"
        )

    outside = [
        n
        for run in controls
        for n, said in enumerate(verdicts(alone, run, dtype, ranks, layers), 1)
        if not said
    ]
    parted, steps = min(outside, default=None), len(alone)
    judged = steps if parted is None else parted // 2
    said = verdicts(alone, split, dtype, ranks, layers)[: max(1, judged)]
    if not judged:
        words = "one device parts from itself in the first step: nothing can be said of a split"
        said = [replace(said[0], grade="doubtful", reason=words)]
    step = _deciding(said)
    return Compared(said[step - 1], step, judged, steps, parted, len(controls))


def _deciding(said: list[Drift]) -> int:
    """The number, from 1, of the first step of the gravest grade; of the nearest to a fault, if
    all are round-off."""
    grades = [each.grade for each in said]
    gravest = max(grades, key=GRADES.index)
    if gravest != "round-off":
        return grades.index(gravest) + 1
    shares = [each.difference / each.likely for each in said]
    return shares.index(max(shares)) + 1
