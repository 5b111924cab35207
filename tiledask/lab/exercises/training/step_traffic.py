"""Predict what a training step of a small GPT moves, and how often it waits; then it is counted.

{"tensor": bytes, "pipeline": bytes, "data": bytes, "barriers": number}  |  one step, counted
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tiledask.distributed.training import GPT, train
from tiledask.errors import ConfigError, short
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.result import NEAR
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.training.rank_grid import rank_grid
from tiledask.tile.datasets import load_text

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
    words = {part: f"{part} parallel, bytes" for part in PARTS} | {"barriers": "barriers"}

    def measure(answer: Any) -> list[Target]:
        counted = _counted(model, shape, microbatches, batch)
        return [
            Target(name, 0, int(answer[what] != counted[what]), 0, remarks=(_off(name, *pair),))
            for what, name in words.items()
            for pair in [(answer[what], counted[what])]
        ]

    def figure(answer: Any) -> Figure:
        yours = "not attempted"
        if answer is not None:
            yours = ", ".join(f"{name} {n:,}" for name, n in answer.items())
        return rank_grid(model, shape, batch=batch, title=f"Who has what; your step: {yours}")

    dp, tp, pp = shape
    return Exercise(
        name="traffic of a step",
        question=(
            f"A GPT of {layers} layers, hidden size {hidden}, {heads} heads, {sequence} positions "
            f"and {vocabulary} characters trains on {dp} copies x {tp} tensor ranks x {pp} stages "
            f"in float32, {batch} rows in {microbatches} micro-batches, 1F1B, no ZeRO. How many "
            f"bytes do all ranks together send in a step for tensor, pipeline and data "
            f"parallelism, and how many barriers has the busiest rank? 0 of the 4 numbers may "
            f"be off."
        ),
        form="a dict of four numbers of 0 or more, for example {'tensor': 0, 'pipeline': 0, "
        "'data': 0, 'barriers': 0}",
        hints=(
            "An all-reduce between 2 ranks sends the array once from each. What is all-reduced "
            "forward and backward in each layer, and what at the embedding and the head?",
            "Pipeline: one array of b x s x h there and one back at each cut, from each tensor "
            "rank. Data: the gradients of what a rank holds; what every tensor rank holds counts "
            "in each of them.",
            "In each layer 4 all-reduces of b s h, one at the embedding, one for the head's input, "
            "and three of b s for the loss; positions, norms and the biases behind a sum are on "
            "every tensor rank. A barrier is a collective: count those of each stage, in each "
            "micro-batch, and one for each unit that is summed. The stage with most counts.",
        ),
        measured=measure,
        drawn=figure,
        read=_numbers,
    )


def _off(name: str, given: float, right: float) -> str:
    """In which direction a number is off, and whether by little or by much; not by how much."""
    side = "low" if given < right else "high"
    if abs(given - right) <= NEAR * right:
        return f"{name}: {given:,} is too {side}, but near"
    far = "far " if given > 2 * right or 2 * given < right else ""
    return f"{name}: {given:,} is {far}too {side}"


def _numbers(answer: Any) -> dict[str, int] | None:
    wanted = (*PARTS, "barriers")
    if not isinstance(answer, Mapping) or set(answer) != set(wanted):
        return None
    for name, n in answer.items():
        if not isinstance(n, (int, float)) or not n >= 0:
            raise ConfigError(f"{name!r} is a number of 0 or more, got {short(n)}")
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
        timeout=240,
    )
    layers = done.layers()
    sent = layers.groupby("parallel").bytes.sum() if len(layers) else {}
    found = {part: int(sent.get(part, 0)) for part in PARTS}
    return found | {"barriers": int(done.to_frame().barriers.iloc[0])}
