"""Layouts of a training, drawn so that every value of every option comes up, in random company."""

from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from oracles.single_gpt import TEXT

import tiledask as td
from tiledask.distributed.training import GPT, train
from tiledask.tile.optimizers import SGD, Adam, AdamW

MODELS = {
    "GPT-2": GPT(59, hidden=12, layers=3, heads=3, sequence=6),
    "GPT-2 tied": GPT(59, 12, 2, 3, 6, tied=True),
    "Llama": GPT(53, 12, 2, 3, 6, kv_heads=1, ffn=17, gated=True),
    "Llama tied": GPT(59, 16, 3, 4, 5, kv_heads=2, ffn=7, gated=True, tied=True),
}
RULES = {
    "SGD": SGD(0.1, momentum=0.9),
    "Adam": Adam(1e-2, tiny=1e-6),
    "AdamW": AdamW(1e-2, tiny=1e-6, weight_decay=0.1),
}
"""``tiny`` above the rounding of gradients that are all but zero: Adam would make steps of it."""
BATCH = 5
SCHEDULES = ("1f1b", "gpipe", "interleaved")
SHAPES = [s for s in product(range(1, 9), repeat=3) if prod(s) <= 8]
"""Every (dp, tp, pp) of 1 to 8 ranks."""


class Layout(NamedTuple):
    """How a training lies on its ranks."""

    shape: tuple[int, int, int]
    schedule: str
    cut: tuple[int, ...]
    zero: int
    microbatches: int
    sequence_parallel: bool

    @property
    def options(self):
        """What `train` is given beside the ranks."""
        shape, *_ = self
        options = {name: value for name, value in self._asdict().items() if name != "shape"}
        if self.schedule == "interleaved":
            stages = len(self.cut), self.microbatches
            options["schedule"] = td.schedule(self.schedule, *stages, devices=shape[2])
        return options

    def __str__(self):
        at, cut = "x".join(map(str, self.shape)), ".".join(map(str, self.cut))
        tokens = ",sp" if self.sequence_parallel else ""
        return f"{at},{self.schedule},cut{cut},zero{self.zero},m{self.microbatches}{tokens}"


def run(model, rule, layout, ranks=None, **options):
    """A training of one of MODELS by one of RULES."""
    usual = {"batch": BATCH, "rule": RULES[rule], "dtype": "float64", "timeout": 240}
    usual |= layout.options | {"progress": False}
    return train(MODELS[model], TEXT, ranks or layout.shape, **usual | options)


def dealt(draw, values, needed):
    """``needed`` values, each as often as another or once more: a shuffled pack, and the next."""
    values = list(values)
    packs = [draw.sample(values, len(values)) for _ in range(-(-needed // len(values)))]
    return [card for pack in packs for card in pack][:needed]


def drawn_layouts(draw, layers):
    """A layout for each number of layers of a model."""
    n = len(layers)
    columns = (SHAPES, SCHEDULES, range(4), (1, 2, 3, 4), (False, True), ("even", "any"))
    made = []
    for count, shape, schedule, zero, microbatches, tokens, kind in zip(
        layers, *(dealt(draw, values, n) for values in columns), strict=True
    ):
        stages = shape[2] * (2 if schedule == "interleaved" else 1)
        marks = [count * s // stages for s in range(1, stages)]
        if kind == "any":  # as good as always uneven, and with empty stages
            marks = sorted(draw.randint(0, count) for _ in marks)
        cut = tuple(b - a for a, b in pairwise((0, *marks, count)))
        made.append(Layout(shape, schedule, cut, zero, microbatches, tokens))
    return made
