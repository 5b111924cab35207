"""Optimizers: rules, mixed precision, loss scales, clipping of gradients.

rules.py       SGD, Adam, AdamW: one step of arrays, element by element
mixed.py       the weights, their single-precision masters and the moments; a step of all of them
loss_scale.py  by what the loss is multiplied, and what is skipped
clipping.py    the norm of all gradients together

Values in, values out: a step returns new arrays and changes none. Rules work element by element,
so the step of a shard is the shard of the step, to the bit, and ZeRO is a matter of slices.
"""

from tiledask.tile.optimizers.clipping import clip_factor
from tiledask.tile.optimizers.loss_scale import LossScale, unscaled
from tiledask.tile.optimizers.mixed import TrainState, advance, begin, flush
from tiledask.tile.optimizers.rules import SGD, Adam, AdamW, Rule, rule_for

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "LossScale",
    "Rule",
    "TrainState",
    "advance",
    "begin",
    "clip_factor",
    "flush",
    "rule_for",
    "unscaled",
]
