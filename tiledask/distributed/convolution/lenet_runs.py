"""One step of d2l's LeNet on the ranks of a program: d2l's three splits by name, and any other.

layerwise        each layer's output units on all ranks: gathered, and summed on the way back
network          consecutive layers on each rank: activations go on, gradients come back
data parallel    all layers on every rank, and some of the images: gradients are added up once
space            all layers on every rank, and some rows of each image

Each is a `lenet_step.step` on weights and images that every rank has in full.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tiledask.distributed.convolution.channels import part
from tiledask.distributed.convolution.lenet import LENET
from tiledask.distributed.convolution.lenet_split import RankGroups, Split
from tiledask.distributed.convolution.lenet_step import step, unit_dim
from tiledask.distributed.data_parallel.chain import Weights
from tiledask.distributed.ranks.rank import Rank

__all__ = ["PARTITIONINGS", "StepShare", "put_together", "run_step", "whole_weights"]


@dataclass(frozen=True)
class StepShare:
    """What a rank has of a training step."""

    loss: float
    """Its part: the ranks' parts add up to the loss."""
    grads: dict[str, dict[str, Any]]
    """The gradients of the weights that it holds, by layer and name."""
    weight_bytes: int
    """Bytes of the weights that it holds."""
    flops: int
    """FLOP of its products, counted from the arrays that are multiplied."""


def run_step(rank: Rank, weights: Weights, images: Any, classes: Any, ways: Any) -> StepShare:
    """One step of a split; every rank is given all weights and images, and uses its own.

    ``ways``: the name of one way for all ranks, or how many ranks each way has.
    """
    split = Split.of(ways, rank.ranks)
    place = RankGroups.of(rank, split)
    layers = [LENET[i].name for i in split.layers(place.stages.rank)]
    mine = {name: dict(weights[name]) for name in layers}
    if not split.in_space:  # its own output channels or columns
        mine = {
            name: {kind: part(place.parts, w, unit_dim(w)) for kind, w in each.items()}
            for name, each in mine.items()
        }
    here = split.images(len(images), place.copy)
    loss, grads, flops = step(place, mine, images[here], classes[here], len(images))
    nbytes = sum(w.nbytes for each in mine.values() for w in each.values())
    return StepShare(loss, grads, nbytes, flops)


PARTITIONINGS: Mapping[str, Callable[..., StepShare]] = {
    name: partial(run_step, ways=name) for name in ("layerwise", "network", "data parallel")
}
"""d2l's three, by name."""


def put_together(
    ways: Mapping[str, int] | str, shares: Sequence[StepShare]
) -> tuple[float, dict[str, dict[str, Any]]]:
    """(loss, all gradients) of a step, from what `run_step` brought back with these ``ways``."""
    split = Split.of(ways, len(shares))
    whole = whole_weights(split, [share.grads for share in shares[: split.stages * split.parts]])
    return sum(share.loss for share in shares), whole


def whole_weights(split: Split, held: Sequence[Weights]) -> dict[str, dict[str, Any]]:
    """All weights, from those of the ranks of one copy: shards one behind the other."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for rank, weights in enumerate(held):
        for layer, each in weights.items():
            if not split.in_space or rank % split.parts == 0:
                found.setdefault(layer, []).append(each)
    return {
        layer.name: {
            kind: np.concatenate([each[kind] for each in found[layer.name]], axis=unit_dim(p))
            for kind, p in layer.parameters.items()
        }
        for layer in LENET
    }
