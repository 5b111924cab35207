"""Training a GPT over (data, tensor, pipeline) parallel ranks: every layout has the same losses.

    mesh (dp, tp, pp) = (2, 2, 2)          rows 0..3 of the batch       rows 4..7
                                           stage 0      stage 1         stage 0      stage 1
    columns of every matrix, first half    rank 0  -->  rank 1          rank 4  -->  rank 5
                             second half   rank 2  -->  rank 3          rank 6  -->  rank 7

Every token's loss is over the number of tokens of the whole batch, so whatever rows a micro-batch
has, gradients are added up as they are: over micro-batches, and over dp.
"""

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.arrays.array import Both
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.checkpoints import steps_in
from tiledask.distributed.cluster.progress import Progress
from tiledask.distributed.cluster.room import MARGIN, SLACK, check_room
from tiledask.distributed.deadlines import bounded, seconds_of
from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.records import Records, Total
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.retry import retry_lost
from tiledask.distributed.training.config import AXES, RankConfig, TrainingConfig
from tiledask.distributed.training.gpt import GPT
from tiledask.distributed.training.job import TrainedRank, train_rank
from tiledask.distributed.training.progress import Report, watched
from tiledask.errors import ConfigError, PlacementError
from tiledask.extras import needed_for
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.making.training import end_program, step_program
from tiledask.plan.program.program import Program
from tiledask.tile.optimizers import LossScale, Rule

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Trained", "configured", "run_training", "train", "training_program"]


@dataclass(frozen=True, repr=False)
class Trained:
    """What came of a training."""

    config: Any
    """Its options, checked: ``model``, ``shape`` (dp, tp, pp), ``recipe``, ..."""
    losses: np.ndarray
    """[steps] float64: the mean over all tokens of each step's batch, before its update."""
    weights: dict[str, np.ndarray]
    """The weights in full, by "unit.name", after the last step."""
    held: list[dict[str, int]]
    """Bytes that each rank keeps from step to step, by tensor class."""
    records: Records
    """Every collective and message of the steps that are ``recorded``, and of the end."""
    program: Program
    """What every rank did in a step, instruction by instruction."""
    end: Program | None
    """What every rank did after the last step, if they did anything together."""
    norms: np.ndarray
    """[steps] of all gradients, before they were clipped; empty if nobody asked for them."""
    scales: np.ndarray
    """[steps] by which each loss was multiplied before its gradients were taken."""
    measured: Traffic
    """What moved from rank to rank in all of it."""
    resumed: tuple[int, ...]
    """The step from which it went on, each time that a worker had been lost."""

    @property
    def recorded(self) -> range:
        """The steps of which there are records: all of its own or, when a worker was lost, those
        since the checkpoint from which it went on."""
        return range([self.config.first, *self.resumed][-1], self.config.steps)

    @cached_property
    def traffic(self) -> Both:
        """Traffic of the recorded steps and of the end, predicted and measured; a step that was
        left out moves less than predicted."""
        saves = sum(self.config.is_saved(step + 1) for step in self.recorded)
        moved = [self.program.traffic] * len(self.recorded)
        moved += [self.end.traffic] * (1 + saves) if self.end else []
        total = sum(moved, Traffic.of(self.program.ranks))
        return Both(total.on(self.measured.hosts), self.measured)

    @property
    def skipped(self) -> list[int]:
        """Numbers of the steps that were left out, because a gradient was not finite."""
        if self.config.scale is None:
            return []
        return [self.config.first + int(i) for i in np.flatnonzero(~np.isfinite(self.norms))]

    def to_frame(self) -> "pd.DataFrame":
        """A row per step: loss; of recorded steps bytes sent and messages of all ranks, barriers of
        the busiest; the gradients' norm and the loss scale, if there were any."""
        with needed_for("a frame"):
            import pandas as pd

        totals, barriers = self.records.totals("step"), self.records.barriers
        steps = pd.RangeIndex(self.config.first, self.config.steps, name="step")
        frame = pd.DataFrame({"loss": self.losses}, steps)
        moved = pd.DataFrame([totals.get(n, Total()) for n in self.recorded], self.recorded)
        frame["bytes_sent"], frame["messages"] = moved["sent"], moved["messages"]
        frame["barriers"] = pd.Series({n: barriers.get(n, 0) for n in self.recorded}, dtype=int)
        if len(self.norms):
            frame["norm"] = self.norms
        if self.config.scale is not None:
            frame["loss_scale"] = self.scales
        return frame

    def __repr__(self) -> str:
        ends = "no loss"
        if len(self.losses):
            ends = f"loss {self.losses[0]:.4f} -> {self.losses[-1]:.4f}"
        left_out = f", {len(self.skipped)} left out" if self.skipped else ""
        return (
            f"Trained({len(self.losses)} steps{left_out} on {self.config}, {ends}, "
            f"{self.config.model.size:,} parameters{self.measured.crossed()})"
        )


