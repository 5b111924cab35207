"""28: d2l's data parallelism in five steps: one sum a step, and memory that no device saves.

device 0   images 0..63     gradient --\\
device 1   images 64..127   gradient ---+-- all_reduce -- the same update everywhere
device 2   ...
"""

from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import each
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

FEATURES = 16
ROUND_OFF = 1e-10
"""Of normalised outputs in float64."""
EPSILON = 1e-5
"""Added to a variance by batch normalisation."""


def _samples(images: int) -> np.ndarray:
    """[images, FEATURES] of standard normal numbers."""
    return np.random.default_rng(28).standard_normal((images, FEATURES))


def _normalised(x: np.ndarray, count: int, total: np.ndarray, squares: np.ndarray) -> np.ndarray:
    mean = total / count
    return (x - mean) / np.sqrt(squares / count - mean**2 + EPSILON)


def _alone(x: np.ndarray) -> np.ndarray:
    """Batch-normalised with its own mean and variance."""
    return _normalised(x, len(x), x.sum(axis=0), (x**2).sum(axis=0))


def _difference(images: int, devices: int) -> float:
    """The largest difference that each device's own statistics make."""
    x = _samples(images)
    parts = [_alone(part) for part in np.array_split(x, devices)]
    return float(np.abs(np.concatenate(parts) - _alone(x)).max())


def work(images: int, devices: int) -> WorkedAnswer:
    """d2l's five steps, with the bytes of the third; speed, memory and batch normalisation."""
    from tiledask.plan.program.lenet import PARAMETERS
    from tiledask.plan.program.making.convolution.of_lenet import need

    if images < devices:
        raise ConfigError(
            f"{images} images are fewer than {devices} devices, and each takes one or more; give "
            f"at least {devices} images"
        )
    k, said, P = devices, need("data parallel", images, devices, 4), PARAMETERS
    shares, off = even(images, k), _difference(images, k)
    sent = 2 * (k - 1) / k * P * 4
    flops = max(said.flops)
    return WorkedAnswer(
        f"Each of {k} devices computes {each(shares)} of {images} images, and all synchronise once "
        f"a step: {format_bytes(sent)} sent by each. {sum(said.flops) / flops:.3g} times as fast "
        f"at best; but each keeps all {P:,} parameters, so more devices allow no larger model.",
        [
            f"1. the batch is cut: {images} / {k} = {images / k:.4g}, {each(shares)} images each",
            f"2. each computes its loss and gradients, at most {flops / 1e6:,.1f} of "
            f"{sum(said.flops) / 1e6:,.1f} MFLOP",
            f"3. gradients are added up: in a ring each sends 2 (k - 1) / k x P x 4 B = 2 x "
            f"{k - 1} / {k} x {P:,} x 4 B = {format_bytes(sent)}",
            f"4. everyone has the sum: {said.barriers} synchronisation a step",
            "5. each updates all its weights, and all copies stay equal",
            f"ideal speed: {sum(said.flops) / 1e6:,.1f} / {flops / 1e6:,.1f} = "
            f"{sum(said.flops) / flops:.3g} times",
            f"memory, weights alone: {P:,} x 4 B = {format_bytes(4 * P)} on 1 device, and on each "
            f"of {k}: flat",
            f"not the same as one device: batch normalisation. With the mean and variance of its "
            f"own {each(shares)} random samples each output is off by up to {off:.3g}; with "
            f"summed statistics by round-off",
        ],
        {
            "images": list(shares),
            "bytes of each": round(sent),
            "synchronisations": said.barriers,
            "speed-up at best": sum(said.flops) / flops,
            "batch normalisation off by": off,
        },
    )


def _statistics(rank: Any, x: np.ndarray, shared: bool) -> np.ndarray:
    """This rank's samples, batch-normalised by its own statistics or by ``shared`` ones."""
    mine = np.array_split(x, rank.ranks)[rank.index]
    if not shared:
        return _alone(mine)
    sums = rank.group().all_reduce(np.stack([mine.sum(axis=0), (mine**2).sum(axis=0)]))
    return _normalised(mine, len(x), *sums)


def run(cluster: Cluster, images: int, devices: int) -> Comparison:
    """A training step of LeNet on 2 up to all devices; then batch normalisation both ways."""
    from tiledask.lab.lenet import lenet_claims

    rows = []
    for k in sorted({2, devices}):
        table = lenet_claims(td.Mesh(cluster, (k,)), images, ways=("data parallel",))
        rows += [
            Claim(**{**vars(row), "quantity": row.quantity.replace("data parallel", f"k = {k}")})
            for row in table.rows
            if k == devices or "weights" in row.quantity
        ]
    x, mesh = _samples(images), td.Mesh(cluster, (devices,))
    off = {
        shared: float(
            np.abs(
                np.concatenate(td.run_ranks(_statistics, mesh, x, shared).results) - _alone(x)
            ).max()
        )
        for shared in (False, True)
    }
    rows += [
        Claim(
            "batch normalisation, each device's statistics: off by",
            _difference(images, devices),
            None,
            off[False],
            rule=("within", 1e-9),
            note="it is not the single device's result",
        ),
        Claim(
            "batch normalisation, summed statistics: off by",
            ROUND_OFF,
            None,
            off[True],
            rule="at most",
        ),
    ]
    return Comparison(f"LeNet on {images} images, copies on k workers", rows)


QUESTION = CourseQuestion(
    number=28,
    title="Data Parallelism",
    asked="d2l trains its LeNet on {devices} GPUs by data parallelism, {images} images a step. "
    "What happens in a step, how much do the GPUs transfer, how much faster can it be, and does it "
    "allow a larger model?",
    inputs={
        "images": Input(256, 128, whole(8, 65536), "images of a step"),
        "devices": Input(4, 3, whole(2, 64), "devices k, a copy of the model on each"),
    },
    work=work,
    run=run,
    workers=lambda devices, **_: devices,
    largest_run={"images": 4096},
)
