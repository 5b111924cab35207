"""LeNet trained step after step on the ranks of any split: every split has the same losses.

    >>> import tiledask as td
    >>> digits, _ = td.load_images("digits").split()
    >>> alone, split = (train_lenet(digits, ways, steps=2, batch=6, dtype="float64")
    ...                 for ways in ({}, {"data parallel": 2, "by output units": 2}))
    >>> bool(abs(alone.losses - split.losses).max() < 1e-12)
    True

Each rank draws its own weights and its copy's images from the seed, so nothing is scattered first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.convolution.lenet import LENET
from tiledask.distributed.convolution.lenet_runs import LeNetJob, LeNetTrainer, whole_weights
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.records import Records
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError, PlacementError
from tiledask.extras import needed_for
from tiledask.plan import html
from tiledask.plan.digests import digest_of
from tiledask.plan.program.lenet import NAMES, SIDE, UNITS, Need, Split
from tiledask.plan.program.making.lenet import need
from tiledask.plan.whole import whole_number
from tiledask.tile.datasets import Images
from tiledask.tile.optimizers import Adam, Rule

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TrainedLeNet", "train_lenet"]

AT_ONCE = 100
"""Images that are looked at in one go when all are classified: their windows take memory."""


@dataclass(frozen=True, repr=False)
class TrainedLeNet:
    """What came of a training."""

    split: Split
    losses: np.ndarray
    """[steps] float64: the mean over each step's batch, before its update."""
    weights: dict[str, dict[str, np.ndarray]]
    """The weights in full, by layer and name, after the last step."""
    held: list[dict[str, int]]
    """Bytes that each rank keeps from step to step, by tensor class."""
    flops: list[int]
    """FLOP of each rank's products in a step, counted from the arrays that are multiplied."""
    seconds: np.ndarray
    """[steps]: of the slowest rank, waiting included."""
    records: Records
    """Every collective and message."""
    planned: Need
    """What a step was to need: what its program does."""

    def classify(self, inputs: np.ndarray) -> np.ndarray:
        """[count] the class that each image [count, 1, 28, 28] is given, on this machine."""
        found = [np.zeros(0, np.int64)]
        for start in range(0, len(inputs), AT_ONCE):
            x = inputs[start : start + AT_ONCE].astype(self.weights["fc2"]["w"].dtype, copy=False)
            for layer in LENET:
                x, _ = layer.forward(self.weights[layer.name], x)
            found.append(x.argmax(axis=1))
        return np.concatenate(found)

    def accuracy(self, images: Images) -> float:
        """The share of ``images`` that is classified rightly."""
        return float(np.mean(self.classify(images.inputs()) == images.labels))

    def to_frame(self) -> "pd.DataFrame":
        """A row per step: loss, bytes sent and messages of all ranks, barriers of the busiest,
        seconds of the slowest."""
        with needed_for("a frame"):
            import pandas as pd

        totals, barriers = self.records.totals("step"), self.records.barriers
        rows = [
            (n, loss, t.sent if t else 0, t.messages if t else 0, barriers.get(n, 0), seconds)
            for n, (loss, seconds) in enumerate(zip(self.losses, self.seconds, strict=True))
            for t in [totals.get(n)]
        ]
        names = ["step", "loss", "bytes_sent", "messages", "barriers", "seconds"]
        return pd.DataFrame(rows, columns=names).set_index("step")

    def __repr__(self) -> str:
        ends = "no loss"
        if len(self.losses):
            ends = f"loss {self.losses[0]:.4f} -> {self.losses[-1]:.4f}"
        return f"TrainedLeNet({len(self.losses)} steps on {self.split}, {ends})"

    def _repr_html_(self) -> str:
        return f"<p>{html.words(repr(self))}</p>{self.to_frame().to_html()}"


