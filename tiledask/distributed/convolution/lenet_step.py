"""One training step of LeNet on one rank, whatever the split: forward, backward, gradients added.

stage 0      layers forward --send--> stage 1 ... layers forward, loss          network
             layers backward <--send-- stage 1 ... layers backward
all          gradients --all_reduce over copies, in space over parts too--> those of the batch

What a stage's layers call among its parts, forward and backward:
    by units     all_gather of x | reduce_scatter of dx                         layerwise
    by rows      halo_exchange, then rows to images | the same, backwards       space

A loss is over the number of images of the whole batch: however many of them a rank has, gradients
are added up as they are.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tiledask.distributed.convolution.channels import own
from tiledask.distributed.convolution.lenet import BOUNDARIES, DENSE, LENET
from tiledask.distributed.convolution.lenet_split import RankGroups, rows_of
from tiledask.distributed.convolution.space import (
    avg_pool2d_in_rows,
    avg_pool2d_in_rows_grad,
    conv2d_in_rows,
    conv2d_in_rows_partials,
)
from tiledask.distributed.data_parallel.chain import Weights
from tiledask.distributed.data_parallel.flat import Packing
from tiledask.distributed.ranks.group import Group
from tiledask.plan.collectives.cost import even
from tiledask.tile import layers as L

__all__ = ["Stepped", "step", "unit_dim"]

LAST = len(LENET) - 1
GRADIENTS = "gradients"


class Stepped(NamedTuple):
    """What a rank has of a step."""

    loss: float
    """Its part: the ranks' parts add up to the loss."""
    grads: dict[str, dict[str, Any]]
    """Of the whole batch, for the weights that it holds, by layer and name."""
    flops: int
    """Of its products, counted from the arrays that are multiplied."""


def step(place: RankGroups, weights: Weights, images: Any, classes: Any, batch: int) -> Stepped:
    """Forward and backward of this rank's layers; the weights stay as they are.

    weights
        Those that this rank holds, by layer and name.
    images, classes
        Of this rank's copy of the network, all of them; there may be none.
    batch
        How many images all copies have together.
    """
    layers = place.split.layers(place.stages.rank)
    way = (_ByRows if place.split.in_space else _ByUnits)(place.parts)
    first, last = layers[0] == 0, layers[-1] == LAST
    x, kept, loss, grads, flops = way.images(images) if first else None, [], 0.0, {}, 0
    if not first:
        x = _received(place, layers[0] - 1, "forward/y", -1)
    for i in layers:
        x, k = way.forward(i, weights[LENET[i].name], x)
        kept.append(k)
        flops += _flops(i, weights[LENET[i].name], x, k)
    if last:
        loss, dy = way.loss(x, classes, batch)
    else:
        _sent(place, layers[-1], "forward/y", x, 1)
        dy = _received(place, layers[-1], "backward/dy", 1)
    for i in reversed(layers):
        name = LENET[i].name
        dy, grads[name] = way.backward(i, weights[name], dy, kept.pop())
    if not first:
        _sent(place, layers[0] - 1, "backward/dy", dy, -1)
    return Stepped(loss, _added(place.adding, {n: grads[n] for n in weights}), flops)


def unit_dim(w: Any) -> int:
    """Along which output units are: the rows of a convolution's w and of b, a matrix's columns."""
    return 1 if len(w.shape) == 2 else 0


class _ByUnits:
    """Between layers a part has some units of x; before a layer it gathers the others'."""

    def __init__(self, parts: Group) -> None:
        self.parts = parts

    def images(self, images: Any) -> Any:
        return images

    def forward(self, i: int, w: Mapping[str, Any], x: Any) -> tuple[Any, Any]:
        return LENET[i].forward(w, self._gathered(i - 1, x) if i else x)

    def loss(self, y: Any, classes: Any, batch: int) -> tuple[float, Any]:
        """(this part's share of the loss, its units of dy): every part knows all of both."""
        loss, kept = L.cross_entropy(self._gathered(LAST, y), classes, count=batch)
        dy = L.cross_entropy_grad(1.0, kept)
        return float(loss) / self.parts.size, dy[:, own(self.parts, dy.shape[1])]

    def backward(
        self, i: int, w: Mapping[str, Any], dy: Any, kept: Any
    ) -> tuple[Any, dict[str, Any]]:
        dx, grads = LENET[i].backward(w, dy, kept)
        if i == 0:
            return None, grads
        # the gradient of what all read is a sum, of which each needs that of its own units
        before = BOUNDARIES[i - 1]
        with self.parts.label(before.name, "backward/dy"):
            extents = even(before.units, self.parts.size)
            return self.parts.reduce_scatter(dx, 1, extents=extents), grads

    def _gathered(self, boundary: int, x: Any) -> Any:
        with self.parts.label(BOUNDARIES[boundary].name, "forward/y"):
            return self.parts.all_gather(x, 1)


