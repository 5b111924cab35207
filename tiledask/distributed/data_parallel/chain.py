"""A model as layers one after the other; weights are looked up when they are needed.

forward    x -> layer -> layer -> layer -> loss        what each keeps stays
backward       <- layer <- layer <- layer <-           each hands over its gradients as it is done

``weights[name]`` is asked for once in a layer's forward and once in its backward, so a mapping
that fetches them from other ranks (ZeRO-3) is as good as a dict.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tiledask.tile import layers as L

__all__ = ["Layer", "WeightSource", "Weights", "gradient", "gradients", "initial_weights", "sizes"]

Weights = Mapping[str, Mapping[str, Any]]
"""Name of a layer -> name of a weight -> array."""


class WeightSource(Protocol):
    """What gives a layer's weights by its name: a dict, or what fetches them."""

    def __getitem__(self, name: str, /) -> Mapping[str, Any]: ...


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


def gradient(
    layers: Sequence[Layer],
    weights: WeightSource,
    x: Any,
    targets: Any,
    count: int,
    done: Callable[[str, dict[str, Any]], None],
    scale: float = 1.0,
) -> float:
    """The loss: the sum of the samples' cross-entropies over ``count``.

    ``count`` is the number of samples of the whole batch: the losses of ranks, and their
    gradients, add up to those of the batch. ``done(name, gradients)`` is called for each layer,
    the last one first. ``scale`` multiplies the gradients.
    """
    kept = []
    for layer in layers:
        x, k = layer.forward(weights[layer.name], x)
        kept.append(k)
    loss, k = L.cross_entropy(x, targets, count=count)
    dy = L.cross_entropy_grad(scale, k)
    for layer in reversed(layers):
        dy, grads = layer.backward(weights[layer.name], dy, kept.pop())
        done(layer.name, grads)
    return float(loss)


def gradients(
    layers: Sequence[Layer], weights: Weights, x: Any, targets: Any, count: int | None = None
) -> tuple[float, dict[str, dict[str, Any]]]:
    """(loss, gradients by layer and name) of samples on a single device."""
    found: dict[str, dict[str, Any]] = {}
    count = len(targets) if count is None else count
    loss = gradient(layers, weights, x, targets, count, found.__setitem__)
    return loss, {layer.name: found[layer.name] for layer in layers}
