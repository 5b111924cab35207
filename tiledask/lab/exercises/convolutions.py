"""Convolutions to split: rows to borrow, devices to count, a hybrid for LeNet; all run, counted."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from tiledask.distributed.convolution.lenet import initial_weights, samples
from tiledask.distributed.convolution.lenet_runs import PARTITIONINGS
from tiledask.distributed.convolution.lenet_train import TrainedLeNet, train_lenet
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.lab import plots
from tiledask.lab.exercises.exercise import exercise, none_wrong
from tiledask.lab.judging import Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.collectives.rows import split_rows
from tiledask.plan.program.lenet import PARAMETERS, WAYS, Split
from tiledask.plan.program.making.convolution.of_lenet import need, need_of
from tiledask.plan.whole import is_whole
from tiledask.tile import layers as tile
from tiledask.tile.datasets import load_images

__all__ = ["borrowed_rows", "hybrid_lenet", "until_layerwise_moves_more"]

MB = 1_000_000

# -- rows ------------------------------------------------------------------------------------------


def _rows(answer: Any) -> dict[int, tuple[int, ...]] | None:
    if not isinstance(answer, Mapping):
        return None
    good = all(
        isinstance(mine, tuple | list | range | set) and all(map(is_whole, mine))
        for mine in answer.values()
    )
    return {rank: tuple(mine) for rank, mine in answer.items()} if good else None


def _borrowed(
    mine: Mapping[int, Sequence[int]] | None, rows: Sequence[int], *window: Any, **more: Any
) -> Figure:
    title = "Nobody borrows yet" if mine is None else "Your loans"
    return plots.rows_on_ranks(rows, *window, **more, borrowed=mine or {}, title=title)


@exercise("borrowed-rows", read=_rows, draw=_borrowed)
def borrowed_rows(
    mine: dict[int, tuple[int, ...]],
    rows: Sequence[int] = (3, 3, 3, 2),
    size: int = 5,
    stride: int = 2,
    padding: tuple[int, int] = (2, 2),
) -> list[Target]:
    """Say which rows of others each rank needs for its windows: rank -> rows of the whole image.
    A window belongs to the rank that has its middle row."""
    split = split_rows(rows, size, stride, padding)
    ends, outs = (0, *accumulate(split.rows)), (0, *accumulate(split.out))
    image, w = np.ones((1, 1, ends[-1], size)), np.ones((1, 1, size, size))
    fewest, missing = 0, 0
    lacking: list[str] = []
    idle: list[str] = []
    for rank, slab in enumerate(split.slabs):
        own, loans = range(*ends[rank : rank + 2]), mine.get(rank, ())
        for row in loans:
            if row not in range(ends[-1]) or row in own or loans.count(row) > 1:
                raise PlacementError(
                    f"a rank borrows rows from 0 to {ends[-1] - 1} that it does not have, each "
                    f"once: rank {rank} has {own.start} to {own.stop - 1}, got {list(loans)}"
                )
        needed = {*range(slab.start, slab.stop)} - {*own}
        fewest += len(needed)
        for row in sorted(needed - {*loans})[:1]:  # the first of all is named, the rest are not
            lacking.append(f"rank {rank} lacks {f'row {row}' if not lacking else 'rows, too'}")
        idle += [f"no window of rank {rank} reads row {row}" for row in sorted({*loans} - needed)]
        here = np.full_like(image, np.nan)  # whatever it neither has nor borrows
        here[:, :, [*own, *loans]] = 1
        y, _ = tile.conv2d(here, w, stride=(stride, 1), padding=(padding, (0, 0)))
        missing += int(np.isnan(y[0, 0, outs[rank] : outs[rank + 1]]).any(axis=1).sum())
    if set(mine) - {*range(len(rows))}:
        raise PlacementError(f"ranks are 0 to {len(rows) - 1}, got {sorted(map(str, mine))}")
    count = sum(map(len, mine.values()))
    return [
        none_wrong("output rows that lack an input row", lacking, missing),
        Target("rows borrowed", fewest, count, fewest, where="; ".join(idle)),
    ]


# -- devices ---------------------------------------------------------------------------------------

RUN = 16
"""Devices, at most, that are threads here: more of them take minutes."""
SPLITS = {"layerwise": "by output units", "data parallel": "data parallel"}


@exercise(
    "until-layerwise-moves-more", read=lambda answer: answer if is_whole(answer, 2, 64) else None
)
def until_layerwise_moves_more(devices: int, each: int = 4) -> list[Target]:
    """Find the fewest devices, with so many images for every one of them, on which LeNet's split by
    output units moves more bytes than data parallelism. Both are run, and counted; on many devices
    the plan says what they would send."""

    def planned(name: str, devices: int) -> int:
        return sum(need(name, each * devices, devices, 4).sent)

    def counted(name: str) -> int:
        weights, batch = initial_weights(0, "float32"), samples(each * devices, 0, "float32")
        done = run_threads(PARTITIONINGS[name], devices, weights, *batch)
        return sum(record.sent for record in done.records)

    best = next(n for n in range(2, 65) if planned("layerwise", n) > planned("data parallel", n))
    sent = {n: counted(n) if devices <= RUN else planned(n, devices) for n in SPLITS}
    percent = round(100 * sent["data parallel"] / sent["layerwise"], 2)
    both = " and ".join(f"{SPLITS[name]} {sent[name] / MB:.4g} MB" for name in SPLITS)
    where = f"on {devices} devices, {each * devices} images, {both} are sent: too few images"
    name = "data parallelism's bytes in % of those by output units"
    return [
        Target(name, 100, percent, where=where),
        Target("devices", best, devices, best, least=True),
    ]


# -- a hybrid --------------------------------------------------------------------------------------

STEPS, SINGLE = 3, 4
"""Steps of a training; bytes of a number whose moving is planned: counted in float64, halved."""


def _splits(devices: int) -> Iterator[Split]:
    """Every way to split over so many."""
    for copies in range(1, devices + 1):
        for stages in range(1, 5):
            if devices % (copies * stages) == 0:
                parts = devices // (copies * stages)
                yield Split(copies, stages, parts)
                if parts > 1:
                    yield Split(copies, stages, parts, in_space=True)


@cache
def _trained(split: Split, batch: int) -> TrainedLeNet:
    inner = "space" if split.in_space else "by output units"
    ways = dict(zip((*WAYS[:2], inner), split.shape, strict=True))
    return train_lenet(load_images("digits"), ways, steps=STEPS, batch=batch, dtype="float64")


@exercise(
    "hybrid-lenet", read=lambda answer: Split.of(answer) if isinstance(answer, Mapping) else None
)
def hybrid_lenet(
    split: Split, devices: int = 8, batch: int = 64, share: float = 50.0, balance: float = 1.2
) -> list[Target]:
    """Choose ways that multiply to the devices, so that LeNet's training moves the fewest bytes,
    with little of the model on a device and the busiest near the mean. It is trained on threads."""
    if split.ranks != devices:
        raise PlacementError(f"ways multiply, to {devices} devices; these come to {split.ranks}")
    needs = [need_of(each, batch, SINGLE) for each in _splits(devices)]
    best = min(
        sum(n.sent) / MB
        for n in needs
        if 100 * max(n.parameters) / PARAMETERS <= share and n.imbalance <= balance
    )
    run, alone = _trained(split, batch), _trained(Split(), batch)
    sent = sum(r.sent for r in run.records) / STEPS / (8 // SINGLE) / MB
    weights = [held["weights"] for held in run.held]
    percent = round(100 * max(weights) / 8 / PARAMETERS, 2)
    busiest = round(max(run.flops) * devices / sum(run.flops), 3)
    far = float(np.max(np.abs(run.losses / alone.losses - 1)))
    copies, stages, parts = split.shape
    ways = f"by {copies} copies of {stages} x {parts} parts"
    whole = f"rank {weights.index(max(weights))} holds so much, of {stages} x {parts} parts"
    most = f"rank {run.flops.index(max(run.flops))} works most"
    return [
        Target("MB that all devices send in a step", best, sent, best, where=ways),
        Target("% of the model on a device", share, percent, where=whole),
        Target("busiest over mean FLOP", balance, busiest, where=most),
        Target("losses' distance from a single device's", 1e-10, far),
    ]
