"""Write what a training needs: a rule of a loss scale; an average of uneven copies. Both train."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError, DivergedError, RuleError
from tiledask.lab.exercises.on_ranks import run_on_ranks
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.reading import function
from tiledask.lab.precision.small import Small, SmallRun, train
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.products.placement import split
from tiledask.tile import layers as tile
from tiledask.tile.datasets import load_images
from tiledask.tile.optimizers import SGD, LossScale

__all__ = ["scale_rule", "uneven_copies"]

Rule = Callable[[float, int, bool], tuple[float, int]]
BEGUN = {"begun at 2^44": 2.0**44, "begun at 1": 1.0}
STEPS, LAST = 48, 8
SMALLER = 2.0**-22
"""By what the network's gradients are smaller than usual."""
NETWORK = Small(hidden=8, inner=16, blocks=1)


@dataclass(frozen=True)
class _Asked(LossScale):
    """A scale that asks a function what comes next."""

    rule: Rule = field(default=lambda scale, good, finite: (scale, good), compare=False)

    def after(self, finite: bool) -> LossScale:
        name = getattr(self.rule, "__name__", "the function")
        try:
            scale, good = self.rule(self.scale, self.good, finite)
            scale, good = float(scale), int(good)
        except Exception as error:  # whatever an answer raises
            raise RuleError(
                f"{name}(scale, good, finite) returns two numbers, the next scale and good; for "
                f"({self.scale:g}, {self.good}, {finite}) it gave {type(error).__name__}: {error}"
            ) from error
        try:
            return replace(self, scale=scale, good=good, skipped=self.skipped + (not finite))
        except ConfigError as error:
            raise RuleError(f"{name}(scale, good, finite): {error}") from None


def scale_rule(left_out: int = 14, loss: float = 1.55) -> Exercise:
    """Write a function (scale, good, finite) that says the scale of the next step's loss.

    ``good`` is whatever the function returned beside the last scale, 0 at first; ``finite`` says
    whether all gradients were. A step that was not finite is left out. A small network, whose
    gradients are 2^22 times smaller than usual, is trained in fp16 for 48 steps from two scales.

    >>> scale_rule().check(lambda scale, good, finite: scale).legal  # and good?
    False
    """

    def measure(answer: Any) -> list[Target]:
        runs = _runs(answer)
        skipped = sum(run.skipped for run in runs.values())
        each = ", ".join(f"{run.skipped} {name}" for name, run in runs.items())
        return [
            Target("steps left out in both runs", left_out, skipped, None, where=each),
            *(
                Target(
                    f"loss of the last {LAST} steps, {name}",
                    loss,
                    _end(run),
                    None,
                    where=_scale_of(run, missed=not _end(run) <= loss),
                )
                for name, run in runs.items()
            ),
        ]

    return Exercise(
        name="the rule of a loss scale",
        form="a function such as def after(scale, good, finite): return scale, good",
        hints=(
            "After an overflow the scale was too large; after many steps without one it may be too "
            "small.",
            "Every overflow costs a step, so come down by a factor that ends it soon, and go up "
            "again rarely enough. Count in good the steps since the last overflow.",
            "From 1 the scale must come to about 2^9, or more, by the end: that says how often, at "
            "least, it has to double. Try a few numbers of steps for good.",
        ),
        measured=measure,
        read=function,
    )


def _scale_of(run: SmallRun, missed: bool) -> str:
    """Where the scale went, and what that means for a loss that was ``missed``."""
    low, high = (np.log2(float(scale)) for scale in (min(run.scales), max(run.scales)))
    end = np.log2(float(run.scales[-1]))
    said = f"its scale lies between 2^{low:.0f} and 2^{high:.0f} and ends at 2^{end:.0f}"
    if run.skipped > len(run.losses) // 2:
        return f"{said}, too large for most steps"
    return f"{said}, too small for too long" if missed and (high < 20 or end <= low + 8) else said


def _runs(rule: Rule) -> dict[str, SmallRun]:
    return {name: _run(rule, begun) for name, begun in BEGUN.items()}


def _run(rule: Rule, begun: float) -> SmallRun:
    scale = _Asked(begun, floor=2.0**-24, rule=rule)
    try:
        return train(
            "float16", STEPS, rule=SGD(0.1), small=NETWORK, batch=16, times=SMALLER, scale=scale
        )
    except DivergedError as error:
        raise RuleError(str(error)) from error


def _end(run: SmallRun) -> float:
    """The loss at the end; infinite if it is no number."""
    end = float(np.mean(run.losses[-LAST:]))
    return round(end, 3) if np.isfinite(end) else float("inf")


Averaging = Callable[[Group, np.ndarray, int, int], np.ndarray]
"""(group, gradient of this copy's mean, its rows, all rows) -> gradient of the batch's mean."""
PIXELS, CLASSES, STEPS_copies, RATE = 784, 10, 3, 0.5
TOLERANCE = 1e-12


