"""A model as layers one after the other, on one device.

forward    x -> layer -> layer -> layer -> loss        what each keeps stays
backward       <- layer <- layer <- layer <-           and with it each finds its gradients
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiledask.tile import layers as L

__all__ = ["Layer", "Weights", "gradients", "initial_weights", "sizes"]

Weights = Mapping[str, Mapping[str, Any]]
"""Name of a layer -> name of a weight -> array."""


@dataclass(frozen=True)
class Layer:
    """One layer of a chain."""

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


def sizes(layers: Sequence[Layer]) -> dict[str, int]:
    """Numbers of each layer, by name."""
    return {layer.name: layer.size for layer in layers}


def initial_weights(layers: Sequence[Layer], seed: int = 0, dtype: str = "float64") -> Weights:
    """Weights drawn from a seed."""
    return {
        layer.name: L.initialise(dict(layer.parameters), seed, prefix=f"{layer.name}.", dtype=dtype)
        for layer in layers
    }


def gradients(
    layers: Sequence[Layer], weights: Weights, x: Any, targets: Any, count: int | None = None
) -> tuple[float, dict[str, dict[str, Any]]]:
    """(loss, gradients by layer and name) of samples on a single device.

    The loss is the sum of the samples' cross-entropies over ``count``, by default their number:
    with that of the whole batch, the losses and gradients of its parts add up to the batch's.
    """
    kept, found = [], {}
    for layer in layers:
        x, k = layer.forward(weights[layer.name], x)
        kept.append(k)
    loss, k = L.cross_entropy(x, targets, count=len(targets) if count is None else count)
    dy = L.cross_entropy_grad(1.0, k)
    for layer in reversed(layers):
        dy, found[layer.name] = layer.backward(weights[layer.name], dy, kept.pop())
    return float(loss), {layer.name: found[layer.name] for layer in layers}