@bounded
def train(
    model: GPT,
    data: Any,
    ranks: Mesh | Sequence[int],
    *,
    steps: int,
    batch: int,
    microbatches: int | None = None,
    schedule: str | Schedule = "1f1b",
    cut: Sequence[int] | None = None,
    sequence_parallel: bool = False,
    zero: int = 0,
    rule: Rule | None = None,
    dtype: str = "float32",
    recipe: str | Recipe | None = None,
    scale: LossScale | None = None,
    clip: float | None = None,
    recompute: bool = False,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    progress: Progress = None,
    timeout: float = 300.0,
) -> Trained:
    """Losses, weights and records of a GPT that was trained on the ranks of a (dp, tp, pp) mesh.

    data
        A `tiledask.load_text` or whatever else has ``vocabulary`` and ``batch(seed, step, size,
        sequence, rows)``. Each rank draws its own rows.
    ranks
        A mesh of workers with three axes; or three numbers: threads of this process. On several
        hosts those along tp share one wherever it has as many slots, then those along pp, then dp,
        unless the mesh says in which ``slots`` its ranks are.
    batch, microbatches
        Rows of a step, and into how many micro-batches those of one copy of the model are cut;
        default: the schedule's, or 1. Neither must divide: some get a row more, or none.
    schedule
        The name of one ("gpipe", "1f1b", "zb-h1", ...), or a Schedule of pp devices, which may put
        several stages on each, and a stage on several, which then sum its gradients.
    cut
        Layers of each stage; default: as even as they can be.
    zero
        0 to 3. Gradients of ZeRO 2 and 3 are sharded after every micro-batch.
    rule
        The optimizer; default: Adam(), or the one whose states the recipe keeps.
    dtype
        Of weights and activations: "float32", "float64", "float16" or "bfloat16". Of halves there
        are masters in single precision, in which the optimizer steps; what is summed within a
        device is summed in single precision, and rounded once.
    recipe
        What is kept of each number, by the planner's words. "mixed-adam-18" adds up gradients of
        halves in single precision, the default, "mixed-adam-16", in halves.
    scale
        By what the loss is multiplied before its gradients are taken; default: a `LossScale()` of
        float16, none otherwise. With one, a step in which any gradient on any rank is not finite is
        left out on all.
    clip
        The largest norm of all gradients together, each counted once, wherever it is.
    recompute
        Keep of each block its input alone, and do its forward again in the backward.
    folder
        Where a checkpoint is written after the last step. If there is one, training goes on from
        the newest, under whatever layout that was written: ``steps`` counts from the very first.
        Model, seed, dtype and what the rule keeps must be those of the checkpoint; rates and
        batches may change.
    save_every
        Steps from one checkpoint in ``folder`` to the next, from which this call goes on when a
        worker was lost, and the same call when everything was.
        `tiledask.formulas.checkpoint_interval` says how often is best.
    progress
        Of the workers of a mesh: None shows a bar on a terminal, True does anywhere, False never.
        A function is called with (steps done, steps in all, of all ranks), from another thread.

    When a worker dies and its slot has another, all ranks go on from the newest checkpoint, or from
    the beginning; ``resumed`` says from where, and losses and weights are the same to the bit.
    ``timeout`` is for all of it. A training whose ranks would hold more than their workers leave is
    refused before anything runs (DoesNotFitError).

    With equal seeds the result is that of a single device, whatever the layout, but for the order
    in which sums are rounded. Raises ConfigError, PartitionError or ScheduleError for what does
    not go together, CheckpointError for a checkpoint that is damaged or of another training, and
    what `run_ranks` raises.

    >>> from tiledask.tile.datasets import load_text
    >>> text = load_text("tales")
    >>> model = GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    >>> runs = [train(model, text, shape, steps=2, batch=4, microbatches=2, dtype="float64")
    ...         for shape in ((1, 1, 1), (1, 2, 2))]
    >>> bool(abs(runs[0].losses - runs[1].losses).max() < 1e-12)
    True
    """
    # every option of the signature, by name: they are spelled there alone
    config = TrainingConfig.of(locals()).on(data).saved_in(folder, save_every)
    mesh = None
    if isinstance(ranks, Mesh):
        mesh = Mesh(ranks.cluster, config.shape, AXES, ranks.slots)
        if config.folder and not all(mesh.cluster.run(os.path.isdir, config.folder)):
            raise ConfigError(
                f"{config.folder} is not there on every worker's host; take a folder on a file "
                f"system that all of them share"
            )
    program = step_program(config, config.shape).check()
    saves = config.folder is not None and config.first < config.steps
    end = end_program(config, config.shape, saves).check()
    with watched(progress, config, mesh) as say:
        if mesh is not None:
            timeout = seconds_of(timeout)
            _check_memory(mesh, (program, end), timeout)
        return run_training(config, program, end, mesh, timeout, say)


