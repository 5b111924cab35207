"""Average the gradients of copies that have not equally many rows; run for a few steps, compared.

rank 0   3 rows   gradient of their mean  \\
rank 1   2 rows   gradient of their mean   +-- averaged(group, gradient, rows, total) --> the same
rank 2   2 rows   gradient of their mean  /                                           as one device
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import RuleError
from tiledask.lab.exercises.on_ranks import run_on_ranks
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.reading import function
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import GREEN, ORANGE, SKY, canvas, styled
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.products.placement import split
from tiledask.tile import layers as tile
from tiledask.tile.datasets import load_images

__all__ = ["uneven_copies"]

Averaging = Callable[[Group, np.ndarray, int, int], np.ndarray]
"""(group, gradient of this copy's mean, its rows, all rows) -> gradient of the batch's mean."""
PIXELS, CLASSES, STEPS, RATE = 784, 10, 3, 0.5
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
            sent = max(sent, sum(r.sent for r in records) // STEPS)
        wrong = [batch for batch, off in worst.items() if not off <= TOLERANCE]
        rows = ", ".join(map(str, wrong))
        name = "batches that end elsewhere" + (f" ({rows} rows)" if wrong else "")
        remarks = [_weighed(answer, wrong[0], copies)] if wrong else []
        more = f"{sent - least:,} bytes more than one all-reduce of the gradient"
        return [
            Target(name, 0, len(wrong), 0, remarks=remarks),
            Target("bytes that all ranks send in a step", least, sent, least, where=more),
        ]

    def figure(answer: Any) -> draw.Figure:
        off = {}
        if answer is not None:
            for batch in batches:
                ends, _ = _trained(answer, batch, copies)
                off[batch] = float(np.abs(ends[0] - _alone(batch)[-1]).max())
        return _rows_and_error(copies, batches, off)

    return Exercise(
        name="uneven copies",
        question=(
            f"{copies} copies share a batch of {', '.join(map(str, batches[:-1]))} or "
            f"{batches[-1]} rows; a copy without rows has a gradient of zeros. You get the "
            f"gradient of the mean over this copy's rows, how many these are, and how many rows "
            f"the batch has; return the gradient of the batch's mean. 0 batches may end elsewhere "
            f"than on one device, to {TOLERANCE:g}, and all ranks may send {least:,} bytes in a "
            f"step: one all-reduce."
        ),
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
        drawn=figure,
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


# -- the classifier ---------------------------------------------------------------------------


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
    for step in range(STEPS):
        w = w - RATE * _gradient(w, *_batch(step, batch))
        found.append(w)
    return tuple(found)


def _trained(function: Averaging, batch: int, copies: int) -> tuple[list[np.ndarray], Any]:
    """(weights of each copy after the last step, records)."""

    def program(rank: Any) -> np.ndarray:
        group, mine = rank.group(), slice(*split(0, batch, copies)[rank.index])
        w = np.zeros((PIXELS, CLASSES))
        for step in range(STEPS):
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


@styled
def _rows_and_error(copies: int, batches: tuple[int, ...], off: dict[int, float]) -> draw.Figure:
    """Rows of each copy, and how far from one device the weights of the answer end."""
    note = "not attempted" if not off else f"after {STEPS} steps"
    figure = canvas(0.9 + 0.55 * len(batches), f"Rows of {copies} copies, and your weights: {note}")
    axes = figure.subplots()
    for y, batch in enumerate(batches):
        rows = [
            (high - low, (SKY, ORANGE, GREEN)[i % 3])
            for i, (low, high) in enumerate(split(0, batch, copies))
        ]
        parts = [(f"{batch} rows, rank {i}", n, colour) for i, (n, colour) in enumerate(rows)]
        boxes = draw.stack(axes, y, parts, 0.6)
        for i, (box, (n, colour)) in enumerate(zip(boxes, rows, strict=True)):
            if n:
                draw.text_in(axes, box, f"rank {i}", colour, 8)
        if batch in off:
            said = "equal" if off[batch] <= TOLERANCE else "off"
            if said == "off":
                draw.mark_box(axes, (0, y - 0.34, batch, 0.68), f"{batch} rows")
            words = f"{said}: at most {off[batch]:.1e} from one device"
            draw.note(axes, (batch, y), words, size=8)
    axes.set_yticks(range(len(batches)), [f"{batch} rows" for batch in batches])
    axes.set(xlim=(0, (1.6 if off else 1.02) * max(batches)), xlabel="row of the batch")
    axes.invert_yaxis()
    draw.whole_ticks(axes.xaxis)
    return figure