def uneven_copies(copies: int = 3, batches: tuple[int, ...] = (6, 7, 2)) -> Exercise:
    """Write a function (group, gradient, rows, total) that gives the gradient of the whole batch.

    A small classifier of digits is trained by ``copies`` ranks with it, 3 steps with batches of
    6, 7 and 2 rows, and its weights are compared with those of one device; bytes are counted. A
    copy without rows has a gradient of zeros.

    >>> mean_of_means = lambda group, gradient, rows, total: group.all_reduce(gradient) / group.size
    >>> uneven_copies().check(mean_of_means).reason.partition(": the")[0]
    'Not yet: a batch of 7 rows ends elsewhere'
    """
    size = PIXELS * CLASSES
    least = sum(cost("all_reduce", default("all_reduce", copies), even(size, copies), 8).sent)

    def measure(answer: Any) -> list[Target]:
        worst, sent = {}, 0
        for batch in batches:
            ends, records = _trained(answer, batch, copies)
            worst[batch] = max(float(np.abs(w - _alone(batch)[-1]).max()) for w in ends)
            sent = max(sent, sum(r.sent for r in records) // STEPS_copies)
        wrong = [batch for batch, off in worst.items() if not off <= TOLERANCE]
        rows = ", ".join(map(str, wrong))
        name = "batches that end elsewhere" + (f" ({rows} rows)" if wrong else "")
        remarks = [_weighed(answer, wrong[0], copies)] if wrong else []
        more = f"{sent - least:,} bytes more than one all-reduce of the gradient"
        return [
            Target(name, 0, len(wrong), 0, remarks=remarks),
            Target("bytes that all ranks send in a step", least, sent, least, where=more),
        ]

    return Exercise(
        name="uneven copies",
        form=(
            "a function such as def averaged(group, gradient, rows, total): return "
            "group.all_reduce(gradient) / group.size"
        ),
        hints=(
            "With 6 rows the mean of the means is right. What is different with 7?",
            "Each row should count the same, wherever it is. How much does a copy's mean count "
            "then?",
            "The mean of the batch is the sum over all rows, divided by all rows. Make sums out of "
            "the means before the all-reduce; everything you need for that is an argument.",
        ),
        measured=measure,
        read=function,
    )


def _weighed(function: Averaging, batch: int, copies: int) -> str:
    """What the means of the copies count in what comes back for a batch, in words."""
    parts = [slice(*split(0, batch, copies)[rank]) for rank in range(copies)]
    rows = [part.stop - part.start for part in parts]
    w = np.zeros((PIXELS, CLASSES))
    means = [_gradient(w, *_batch(0, batch, part)) for part in parts]

    def program(rank: Any) -> np.ndarray:
        return np.asarray(function(rank.group(), means[rank.index], rows[rank.index], batch))

    found = run_threads(program, copies, timeout=240).results[0]
    said = f"a batch of {batch} rows ends elsewhere"
    if not np.isfinite(found).all():
        return f"{said}: what comes back for it is no number"
    have = [n for n in range(copies) if rows[n]]
    each = np.stack([means[n].reshape(-1) for n in have], axis=1)
    counts, *_ = np.linalg.lstsq(each, found.reshape(-1), rcond=None)
    if not np.allclose(each @ counts, found.reshape(-1), rtol=0, atol=1e-9):
        return f"{said}: what comes back is no sum of the copies' means"
    shown = ", ".join(str(Fraction(float(c)).limit_denominator(100)) for c in counts)
    return (
        f"{said}: the copies have {', '.join(map(str, rows))} rows and their means count {shown}"
        + (f" on rank 0, those of {len(have)} with rows" if len(have) < copies else "")
    )


def _batch(step: int, batch: int, rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    x, labels = load_images("digits").batch(0, step, batch, rows, dtype="float64")
    return x.reshape(len(x), PIXELS), labels


def _gradient(w: np.ndarray, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The gradient of the mean loss; zeros where there are no rows."""
    if not len(x):
        return np.zeros_like(w)
    logits, kept = tile.linear(x, w)
    _, of_loss = tile.cross_entropy(logits, labels)
    return tile.linear_grad(tile.cross_entropy_grad(1.0, of_loss), kept, w)[1]


@lru_cache(maxsize=16)
def _alone(batch: int) -> tuple[np.ndarray, ...]:
    """Weights after each step on one device."""
    w, found = np.zeros((PIXELS, CLASSES)), []
    for step in range(STEPS_copies):
        w = w - RATE * _gradient(w, *_batch(step, batch))
        found.append(w)
    return tuple(found)


def _trained(function: Averaging, batch: int, copies: int) -> tuple[list[np.ndarray], Any]:
    """(weights of each copy after the last step, records)."""

    def program(rank: Any) -> np.ndarray:
        group, mine = rank.group(), slice(*split(0, batch, copies)[rank.index])
        w = np.zeros((PIXELS, CLASSES))
        for step in range(STEPS_copies):
            mean = _gradient(w, *_batch(step, batch, mine))
            with np.errstate(divide="ignore", invalid="ignore"):  # of no rows; it shows in w
                whole = np.asarray(function(group, mean, mine.stop - mine.start, batch))
            if whole.shape != w.shape:
                raise RuleError(
                    f"the gradient has {list(w.shape)} numbers, got {list(whole.shape)} back"
                )
            w = w - RATE * whole
        return w

    told = {"takes": "(group, gradient, rows, total)", "given": f" with a batch of {batch} rows"}
    done = run_on_ranks(function, program, copies, timeout=240, **told)
    return done.results, done.records