def training_program(model: GPT, ranks: Sequence[int], **options: Any) -> Program:
    """What every rank of a (dp, tp, pp) mesh would do in a step of `tiledask.train`; nothing is
    computed, so a thousand ranks take a tenth of a second.

    ``options``: those of `tiledask.train` from ``batch`` to ``recompute``, with their errors.
    The program says its bytes (``traffic``), what each rank holds (``memory``), when everything
    happens (``timeline``), and whether it is right (``check``).

    >>> model = GPT(59, hidden=16, layers=2, heads=4, sequence=8)
    >>> program = training_program(model, (1, 1, 2), batch=4, microbatches=2)
    >>> program.check()
    Program(training 1f1b: 2 ranks)
    >>> print(program.line_text(1))
    begin.0 1F.0 1B.0 1F.1 1B.1 update.0
    """
    config = configured(model, ranks, **options)
    return step_program(config, config.shape)


def configured(model: GPT, ranks: Sequence[int], **options: Any) -> TrainingConfig:
    """The TrainingConfig of these ``options`` of `tiledask.train`, data and folder aside."""
    given = inspect.signature(train).bind(model, None, ranks, steps=0, **options)
    given.apply_defaults()
    return TrainingConfig.of(given.arguments)


def _check_memory(mesh: Mesh, programs: Sequence[Program], seconds: float) -> None:
    """Raise DoesNotFitError if the slot of a rank leaves less than ``programs`` hold at their
    fullest."""
    ledgers = [program.memory for program in programs]
    peaks = [max(each.per_place.get(rank, 0) for each in ledgers) for rank in range(mesh.ranks)]
    needs = [int(SLACK * peak) + MARGIN for peak in peaks]
    most = max(ledgers, key=lambda each: each.peak).binding[-1] if max(peaks) else ""
    check_room(mesh.cluster, mesh.at, needs, f"this training, most of it {most},", seconds)


def run_training(
    config: RankConfig,
    program: Program,
    end: Program | None,
    mesh: Mesh | None,
    seconds: float,
    say: Report | None = None,
) -> Trained:
    """Run the steps of ``program`` and then ``end`` on the workers of a mesh; on None, on threads.

    When a worker is lost, all ranks go on from the newest checkpoint.
    """
    resumed: list[int] = []

    def attempt(number: int, left: float) -> Ranks:
        assert mesh is not None
        if number:
            resumed.append(max(steps_in(config.folder), default=0) if config.folder else 0)
        now = replace(config, done=resumed[-1] if resumed else config.done)
        return run_ranks(train_rank, mesh, now, program, end, say, timeout=left)

    if mesh is None:
        done = run_threads(train_rank, config.shape, config, program, end, say, timeout=seconds)
    else:
        done = retry_lost(mesh.cluster, mesh.at, seconds, attempt)
    return _collected(config, program, end, done, tuple(resumed))


def _collected(
    config: Any, program: Program, end: Program | None, done: Ranks, resumed: tuple[int, ...]
) -> Trained:
    """All ranks' parts together. Raises PlacementError if copies of the model differ."""
    each: list[TrainedRank] = done.results
    # in the order of the ranks, (copy, part, stage) of each
    copies, slices, devices = (range(config.shape[axis]) for axis in config.axes)
    places = (tuple(at[axis] for axis in config.axes) for at in np.ndindex(config.shape))
    parts = dict(zip(places, each, strict=True))
    for (copy, slice_, device), part in parts.items():
        if part.checksums != parts[0, slice_, device].checksums:
            raise PlacementError(
                f"copies 0 and {copy} of the model have different weights after {config.steps} "
                f"steps, on tensor rank {slice_} and pipeline rank {device}: what was summed over "
                f"dp was not the same on both"
            )
    histories = {at: np.array(part.history).reshape(-1, 3).T for at, part in parts.items()}
    with_loss = product(copies, slices[config.loss_slices], devices)  # 0 where no loss is
    losses = [histories[at][0] for at in with_loss]
    _, scales, norms = histories[0, 0, 0]
    guarded = config.scale is not None or config.clip is not None
    weights: dict[str, np.ndarray] = {}
    for device in devices:
        found = [parts[0, slice_, device].weights or {} for slice_ in slices]
        for name in found[0]:
            w = T.whole_of([each[name] for each in found])
            if not np.array_equal(weights.setdefault(name, w), w, equal_nan=True):
                raise PlacementError(
                    f"{name} is on several pipeline ranks, and differs there by up to "
                    f"{np.abs(weights[name] - w).max():.3g}: its gradients were not added up"
                )
    model = config.model
    return Trained(
        config,
        np.sum(losses, axis=0),
        {n: weights[n] for u in model.units for n in (f"{u}.{w}" for w in model.parameters(u))},
        [part.held for part in each],
        done.records,
        program,
        end,
        norms if guarded else norms[:0],
        scales,
        done.traffic,
        resumed,
    )
