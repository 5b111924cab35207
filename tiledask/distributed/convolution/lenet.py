"""The LeNet of Dive into Deep Learning's chapter on several GPUs, layer by layer on one device.

Its shapes, and how it is split over ranks: tiledask.plan.program.lenet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tiledask.plan.program.lenet import SHAPES
from tiledask.tile import layers as L

__all__ = ["LENET", "Layer"]


@dataclass(frozen=True)
class Layer:
    """One layer of the chain."""

    name: str
    parameters: Mapping[str, L.Parameter]
    forward: Callable[[Mapping[str, Any], Any], tuple[Any, Any]] = field(repr=False)
    """(weights, x) -> (y, kept)."""
    backward: Callable[[Mapping[str, Any], Any, Any], tuple[Any, dict[str, Any]]] = field(
        repr=False
    )
    """(weights, dy, kept) -> (dx, gradients by name)."""

    @property
    def size(self) -> int:
        """How many numbers its weights have."""
        return sum(p.size for p in self.parameters.values())


class KeptConvBlock(NamedTuple):
    """What a convolution with relu and pooling keeps."""

    conv: Any
    activation: Any
    pool: Any


class KeptDense(NamedTuple):
    """What a linear layer with or without relu keeps."""

    x: Any
    shape: tuple[int, ...]
    """The shape of what came in, before it was flattened."""
    activation: Any


def conv_forward(weights: Any, x: Any) -> tuple[Any, KeptConvBlock]:
    """The mean of 2x2 of relu of the convolution."""
    y, conv = L.conv2d(x, weights["w"], weights["b"])
    y, activation = L.relu(y)
    y, pool = L.avg_pool2d(y, 2)
    return y, KeptConvBlock(conv, activation, pool)


def conv_backward(
    weights: Any, dy: Any, kept: KeptConvBlock, first: bool
) -> tuple[Any, dict[str, Any]]:
    """(dx, gradients); the images of the ``first`` layer have none."""
    dy = L.relu_grad(L.avg_pool2d_grad(dy, kept.pool), kept.activation)
    dw, db = L.conv2d_grad_weight(dy, kept.conv)
    dx = None if first else L.conv2d_grad_input(dy, kept.conv, weights["w"])
    return dx, {"w": dw, "b": db}


def dense_forward(weights: Any, x: Any, activated: bool) -> tuple[Any, KeptDense]:
    """x w + b, and relu of it if ``activated``."""
    flat, shape = L.flatten(x)
    y, kept = L.linear(flat, weights["w"], weights["b"])
    y, activation = L.relu(y) if activated else (y, None)
    return y, KeptDense(kept, shape, activation)


def dense_backward(weights: Any, dy: Any, kept: KeptDense) -> tuple[Any, dict[str, Any]]:
    """(dx, gradients)."""
    dy = dy if kept.activation is None else L.relu_grad(dy, kept.activation)
    dx, dw, db = L.linear_grad(dy, kept.x, weights["w"], weights["b"])
    return L.flatten_grad(dx, kept.shape), {"w": dw, "b": db}


def _conv(name: str) -> Layer:
    out, channels, rows, columns = SHAPES[name]["w"]
    backward = partial(conv_backward, first=name == "conv1")
    made = L.conv2d_parameters(channels, out, (rows, columns))
    return Layer(name, made, conv_forward, backward)


def _dense(name: str, activated: bool) -> Layer:
    rows, columns = SHAPES[name]["w"]
    made = L.matrix("", rows, columns, bias=True)
    return Layer(name, made, partial(dense_forward, activated=activated), dense_backward)


LENET = (_conv("conv1"), _conv("conv2"), _dense("fc1", True), _dense("fc2", False))
"""The layers, 129,068 parameters."""
