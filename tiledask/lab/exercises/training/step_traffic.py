"""Predict what a training step of a small GPT moves, and how often it waits; then it is counted.

{"tensor": bytes, "pipeline": bytes, "data": bytes, "barriers": number}  |  one step, counted
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from tiledask.distributed.training import GPT, train
from tiledask.errors import ConfigError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.style import PALETTE, canvas, ink_on, lighter, styled
from tiledask.plan.products.placement import split
from tiledask.tile.datasets import load_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PARTS", "step_traffic"]

PARTS = ("tensor", "pipeline", "data")
"""Kinds of parallelism, each with bytes of its own."""
Shape = tuple[int, int, int]


def step_traffic(
    shape: Shape = (2, 2, 2),
    *,
    microbatches: int = 2,
    batch: int = 8,
    hidden: int = 32,
    layers: int = 3,
    heads: int = 4,
    sequence: int = 16,
) -> Exercise:
    """Say how many bytes all ranks of a (dp, tp, pp) mesh send in a step, by kind of parallelism,
    and how many barriers the busiest has. Float32, 1F1B, no ZeRO.

    The answer is a dict {"tensor": ..., "pipeline": ..., "data": ..., "barriers": ...}. The step is
    run on threads and counted.

    >>> nothing = dict.fromkeys((*PARTS, "barriers"), 0)
    >>> bool(step_traffic((1, 1, 1)).check(nothing)), bool(step_traffic((2, 1, 1)).check(nothing))
    (True, False)
    """
    vocabulary = load_text("tales").vocabulary
    model = GPT(vocabulary, hidden, layers, heads, sequence)
    words = {part: f"bytes off, {part} parallel" for part in PARTS} | {"barriers": "barriers off"}

    def measure(answer: Any) -> list[Target]:
        numbers, counted = _numbers(answer), _counted(model, shape, microbatches, batch)
        return [
            Target(name, 0, abs(numbers[what] - counted[what]), 0) for what, name in words.items()
        ]

    def figure(answer: Any) -> "Figure":
        yours = "not attempted"
        if answer is not None:
            yours = ", ".join(f"{name} {n:,}" for name, n in _numbers(answer).items())
        return _mesh(model, shape, microbatches, batch, f"Who has what; your step: {yours}")

    return Exercise(name="traffic of a step", measured=measure, drawn=figure)


def _numbers(answer: Any) -> dict[str, int]:
    wanted = (*PARTS, "barriers")
    fits = isinstance(answer, Mapping) and set(answer) == set(wanted)
    if not fits or not all(isinstance(n, (int, float)) and n >= 0 for n in answer.values()):
        raise ConfigError(
            f"an answer has a number of 0 or more for each of {', '.join(map(repr, wanted))}; got "
            f"{answer!r}"
        )
    return {name: answer[name] for name in wanted}


@lru_cache(maxsize=8)
def _counted(model: GPT, shape: Shape, microbatches: int, batch: int) -> dict[str, int]:
    """What a step really moved."""
    done = train(
        model,
        load_text("tales"),
        shape,
        steps=1,
        batch=batch,
        microbatches=microbatches,
        progress=False,
        timeout=60.0,
    )
    layers = done.layers()
    sent = layers.groupby("parallel").bytes.sum() if len(layers) else {}
    found = {part: int(sent.get(part, 0)) for part in PARTS}
    return found | {"barriers": int(done.to_frame().barriers.iloc[0])}


@styled
def _mesh(model: GPT, shape: Shape, microbatches: int, batch: int, title: str) -> "Figure":
    """A box for each rank: copies and their columns from above, stages from the left."""
    (dp, tp, pp), cut = shape, model.even_cut(shape[2])
    figure = canvas(1.0 + 0.62 * dp * tp, title)
    axes = figure.subplots()
    for rank, (copy, part, stage) in enumerate(product(*map(range, shape))):
        colour = lighter(PALETTE[copy % len(PALETTE)], 0.15 + 0.5 * (part % 2))
        y = copy * tp + part + 0.25 * copy
        axes.barh(y, 0.94, 0.88, left=stage, color=colour, gid=f"rank {rank}")
        low, high = split(0, batch, dp)[copy]
        units = ", ".join(model.stage_units(stage, cut)) or "nothing"
        words = (
            f"rank {rank}: rows {low}-{high - 1} in {microbatches} micro-batches, columns "
            f"{part + 1}/{tp}\n{units}"
        )
        axes.text(
            stage + 0.47, y, words, ha="center", va="center", color=ink_on(colour), fontsize=7.5
        )
    axes.set_xlim(-0.02, pp)
    axes.invert_yaxis()
    axes.set_axis_off()
    return figure
