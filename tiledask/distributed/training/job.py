"""One rank's way through its steps, written down, and taken up again under any (dp, tp, pp), ZeRO.

    step-00000040/     the checkpoint: whole weights, and whole optimizer states; of each rank its
                       losses, scales and norms, for the same call to go on when a worker was lost

Arrays have names ("layer 0.mlp.w_1", "momentum of layer 0.mlp.w_1"). Each tensor rank writes its
block; what ZeRO has sharded is gathered before, so that nobody reads a layout out of it.

What is not layout is written down too, and must be the same: a table of Adam's momentum would fit
SGD's, and eight heads' weights four heads', and the numbers would be wrong without a word.
"""

import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.checkpoints import (
    Checkpoint,
    TensorSlice,
    folder_of,
    open_checkpoint,
    save_checkpoint,
    steps_in,
)
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training.progress import Report, step_reporter
from tiledask.distributed.training.trainer import Trainer
from tiledask.errors import CheckpointError
from tiledask.plan.program.program import Program
from tiledask.plan.whole import is_whole
from tiledask.tile.backend import to_numpy

__all__ = ["TrainedRank", "train_rank"]

History = list[tuple[float, float, float]]
"""Of each step of a rank: its part of the loss, the loss's scale, the norm of all gradients."""


class TrainedRank(NamedTuple):
    """What one rank brings back."""

    history: History
    weights: dict[str, T.Placed] | None
    """The weights here of the first copy of the model; None on others."""
    checksums: tuple[int, ...]
    """Of the weights, where there are copies to compare; else none."""
    held: dict[str, int]


def train_rank(
    rank: Rank, config: Any, program: Program, end: Program | None = None, say: Report | None = None
) -> TrainedRank:
    """What a rank does with the ``program`` of a RankConfig, step after step, and at the ``end``;
    steps are reported to ``say``."""
    copies = rank.group(0)
    trainer = Trainer(rank, config, program, end)
    history = _load(trainer, config) if config.done else []
    report = step_reporter(rank, say) if say else None

    def save(step: int) -> dict[str, T.Placed]:
        weights: dict[str, T.Placed] = trainer.end(partial(_save, trainer, config, history, step))
        return weights

    for number in range(config.done, config.steps):
        saves, scale = config.is_saved(number + 1), float(trainer.numbers["scale"])
        # what overflows becomes infinite, as on a GPU; the norm finds it
        with rank.step(number), np.errstate(over="ignore", invalid="ignore"):
            loss = trainer.step(partial(config.draw, number, copies.rank))
        history.append((loss, scale, trainer.norm))
        if report:
            report(number, loss, saves or number + 1 == config.steps)
        if saves:
            save(number + 1)
    ended = save(config.steps).items()
    weights = {name: T.Placed(to_numpy(w.local), w.tiling) for name, w in ended}
    return TrainedRank(
        history,
        None if copies.rank else weights,
        tuple(zlib.crc32(w.local.tobytes()) for w in weights.values()) if copies.size > 1 else (),
        {tensor: sum(x.nbytes for x in of.values()) for tensor, of in trainer.arrays.items()},
    )


# -- written down, and taken up again --------------------------------------------------------------


def _save(
    trainer: Trainer,
    config: Any,
    history: History,
    step: int,
    loss: float,
    whole: Mapping[tuple[str, str], Mapping[str, Any]],
) -> None:
    """Write the checkpoint of a TrainingConfig after so many steps, of this loss; all ranks call
    this. ``whole``: (tensor class, unit) -> this rank's arrays by name, none sharded by ZeRO."""
    arrays, pieces = {}, {}
    for (tensor, unit), found in whole.items():
        for name, (weight, piece) in _pieces(trainer, tensor, unit).items():
            arrays[name], pieces[name] = found[weight], piece
    about = {
        "loss": loss,
        "updates": int(trainer.numbers["updates"]),
        "scale": asdict(trainer.scale) if trainer.scale else None,
        "training": _identity(config),
        "history": history,
    }
    save_checkpoint(trainer.rank, config.folder, step, arrays, pieces, about)


def _load(trainer: Trainer, config: Any) -> History:
    """Take weights and states from the checkpoint that a TrainingConfig goes on from; the history
    of this rank, if it is one of this call.

    Raises CheckpointError if that is damaged, or of another training.
    """
    folder, step = config.folder, config.done
    try:
        checkpoint = open_checkpoint(folder, step)
        about = _about(checkpoint, config)
        for tensor, units in trainer.arrays.items():
            for unit in units if tensor != "gradients" else ():
                named = _pieces(trainer, tensor, unit)
                read = checkpoint.read({name: piece for name, (_, piece) in named.items()})
                flat = trainer.rank.on_device(np.concatenate([read[n].reshape(-1) for n in named]))
                here = trainer.parts[unit] if trainer.sharded[tensor] else ...
                trainer.arrays[tensor][unit][...] = flat[here]
        mine = checkpoint.about(trainer.rank.index) if step > config.first else {"history": []}
    except CheckpointError as error:
        before = [each for each in steps_in(folder) if each < step]
        then = f"go on from step {before[-1]}" if before else "begin anew"
        raise CheckpointError(
            f"{error}. Training goes on from the newest checkpoint: remove "
            f"{folder_of(folder, step)} to {then}, or take another folder"
        ) from None
    asked, was = trainer.scale, about["scale"]
    if asked is not None and was:
        # it moves as it is asked to, from where that of the checkpoint was
        at = min(max(was["scale"], asked.floor), asked.ceiling)
        counts = {name: was[name] for name in ("good", "stuck", "skipped")}
        trainer.scale = replace(asked, scale=at, **counts)
    trainer.resume(about["updates"])
    return [*map(tuple, mine["history"])]


def _identity(config: Any) -> dict[str, Any]:
    """What makes a training this one, whatever its layout. Rates and batches may change."""
    model, states = config.model, config.recipe.states
    facts = asdict(model) | {"kv_heads": model.head_counts[1], "ffn": model.inner}
    facts |= {
        "dtype": config.dtype,
        "seed": config.seed,
        "data's vocabulary": config.data.vocabulary,
    }
    facts |= {f"bytes of {s.tensor}": s.bytes for s in states if s.tensor != "gradients"}
    return {name: int(n) if is_whole(n) else n for name, n in facts.items()}


def _about(checkpoint: Checkpoint, config: Any) -> dict[str, Any]:
    """What was saved along. Raises CheckpointError if it is of another training."""
    about, here = checkpoint.about(), _identity(config)
    if not {"training", "updates", "scale"} <= set(about):
        raise CheckpointError(f"{checkpoint} was not written by a training")
    there = about["training"]
    other = [
        f"{name} is {there.get(name, 'none')} there and {here.get(name, 'none')} here"
        for name in {**here, **there}
        if there.get(name, "none") != here.get(name, "none")
    ]
    if other:
        raise CheckpointError(
            f"{checkpoint} is of another training: {', '.join(other)}; pass what was passed there"
        )
    return about


def _pieces(trainer: Trainer, tensor: str, unit: str) -> dict[str, tuple[str, TensorSlice]]:
    """Name in the checkpoint -> (name in the unit, what this rank holds of it)."""
    before = "" if tensor == "weights" else f"{tensor} of "
    return {
        f"{before}{unit}.{name}": (name, tiling.slice((trainer.slice,)))
        for name, tiling in trainer.tilings[unit].items()
    }
