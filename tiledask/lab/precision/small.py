"""A small network trained in any precision, by one device or by several that split each block.

    x [784] --w_in-- + --- block --- + --- block --- --w_out-- logits [10] -- loss
                             |
            rank 0   w_1[:, 0:k]   w_2[0:k]   --.
            rank 1   w_1[:, k:2k]  w_2[k:2k]  --+-- each rounded, then added up in this precision
            ...                                 |   (forward: y; backward: dx)

The ranks are played one after the other: what tensor parallelism does to the numbers is the order
and the rounding of these sums, and nothing else.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.products.placement import split
from tiledask.tile import layers, optimizers
from tiledask.tile.datasets import load_images
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
    ranks: int = 1,
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
        Of weights, activations, gradients, and of what ranks add up.
    ranks
        That split each block.
    scale
        Of the loss; None: none, and nothing is skipped.
    times
        The loss is multiplied with it, and the gradients are divided again once they are single:
        a network whose gradients are that much smaller, or larger.
    """
    if not 1 <= ranks <= small.inner:
        raise ConfigError(
            f"a block of {small.inner} columns is split over 1 to {small.inner} ranks, got {ranks}"
        )
    digits = load_images("digits")
    drawn = layers.initialise(small.parameters(), seed)
    state = optimizers.begin(drawn, rule, dtype, master=master)
    losses, scales = [], []
    with np.errstate(all="ignore"):  # what overflows here is what is looked at
        for step in range(steps):
            x, labels = digits.batch(seed, step, batch, dtype=dtype)
            x = x.reshape(batch, -1)
            scales.append(scale.scale if scale else 1.0)
            loss, grads = gradients(state.weights, small, x, labels, ranks, times * scales[-1])
            losses.append(loss)
            grads = optimizers.unscaled(grads, times)
            state, scale, _ = optimizers.advance(state, rule, grads, scale)
    return SmallRun(tuple(losses), tuple(scales), scale.skipped if scale else 0, state)


def gradients(
    weights: Arrays, small: Small, x: Any, labels: Any, ranks: int, times: float
) -> tuple[float, Arrays]:
    """(mean loss of the rows, gradients of ``times`` the loss); ``ranks`` split each block."""
    columns = [slice(a, b) for a, b in split(0, small.inner, ranks)]
    grads: Arrays = {}
    h, kept_in = layers.linear(x, weights["w_in"])
    kept = []
    for n in range(small.blocks):
        w_1, w_2 = weights[f"{n}.w_1"], weights[f"{n}.w_2"]
        block = [{"w_1": w_1[:, part], "w_2": w_2[part]} for part in columns]
        outs, keeps = zip(*[layers.mlp(h, each) for each in block], strict=True)
        kept.append((block, keeps))
        h = h + added(outs)
    logits, kept_out = layers.linear(h, weights["w_out"])
    loss, kept_loss = layers.cross_entropy(logits, labels)
    dlogits = layers.cross_entropy_grad(times, kept_loss)
    dh, grads["w_out"], _ = layers.linear_grad(dlogits, kept_out, weights["w_out"])
    for n in reversed(range(small.blocks)):
        backs = [layers.mlp_grad(dh, k, w) for w, k in zip(*kept[n], strict=True)]
        for name, axis in (("w_1", 1), ("w_2", 0)):
            grads[f"{n}.{name}"] = np.concatenate([g[name] for _, g in backs], axis)
        dh = dh + added([dx for dx, _ in backs])
    _, grads["w_in"], _ = layers.linear_grad(dh, kept_in, weights["w_in"])
    return float(loss), {name: grads[name] for name in weights}


def added(parts: Sequence[Any]) -> Any:
    """The sum of what the ranks bring, from the left, rounded after every addition."""
    return reduce(lambda a, b: optimizers.flush(a + b, a.dtype), parts)
