"""A small network trained in any precision.

x [784] --w_in-- + --- block --- + --- block --- --w_out-- logits [10] -- loss
                   w_1, GELU, w_2
"""

from typing import Any, NamedTuple

import numpy as np

from tiledask.tile import layers, optimizers
from tiledask.tile.datasets import load_images
from tiledask.tile.layers.operands import wide
from tiledask.tile.optimizers import SGD, LossScale, Rule, TrainState

__all__ = ["Small", "SmallRun", "gradients", "train"]

Arrays = dict[str, Any]


class Small(NamedTuple):
    """Which network."""

    hidden: int = 32
    inner: int = 64
    blocks: int = 2

    def parameters(self) -> dict[str, layers.Parameter]:
        """The model's weights by name."""
        made = layers.matrix("_in", 784, self.hidden, bias=False)
        for n in range(self.blocks):
            block = layers.mlp_parameters(self.hidden, self.inner, bias=False)
            made |= {f"{n}.{name}": each for name, each in block.items()}
        return made | layers.matrix("_out", self.hidden, 10, bias=False)


SMALL, RULE = Small(), SGD(0.05, momentum=0.9)


class SmallRun(NamedTuple):
    """What a training brought."""

    losses: tuple[float, ...]
    """One a step, before it."""
    scales: tuple[float, ...]
    """Of the loss, one a step."""
    skipped: int
    state: TrainState


def train(
    dtype: str = "float32",
    steps: int = 50,
    *,
    rule: Rule = RULE,
    scale: LossScale | None = None,
    master: bool | None = None,
    seed: int = 0,
    batch: int = 32,
    small: Small = SMALL,
    times: float = 1.0,
) -> SmallRun:
    """A Run of `Small` on the shipped digits; the same bits every time.

    dtype
        Of weights, activations and gradients.
    scale
        Of the loss; None: none, and nothing is skipped.
    times
        The loss is multiplied with it, and the gradients are divided again once they are single:
        a network whose gradients are that much smaller, or larger.
    """
    digits = load_images("digits")
    drawn = layers.initialise(small.parameters(), seed)
    state = optimizers.begin(drawn, rule, dtype, master=master)
    losses, scales = [], []
    with np.errstate(all="ignore"):  # what overflows here is what is looked at
        for step in range(steps):
            x, labels = digits.batch(seed, step, batch, dtype=dtype)
            x = x.reshape(batch, -1)
            scales.append(scale.scale if scale else 1.0)
            loss, grads = gradients(state.weights, small, x, labels, times * scales[-1])
            losses.append(loss)
            grads = {name: wide(g) / times for name, g in grads.items()}
            state, scale, _ = optimizers.advance(state, rule, grads, scale)
    return SmallRun(tuple(losses), tuple(scales), scale.skipped if scale else 0, state)


def gradients(
    weights: Arrays, small: Small, x: Any, labels: Any, times: float
) -> tuple[float, Arrays]:
    """(mean loss of the rows, gradients of ``times`` the loss)."""
    blocks = [{w: weights[f"{n}.{w}"] for w in ("w_1", "w_2")} for n in range(small.blocks)]
    grads: Arrays = {}
    h, kept_in = layers.linear(x, weights["w_in"])
    kept = []
    for block in blocks:
        out, mine = layers.mlp(h, block)
        kept.append(mine)
        h = h + out
    logits, kept_out = layers.linear(h, weights["w_out"])
    loss, kept_loss = layers.cross_entropy(logits, labels)
    dlogits = layers.cross_entropy_grad(times, kept_loss)
    dh, grads["w_out"], _ = layers.linear_grad(dlogits, kept_out, weights["w_out"])
    for n in reversed(range(small.blocks)):
        dx, of_block = layers.mlp_grad(dh, kept[n], blocks[n])
        grads |= {f"{n}.{name}": grad for name, grad in of_block.items()}
        dh = dh + dx
    _, grads["w_in"], _ = layers.linear_grad(dh, kept_in, weights["w_in"])
    return float(loss), {name: grads[name] for name in weights}
