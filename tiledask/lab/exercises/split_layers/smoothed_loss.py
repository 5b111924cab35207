"""Write the loss over split classes, with label smoothing; it is run on ranks and counted."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tiledask.lab.exercises.on_ranks import run_on_ranks
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.reading import function
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import GREY, RED, canvas, colour_of_rank, styled
from tiledask.tile.layers import cross_entropy

__all__ = ["smoothed_loss"]

Loss = Callable[..., Any]
TOKENS, CLASSES, MOST, EPS = (2, 12), 1001, 600, 0.1
CASES = tuple((ranks, eps, size) for ranks in (1, 3, 4) for eps in (0, EPS) for size in (1, 1000))
"""(ranks, smoothing, how large logits are)."""


def smoothed_loss() -> Exercise:
    """Write a function (group, z, mine, targets, eps) -> loss of a rank's logits ``z`` of the
    classes ``mine``: the mean over tokens, the same on every rank.

    It is run on 1, 3 and 4 ranks whose classes don't divide, with small logits and with such as
    overflow in an exponential; its losses are those of one device, and what it sends is counted.
    """

    def measure(answer: Loss) -> list[Target]:
        wrong, remarks, sent = 0, [], 0
        for ranks, eps, size in CASES:
            losses, moved, right = _run(answer, ranks, eps, size)
            off = [r for r, wrong_here in enumerate(map(_off(right), losses)) if wrong_here]
            wrong += len(off)
            if off:
                remarks.append(
                    f"rank {off[0]} of {ranks} has {losses[off[0]]:.6g} where one device has "
                    f"{right:.6g}, with eps={eps} and logits up to about {size}"
                )
            sent = max(sent, moved)
        return [
            Target("wrong losses", 0, wrong, 0, remarks=remarks[:1]),
            Target("elements sent by all ranks", MOST, sent, None),
        ]

    def figure(answer: Any) -> draw.Figure:
        if answer is None:
            return _losses(
                *_run(_own_classes, 4, EPS, 1)[::2], ", each with its own classes", False
            )
        for case in CASES:
            losses, _, right = _run(answer, *case)
            if any(map(_off(right), losses)):
                break
        _, eps, size = case
        return _losses(losses, right, f", smoothing {eps}, logits up to about {size}")

    return Exercise(
        name="smoothed loss",
        question=(
            f"Write the loss of logits that are split by class, with label smoothing, as a "
            f"function of group, z, mine, targets and eps. It is run on 1, 3 and 4 ranks, with "
            f"logits as large as 1,000: 0 losses may be wrong. On 4 ranks and "
            f"{np.prod(TOKENS)} tokens of {CLASSES:,} classes at most {MOST} elements may be sent."
        ),
        form=(
            "a function such as def mine(group, z, mine, targets, eps): ..., which returns a "
            "number, for example answer = mine"
        ),
        hints=(
            "What of each token has to be known of all classes? The largest logit, the sum of "
            "exponentials, the target's own logit, and one more sum.",
            "How many classes there are is a sum over the ranks, too: of len(mine).",
            "Take the largest logit over all ranks off before np.exp: group.all_reduce(z.max(-1), "
            'op="max").',
        ),
        measured=measure,
        drawn=figure,
        read=function,
    )


def _run(answer: Loss, ranks: int, eps: float, size: float) -> tuple[list[float], int, float]:
    """(the loss on each rank, elements that all send, the loss on one device)."""
    rng = np.random.default_rng(7)
    logits, targets = size * rng.normal(size=(*TOKENS, CLASSES)), rng.integers(0, CLASSES, TOKENS)
    classes = np.array_split(np.arange(CLASSES), ranks)

    def program(rank: Any) -> float:
        mine = classes[rank.index]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return float(answer(rank.group(), logits[..., mine], mine, targets.copy(), eps))

    done = run_on_ranks(answer, program, ranks)
    sent = sum(record.sent for record in done.records) // logits.itemsize
    return done.results, sent, float(cross_entropy(logits, targets, smoothing=eps)[0])


def _off(right: float) -> Callable[[float], bool]:
    """Whether a loss is not ``right``; nan is not."""
    return lambda loss: not abs(loss - right) <= 1e-9 * abs(right)


def _own_classes(group: Any, z: np.ndarray, mine: np.ndarray, targets: np.ndarray, eps: float):
    """A loss in which each rank knows of its own classes alone."""
    own = (z * (targets[..., None] == mine)).sum(-1)
    return np.mean(np.log(np.exp(z).sum(-1)) - (1 - eps) * own - eps * z.mean(-1))


@styled
def _losses(found: list[float], right: float, note: str, judged: bool = True) -> draw.Figure:
    """A bar for each rank, beside the loss of one device; what is wrong is framed if ``judged``."""
    figure = canvas(1.2 + 0.36 * len(found), f"The loss of {len(found)} ranks{note}")
    axes = figure.subplots()
    for rank, loss in enumerate(found):
        at = loss if np.isfinite(loss) else 0.0
        axes.barh(rank, at, draw.HEIGHT, color=colour_of_rank(rank))
        if judged and _off(right)(loss):
            low = rank - draw.HEIGHT / 2
            draw.mark_box(axes, (0, low, max(at, 0.02 * right), draw.HEIGHT), f"rank {rank}")
        draw.note(axes, (max(at, right), rank), f"{loss:.4f}", (6, 0))
    draw.lanes(axes, [f"rank {rank}" for rank in range(len(found))])
    draw.limit_line(axes, right)
    axes.set(xlabel="loss (nats)", xlim=(0, 1.2 * max(right, *filter(np.isfinite, [*found, 0.0]))))
    entries = [draw.line_entry(f"one device: {right:.4f}", GREY, linestyle="--")]
    if judged:
        entries.append(draw.patch_entry("wrong", "none", edgecolor=RED))
    draw.legend(figure, entries)
    return figure
