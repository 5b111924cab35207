"""A hybrid for d2l's LeNet: ways that multiply, chosen by arithmetic and trained.

hybrid_lenet     name of a way -> ranks     three training steps: bytes and FLOP counted, losses
                                            compared with those of a single device
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from tiledask.distributed.convolution.lenet_train import TrainedLeNet, train_lenet
from tiledask.errors import PlacementError
from tiledask.lab.judging import Exercise, Target
from tiledask.plan.program.lenet import PARAMETERS, WAYS, Need, Split
from tiledask.plan.program.making.convolution.of_lenet import need_of
from tiledask.tile.datasets import load_images

__all__ = ["hybrid_lenet"]

MB = 1_000_000
STEPS = 3
ROUND_OFF = 1e-10
"""Of a loss in float64."""
SINGLE = 4
"""Bytes of a number whose moving is planned; what is counted in float64 is halved."""


def hybrid_lenet(
    devices: int = 8, batch: int = 64, share: float = 50.0, balance: float = 1.2
) -> Exercise:
    """Choose ways that multiply to ``devices``, so that LeNet's training moves the fewest bytes.

    share
        Percent of the model that a device may hold.
    balance
        The busiest device's FLOP over their mean, at most.

    An answer is a dict, as for `train_lenet`. It is trained on threads, and counted.

    >>> hybrid_lenet(2, batch=4, share=60).check({"by output units": 2}).best
    True
    """
    legal = [need_of(split, batch, SINGLE) for split in _splits(devices)]
    kept = [n for n in legal if _percent(n) <= share and n.imbalance <= balance]
    if not kept:
        raise PlacementError(
            f"no way to split LeNet over {devices} leaves {share} % of the model on a device and "
            f"keeps the busiest within {balance} of the mean; allow more"
        )
    best = min(sum(n.sent) for n in kept) / MB

    def measure(split: Split) -> list[Target]:
        run, alone = _trained(split, batch), _trained(Split(), batch)
        sent = sum(r.sent for r in run.records) / STEPS / (8 // SINGLE) / MB
        busiest = max(run.flops) * devices / sum(run.flops)
        weights = [held["weights"] for held in run.held]
        held, fullest = max(weights) / 8 / PARAMETERS, weights.index(max(weights))
        far = float(np.max(np.abs(run.losses / alone.losses - 1)))
        flops = list(run.flops)
        most, least = flops.index(max(flops)), flops.index(min(flops))
        copies, stages, parts = split.shape
        alone_each = Split(1, stages, parts, in_space=split.in_space)
        within = copies * sum(need_of(alone_each, batch // copies, SINGLE).sent) / MB
        between = f"{max(0.0, sent - within):.4g} MB of it between copies, {within:.4g} within them"
        at = f"rank {most} has {max(flops) / max(1, min(flops)):.3g} times the work of rank {least}"
        whole = f"rank {fullest} holds so much, in {stages} x {parts} parts of the model"
        return [
            Target("MB that all devices send in a step", best, sent, best, where=between),
            Target("% of the model on a device", share, round(100 * held, 2), None, where=whole),
            Target("busiest over mean FLOP", balance, round(busiest, 3), None, where=at),
            Target("losses' distance from a single device's", ROUND_OFF, far, None),
        ]

    return Exercise(
        name="a hybrid for LeNet",
        form=(
            f"a dict of ranks, '{WAYS[0]}', '{WAYS[1]}' and one of '{WAYS[2]}' or '{WAYS[3]}', "
            f"which multiply to {devices}; for example {{'{WAYS[0]}': {devices}}}"
        ),
        hints=(
            "Which ways leave the whole model on each device? Which of the rest can share the work "
            "evenly?",
            "Stages of so few layers are uneven, and strips of an image need all weights. "
            "What remains sends activations to everybody: how much of it is needed?",
            "Split the model just as far as a device's share asks for, and spend the other "
            "devices on copies.",
        ),
        measured=measure,
        read=lambda answer: _checked(answer, devices),
    )


def _splits(devices: int) -> Iterator[Split]:
    """Every way to split over so many."""
    for copies in range(1, devices + 1):
        for stages in range(1, 5):
            if devices % (copies * stages) == 0:
                parts = devices // (copies * stages)
                yield Split(copies, stages, parts)
                if parts > 1:
                    yield Split(copies, stages, parts, in_space=True)


def _checked(answer: Any, devices: int) -> Split | None:
    if not isinstance(answer, Mapping):
        return None
    split = Split.of(answer)
    if split.ranks != devices:
        raise PlacementError(
            f"ways multiply, to {devices} devices; {dict(answer)} multiplies to {split.ranks}"
        )
    return split


@cache
def _trained(split: Split, batch: int) -> TrainedLeNet:
    inner = "space" if split.in_space else "by output units"
    ways = dict(zip((*WAYS[:2], inner), split.shape, strict=True))
    return train_lenet(load_images("digits"), ways, steps=STEPS, batch=batch, dtype="float64")


def _percent(said: Need) -> float:
    return 100 * max(said.parameters) / PARAMETERS
