"""Work out the four terms of a training's memory by hand."""

from typing import Any

from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.units import format_bytes

__all__ = ["four_terms"]

TERMS = ("weights", "gradients", "optimizer states", "activations")
NEAR = 0.01
"""How far off a term may be, as a share of it."""
_EXAMPLE = (1e9, 2e9, 3e9, 4e9)
"""How an answer is written: none of its terms is near."""


def four_terms(
    model: str | Model = "gpt-200b", recipe: str = "mixed-adam-16", sequences: int = 1
) -> Exercise:
    """Give the bytes of weights, gradients, optimizer states and activations on one device."""
    what = load_model(model) if isinstance(model, str) else model
    memory = estimate_memory(what, Layout(microbatch=sequences), recipe)
    held = memory.ledger.by_tensor(0)
    right = dict.fromkeys(TERMS, 0)
    for tensor in ("weights", "gradients", "fp32 gradients", "activations"):
        right[tensor.removeprefix("fp32 ")] += held.get(tensor, 0)
    for tensor in ("master weights", "momentum", "variance"):
        right["optimizer states"] += held.get(tensor, 0)

    def measure(given: tuple[float, ...]) -> list[Target]:
        wrong = [
            f"{term}: {format_bytes(round(mine))} are too {'much' if mine > true else 'little'}"
            for mine, (term, true) in zip(given, right.items(), strict=True)
            if abs(mine - true) > NEAR * true
        ]
        return [Target("terms off by more than 1 %", 0, len(wrong), 0, remarks=wrong)]

    def figure(given: tuple[float, ...] | None) -> Figure:
        mine = dict(zip(TERMS, map(round, given or _EXAMPLE), strict=True))
        title = f"A copy of {what.name}" if given else "Four terms as they are drawn: an example"
        said = "your four terms" if given else "example"
        return plots.memory_bars({said: mine}, place="copy", title=title)

    return Exercise(
        name="four terms",
        form="four numbers of bytes, for example (1e9, 2e9, 3e9, 4e9)",
        hints=(
            "Three of the terms are the number of parameters times the bytes that the recipe "
            "keeps for each: td.load_recipe(...).states lists them.",
            "The master weights, the momentum and the variance are the optimizer's states.",
            "Of each sequence every layer keeps s h (34 + 5 a s / h) bytes.",
        ),
        measured=measure,
        drawn=figure,
        read=_numbers,
    )


def _numbers(answer: Any) -> tuple[float, ...] | None:
    numbers = tuple(answer) if isinstance(answer, tuple | list) else ()
    if len(numbers) != 4 or not all(isinstance(n, int | float) and n >= 0 for n in numbers):
        return None
    return tuple(map(float, numbers))