@bounded
def train_lenet(
    data: Images,
    ways: Mapping[str, int],
    mesh: Mesh | None = None,
    *,
    steps: int,
    batch: int,
    rule: Rule | None = None,
    dtype: str = "float32",
    seed: int = 0,
    timeout: float = 300.0,
) -> TrainedLeNet:
    """Losses, weights and records of d2l's LeNet, trained on the ranks of a split.

    data
        Images of 28 x 28 of up to 10 classes, as `tiledask.load_images` loads them.
    ways
        How many ranks each way: "data parallel", "network", and "by output units" or "space".
        They multiply; {} is a single device.
    mesh
        Of as many workers, in any shape; or, without one, threads of this process.
    batch
        Images of a step, whatever the split. None of the ways must divide what it splits: some
        ranks get one more, or none.
    rule
        The optimizer; default: Adam().
    dtype
        "float32" or "float64", of everything.

    With equal seeds the result is that of a single device, whatever the split, but for the order
    in which sums are rounded. When a worker dies, the training is done again from its beginning, in
    its time. Raises ConfigError or PlacementError for what does not go together, and what
    `run_ranks` raises.
    """
    if isinstance(ways, str):
        raise ConfigError(f"ways say how many ranks each has: {{{ways!r}: 4}}, got {ways!r} alone")
    split = Split.of(ways)
    _check(data, steps, batch, dtype)
    if mesh is not None and mesh.ranks != split.ranks:
        raise PlacementError(
            f"{split} takes {split.ranks} ranks, and the mesh has {mesh.ranks}: use "
            f"td.Mesh(cluster, ({split.ranks},)), or other ways"
        )
    told = {"data": data, "steps": steps, "seed": seed}
    job = _Job.of(split, batch, rule or Adam(), dtype, **told)
    job.program.check()
    if mesh is None:
        done = run_threads(_train_rank, split.ranks, job, timeout=timeout)
    else:
        done = run_ranks(_train_rank, mesh, job, timeout=timeout, again=True)
    return _collected(job, done)


@dataclass(frozen=True, kw_only=True)
class _Job(LeNetJob):
    """What every rank is told of a training."""

    data: Images
    steps: int


class _Part(NamedTuple):
    """What a rank brings back."""

    losses: list[float]
    seconds: list[float]
    weights: dict[str, dict[str, np.ndarray]]
    digest: bytes
    held: dict[str, int]
    flops: int


def _train_rank(rank: Rank, job: _Job) -> _Part:
    """What a rank does, step after step."""
    trainer = LeNetTrainer(rank, job)
    rows = job.split.images(job.batch, job.split.at(rank.index)[0])
    losses, seconds = [], []
    for number in range(job.steps):
        begun = perf_counter()
        batch = job.data.batch(job.seed, number, job.batch, rows, job.dtype)
        with rank.step(number):
            losses.append(trainer.step(lambda _, batch=batch: batch))
        seconds.append(perf_counter() - begun)
    weights = trainer.unpacked(trainer.arrays["weights"])
    digest = digest_of(w for each in weights.values() for w in each.values())
    held = {tensor: n for tensor, n in trainer.held.items() if tensor != "gradients"}
    return _Part(losses, seconds, weights, digest, held, trainer.flops)


def _collected(job: _Job, done: Ranks) -> TrainedLeNet:
    """All ranks' parts together. Raises PlacementError if those with the same weights differ."""
    split, parts = job.split, done.results
    numbers = np.arange(split.ranks).reshape(split.shape)
    for rank, part in enumerate(parts):
        _, stage, inner = split.at(rank)
        first = numbers[0, stage, 0 if split.in_space else inner]
        if part.digest != parts[first].digest:
            raise PlacementError(
                f"ranks {first} and {rank} hold the same weights, and these differ after "
                f"{job.steps} steps: what was added up over them was not the same on both"
            )
    losses = np.sum([part.losses for part in parts], axis=0, dtype=float)
    seconds = np.max([part.seconds for part in parts], axis=0)
    one_copy = parts[: split.stages * split.parts]
    return TrainedLeNet(
        split,
        losses,
        whole_weights(split, [part.weights for part in one_copy]),
        [part.held for part in parts],
        [part.flops for part in parts],
        seconds,
        done.records,
        need(split, job.batch, split.ranks, np.dtype(job.dtype).itemsize),
    )


def _check(data: Images, steps: int, batch: int, dtype: str) -> None:
    high, wide = data.pixels.shape[1:]
    most = UNITS[NAMES[-1]]
    if (high, wide) != (SIDE, SIDE) or data.classes > most:
        raise ConfigError(
            f"LeNet takes images of {SIDE} x {SIDE} and up to {most} classes, got {data!r}; "
            f'td.load_images("digits") has such'
        )
    whole_number("steps", steps, 0)
    whole_number("batch", batch, 1, of="images")
    if dtype not in ("float32", "float64"):
        raise ConfigError(f"dtype is 'float32' or 'float64', got {dtype!r}")
