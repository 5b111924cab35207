"""Figures of a partition and a schedule together: when, and how full each device gets."""

from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, RuleError
from tiledask.lab.judging.figure import titled
from tiledask.lab.judging.result import Result
from tiledask.lab.plots.pipelines.gantt import gantt
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import styled
from tiledask.lab.puzzles.compositions import (
    Composition,
    memory_of,
    read_unlimited,
    run_composition,
)
from tiledask.lab.puzzles.figures.draw_cuts import draw_cut
from tiledask.lab.puzzles.figures.draw_orders import label_devices, mark_end
from tiledask.lab.puzzles.kind import PuzzleSpec
from tiledask.plan.splitting.exact import capacities

__all__ = ["draw_composition"]

_GB = 1e9
_LEGIBLE = 64
"""Actions of a device, at most, whose numbers can be read beside its layers and memory."""


@styled
def draw_composition(puzzle: PuzzleSpec, answer: Any, result: Result) -> Figure:
    """The run with each device's layers and memory beside it; of the task for no answer."""
    inputs = puzzle.inputs
    try:
        composition = None if answer is None else read_unlimited(inputs, answer)
    except (ConfigError, RuleError):
        composition = None
    if composition is None:
        layers = answer.replace("\n", ";").partition(";")[0] if isinstance(answer, str) else None
        costs = {**inputs, "memory": inputs["weights"]}
        return draw_cut(
            titled(puzzle, result, "costs and weights of the layers, no activations yet"),
            costs,
            {},
            layers,
        )
    run = run_composition(inputs, composition)
    numbers = bool(np.bincount(run.device[run.computes]).max() <= _LEGIBLE)
    name = composition.order.name or "the order"
    figure = gantt(run, titles=[name], title=titled(puzzle, result), numbers=numbers)
    caps = capacities(inputs["capacity"], inputs["devices"])
    held = zip(memory_of(inputs, composition), caps, strict=True)
    labels = [
        (
            f"device {d}: {_layers(composition, d - 1)}, {used / _GB:.3g} of {cap / _GB:.3g} GB",
            used > cap,
        )
        for d, (used, cap) in enumerate(held, 1)
    ]
    label_devices(figure.axes[0], labels)
    mark_end(figure.axes[0], run, puzzle.targets.get("makespan"))
    return figure


def _layers(composition: Composition, device: int) -> str:
    """The layers of a device as ranges: "1-3, 22-24"."""
    mine = [
        n
        for s, group in enumerate(composition.stages)
        if composition.order.place[s] == device
        for n in group
    ]
    breaks = [0, *(i for i in range(1, len(mine)) if mine[i] != mine[i - 1] + 1), len(mine)]
    return ", ".join(f"{mine[a]}-{mine[b - 1]}" for a, b in pairwise(breaks))