class _KeptRows(NamedTuple):
    """What a convolution with relu and pooling keeps."""

    conv: Any
    activation: Any
    pool: Any


class _ByRows:
    """Between convolutions a part has some rows of x; what has no rows is done by images."""

    def __init__(self, parts: Group) -> None:
        self.parts, self.splits = parts, rows_of(parts.size)

    def images(self, images: Any) -> Any:
        return images[:, :, own(self.parts, images.shape[2])]

    def forward(self, i: int, w: Mapping[str, Any], x: Any) -> tuple[Any, Any]:
        name = LENET[i].name
        if i >= DENSE:
            if i == DENSE:  # all rows of this part's images, for its rows of all images
                with self.parts.label(BOUNDARIES[DENSE - 1].name, "forward/y"):
                    x = self.parts.all_to_all(x, split_dim=0, concat_dim=2)
            return LENET[i].forward(w, x)
        rows, out = self.splits[name].rows, self.splits[name].out
        with self.parts.label(name):
            y, conv = conv2d_in_rows(self.parts, x, w["w"], w["b"], rows=rows, far=True)
            y, activation = L.relu(y)
            with self.parts.label("pool"):
                y, pool = avg_pool2d_in_rows(self.parts, y, 2, rows=out, far=True)
        return y, _KeptRows(conv, activation, pool)

    def loss(self, y: Any, classes: Any, batch: int) -> tuple[float, Any]:
        loss, kept = L.cross_entropy(y, classes[own(self.parts, len(classes))], count=batch)
        return float(loss), L.cross_entropy_grad(1.0, kept)

    def backward(
        self, i: int, w: Mapping[str, Any], dy: Any, kept: Any
    ) -> tuple[Any, dict[str, Any]]:
        name = LENET[i].name
        if i >= DENSE:
            dx, grads = LENET[i].backward(w, dy, kept)
            if i == DENSE:  # the same the other way round
                extents = self.splits[f"{BOUNDARIES[DENSE - 1].name}/pool"].out
                with self.parts.label(BOUNDARIES[DENSE - 1].name, "backward/dy"):
                    dx = self.parts.all_to_all(dx, split_dim=2, concat_dim=0, extents=extents)
            return dx, grads
        with self.parts.label(name):
            with self.parts.label("pool"):
                dy = avg_pool2d_in_rows_grad(self.parts, dy, kept.pool)
            dy = L.relu_grad(dy, kept.activation)
            operands = dy, kept.conv, w["w"], w["b"]
            dx, dw, db = conv2d_in_rows_partials(self.parts, *operands, wanted=i > 0)
        return dx, {"w": dw, "b": db}


def _sent(place: RankGroups, boundary: int, what: str, x: Any, ahead: int) -> None:
    """Send to the stage ``ahead`` of this one (-1: behind)."""
    with place.stages.label(BOUNDARIES[boundary].name, what):
        place.stages.send(x, place.stages.rank + ahead)


def _received(place: RankGroups, boundary: int, what: str, ahead: int) -> Any:
    with place.stages.label(BOUNDARIES[boundary].name, what):
        return place.stages.recv(place.stages.rank + ahead)


def _added(group: Group, grads: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The sums over the group, by one all_reduce of all of them."""
    flat = {(layer, name): g for layer, each in grads.items() for name, g in each.items()}
    packing = Packing.of(flat)
    with group.label(GRADIENTS):
        flat = packing.unpack(group.all_reduce(packing.pack(flat)))
    return {layer: {name: flat[layer, name] for name in each} for layer, each in grads.items()}


def _flops(i: int, w: Mapping[str, Any], y: Any, kept: Any) -> int:
    """Operations of a layer's products, in all three passes (the first layer has two): 2 for each
    weight that goes into each number of the output."""
    out = y if kept.activation is None else kept.activation
    inner = w["w"].size // max(1, w["w"].shape[unit_dim(w["w"])])
    total: int = 2 * out.size * inner * (3 if i else 2)
    return total
