"""d2l's LeNet on the ranks of a program, split three ways.

layerwise        each layer's output units on all ranks: gathered, and summed on the way back
in_stages        consecutive layers on each rank: activations go on, gradients come back
data_parallel    all layers on every rank, and some of the images: gradients are averaged once
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiledask.dist.convolution.channels import own
from tiledask.dist.convolution.lenet import BOUNDARIES, LENET
from tiledask.dist.convolution.lenet_plan import stages_of
from tiledask.dist.data_parallel.averaging import average
from tiledask.dist.data_parallel.chain import Layer, Weights, gradients
from tiledask.dist.ranks.group import Group
from tiledask.dist.tensor.labels import labelled
from tiledask.plan.products.placement import split
from tiledask.tile import layers as L

__all__ = ["PARTITIONINGS", "Share", "data_parallel", "in_stages", "layerwise", "put_together"]


@dataclass(frozen=True)
class Share:
    """What a rank has of a training step."""

    loss: float
    """Its part: the ranks' parts add up to the loss."""
    grads: dict[str, dict[str, Any]]
    """Of the weights that it holds, by layer and name."""
    weight_bytes: int
    """Of the weights that it holds."""
    flops: int
    """Of its products, counted from the arrays that are multiplied."""


def layerwise(rank: Any, weights: Weights, images: Any, classes: Any) -> Share:
    """Every layer split by its output channels or columns; each rank knows the whole loss.

    All ranks have all images; of ``weights`` each uses its own part.
    """
    group, tally = rank.group(), []
    mine = {layer.name: _by_units(group, weights[layer.name]) for layer in LENET}
    x, kept = images, []
    for layer in _counted(LENET, tally):
        x, k = layer.forward(mine[layer.name], x)
        kept.append(k)
        with labelled(group, layer.name, "forward", "y"):
            x = group.all_gather(x, 1)
    loss, k = L.cross_entropy(x, classes)
    last, first = BOUNDARIES[-1], LENET[0]
    dy = L.cross_entropy_grad(1.0, k)[:, own(group, last.units)]
    grads = {}
    for layer, before in zip(LENET[::-1], [*BOUNDARIES[-2::-1], None], strict=True):
        dx, grads[layer.name] = layer.backward(mine[layer.name], dy, kept.pop())
        if layer is not first:
            extents = [stop - start for start, stop in split(0, before.units, group.size)]
            with labelled(group, before.name, "backward", "dy"):
                dy = group.reduce_scatter(dx, 1, extents=extents)
    grads = {layer.name: grads[layer.name] for layer in LENET}
    return Share(float(loss) / group.size, grads, _nbytes(mine), sum(tally))


def in_stages(rank: Any, weights: Weights, images: Any, classes: Any) -> Share:
    """Consecutive layers on each rank; the last has the loss. All ranks are given the images,
    and the first looks at them."""
    group, tally = rank.group(), []
    stages, me = stages_of(group.size), group.rank
    layers = _counted([LENET[i] for i in stages[me]], tally)
    mine = {layer.name: dict(weights[layer.name]) for layer in layers}
    first, last = me == 0, me == group.size - 1

    def between(stage: int, *names: str) -> Any:
        """A label for what lies between this stage and the next."""
        return labelled(group, BOUNDARIES[stages[stage][-1]].name, *names)

    x, kept, loss, grads = images, [], 0.0, {}
    if not first:
        with between(me - 1, "forward", "y"):
            x = group.recv(me - 1)
    for layer in layers:
        x, k = layer.forward(mine[layer.name], x)
        kept.append(k)
    if last:
        value, k = L.cross_entropy(x, classes)
        loss, dy = float(value), L.cross_entropy_grad(1.0, k)
    else:
        with between(me, "forward", "y"):
            group.send(x, me + 1)
        with between(me, "backward", "dy"):
            dy = group.recv(me + 1)
    for layer in reversed(layers):
        dy, grads[layer.name] = layer.backward(mine[layer.name], dy, kept.pop())
    if not first:
        with between(me - 1, "backward", "dy"):
            group.send(dy, me - 1)
    return Share(loss, {name: grads[name] for name in mine}, _nbytes(mine), sum(tally))


def data_parallel(rank: Any, weights: Weights, images: Any, classes: Any) -> Share:
    """All layers on every rank, for its images; the gradients are those of the whole batch.

    One all_reduce, as everything fits in one bucket.
    """
    group, tally = rank.group(), []
    mine = slice(*split(0, len(images), group.size)[group.rank])
    count = mine.stop - mine.start
    layers = _counted(LENET, tally)
    # the mean over the own images; where there are none, gradients of zeros
    loss, grads = gradients(layers, weights, images[mine], classes[mine], max(1, count))
    flat = {(layer, kind): g for layer, each in grads.items() for kind, g in each.items()}
    with labelled(group, "gradients"):
        flat = average(group, flat, count, total=len(images))
    grads = {layer: {kind: flat[layer, kind] for kind in each} for layer, each in grads.items()}
    return Share(loss * count / len(images), grads, _nbytes(weights), sum(tally))


PARTITIONINGS: Mapping[str, Callable[..., Share]] = {
    "layerwise": layerwise,
    "network": in_stages,
    "data parallel": data_parallel,
}
"""d2l's three, by name."""


def put_together(name: str, shares: Sequence[Share]) -> tuple[float, dict[str, dict[str, Any]]]:
    """(loss, all gradients) of a partitioning called ``name``; shards one behind the other."""
    loss = sum(share.loss for share in shares)
    if name == "network":
        return loss, {layer: g for share in shares for layer, g in share.grads.items()}
    if name == "data parallel":
        return loss, shares[0].grads
    grads = {}
    for layer in LENET:
        grads[layer.name] = {
            kind: np.concatenate(
                [share.grads[layer.name][kind] for share in shares], axis=_dim(parameter)
            )
            for kind, parameter in layer.parameters.items()
        }
    return loss, grads


def _by_units(group: Group, weights: Mapping[str, Any]) -> dict[str, Any]:
    """This rank's output channels or columns, copied."""
    found = {}
    for kind, w in weights.items():
        dim = _dim(w)
        found[kind] = w[(slice(None),) * dim + (own(group, w.shape[dim]),)].copy()
    return found


def _dim(w: Any) -> int:
    """Along which output units lie: the rows of a convolution's w and of b, a matrix's columns."""
    return 1 if len(w.shape) == 2 else 0


def _nbytes(weights: Weights) -> int:
    return sum(w.nbytes for each in weights.values() for w in each.values())


def _counted(layers: Sequence[Layer], tally: list[int]) -> list[Layer]:
    """The same layers; each adds the operations of its products, of all three passes, to
    ``tally``: 2 for each weight that goes into each number of the output."""

    def counted(layer: Layer) -> Layer:
        def forward(weights: Mapping[str, Any], x: Any) -> tuple[Any, Any]:
            y, kept = layer.forward(weights, x)
            out = y if kept.bend is None else kept.bend
            w = weights["w"]
            inner = w.size // max(1, w.shape[_dim(w)])
            tally.append(2 * out.size * inner * (2 if layer is LENET[0] else 3))
            return y, kept

        return replace(layer, forward=forward)

    return [counted(layer) for layer in layers]
