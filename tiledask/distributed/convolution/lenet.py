"""The LeNet of Dive into Deep Learning's chapter on several GPUs, layer by layer on one device.

Its shapes, and how it is split over ranks: tiledask.plan.program.making.lenet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiledask.plan.program.making.lenet import NAMES, SHAPES
from tiledask.tile import layers as L

__all__ = ["LENET", "Layer"]


@dataclass(frozen=True)
class Layer:
    """One layer of the chain: a convolution, relu and the mean of 2x2; or x w + b, and relu unless
    it is the last."""

    name: str

    @property
    def parameters(self) -> Mapping[str, L.Parameter]:
        """Those of one device, by name."""
        inputs, outputs, *window = SHAPES[self.name]["w"]
        if window:  # of a convolution outputs come first
            rows, columns = window
            return L.conv2d_parameters(outputs, inputs, (rows, columns))
        return L.matrix("", inputs, outputs, bias=True)

    @property
    def size(self) -> int:
        """How many numbers its weights have."""
        return sum(p.size for p in self.parameters.values())

    def forward(self, weights: Mapping[str, Any], x: Any) -> tuple[Any, Any]:
        """(y, kept)."""
        w, b = weights["w"], weights["b"]
        if w.ndim == 4:
            y, conv = L.conv2d(x, w, b)
            y, activation = L.relu(y)
            y, pool = L.avg_pool2d(y, 2)
            return y, (conv, activation, pool)
        flat, shape = L.flatten(x)
        y, linear = L.linear(flat, w, b)
        if self.name == NAMES[-1]:
            return y, (linear, None, shape)
        y, activation = L.relu(y)
        return y, (linear, activation, shape)

    def backward(
        self, weights: Mapping[str, Any], dy: Any, kept: Any
    ) -> tuple[Any, dict[str, Any]]:
        """(dx, gradients by name); the images of the first layer have no dx, it is None."""
        w, b = weights["w"], weights["b"]
        product, activation, last = kept
        if w.ndim == 4:
            dy = L.relu_grad(L.avg_pool2d_grad(dy, last), activation)
            dw, db = L.conv2d_grad_weight(dy, product)
            dx = None if self.name == NAMES[0] else L.conv2d_grad_input(dy, product, w)
            return dx, {"w": dw, "b": db}
        dy = dy if activation is None else L.relu_grad(dy, activation)
        dx, dw, db = L.linear_grad(dy, product, w, b)
        return L.flatten_grad(dx, last), {"w": dw, "b": db}


LENET = tuple(map(Layer, NAMES))
"""The layers, 129,068 parameters."""
