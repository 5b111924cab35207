"""A training written down and taken up again, under any other (dp, tp, pp) and ZeRO.

What is saved are whole weights and whole optimizer states by name ("layer 0.mlp.w_1",
"momentum of layer 0.mlp.w_1"). Each tensor rank writes its block; what ZeRO has sharded is
gathered before (plan/program/making/training.py), so that nobody reads a layout out of it.

What is not layout is written down too, and must be the same: a table of Adam's momentum would fit
SGD's, and eight heads' weights four heads', and the numbers would be wrong without a word.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from tiledask.distributed.checkpoints import (
    Checkpoint,
    TensorSlice,
    open_checkpoint,
    save_checkpoint,
    steps_in,
)
from tiledask.distributed.checkpoints.write import folder_of
from tiledask.distributed.training.trainer import Trainer
from tiledask.errors import CheckpointError
from tiledask.plan.program.making.layers import TENSOR

__all__ = ["load", "save"]


def save(
    trainer: Trainer,
    job: Any,
    step: int,
    again: bool,
    loss: float,
    whole: Mapping[tuple[str, str], Mapping[str, Any]],
) -> None:
    """Write the checkpoint of a TrainingConfig after so many steps, of this loss; all ranks call
    this.

    ``again``: what was written may be there, by an attempt that a lost worker has ended.
    ``whole``: (tensor class, unit) -> this rank's arrays by name, none of them sharded by ZeRO.
    """
    if again and folder_of(job.folder, step).exists():
        return
    scale = trainer.guard.scale
    arrays, pieces = {}, {}
    for (tensor, unit), found in whole.items():
        for name, (weight, piece) in _pieces(trainer, tensor, unit).items():
            arrays[name], pieces[name] = found[weight], piece
    about = {
        "loss": loss,
        "updates": trainer.updates,
        "scale": asdict(scale) if scale else None,
        "training": _identity(job),
    }
    save_checkpoint(trainer.rank, job.folder, step, arrays, pieces, about)


def load(trainer: Trainer, job: Any) -> None:
    """Take weights and states from the checkpoint that a TrainingConfig goes on from.

    Raises CheckpointError if that is damaged, or of another training.
    """
    try:
        checkpoint = open_checkpoint(job.folder, job.first)
        about = _about(checkpoint, job)
        for tensor, unit in _kept(trainer):
            named = _pieces(trainer, tensor, unit)
            read = checkpoint.read({name: piece for name, (_, piece) in named.items()})
            arrays = {
                weight: trainer.rank.on_device(read[name]) for name, (weight, _) in named.items()
            }
            trainer.put(tensor, unit, arrays)
    except CheckpointError as error:
        # what happens where the checkpoint is gone
        before = [step for step in steps_in(job.folder) if step < job.first]
        then = f"go on from step {before[-1]}" if before else "begin anew"
        way_out = (
            f"Training goes on from the newest checkpoint: remove "
            f"{folder_of(job.folder, job.first)} to {then}, or take another folder"
        )
        raise CheckpointError(f"{error}. {way_out}") from None
    if trainer.guard.scale is not None and about["scale"]:
        # it moves as it is asked to, from where that of the checkpoint was
        asked, was = trainer.guard.scale, about["scale"]
        at = min(max(was["scale"], asked.floor), asked.ceiling)
        counts = {name: was[name] for name in ("good", "stuck", "skipped")}
        trainer.guard.scale = replace(asked, scale=at, **counts)
    trainer.resume(about["updates"])


def _identity(job: Any) -> dict[str, Any]:
    """What makes a training this one, whatever its layout. Rates and batches may change."""
    states = {f"bytes of {s.tensor}": s.bytes for s in job.recipe.states if s.tensor != "gradients"}
    kv, inner = job.model.block.heads.kv, job.model.inner
    facts = {"dtype": str(job.dtype), "seed": job.seed, "data's vocabulary": job.data.vocabulary}
    model = asdict(job.model) | {"kv_heads": kv, "ffn": inner}
    usual = {each.name: each.default for each in fields(job.model)}
    numbers = {name: model.pop(name) for name in ("eps", "base")}
    facts |= {name: n for name, n in numbers.items() if n != usual[name]}
    return (
        {name: n if isinstance(n, bool) else int(n) for name, n in model.items()} | facts | states
    )


def _about(checkpoint: Checkpoint, job: Any) -> dict[str, Any]:
    """What was saved along. Raises CheckpointError if it is of another training."""
    about, here = checkpoint.about, _identity(job)
    if not {"training", "updates", "scale"} <= set(about):
        raise CheckpointError(f"{checkpoint} was not written by a training")
    # what a model had no field for, when it was written, it had switched off
    off = {each.name: each.default for each in fields(job.model) if each.default in (True, False)}
    there = off | about["training"]
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


def _kept(trainer: Trainer) -> Iterator[tuple[str, str]]:
    """(tensor class, unit) of all that a step leaves to the next."""
    for tensor, by_unit in trainer.arrays.items():
        if tensor != "gradients":
            yield from ((tensor, unit) for unit in by_unit)


def _pieces(trainer: Trainer, tensor: str, unit: str) -> dict[str, tuple[str, TensorSlice]]:
    """Name in the checkpoint -> (name in the unit, what this rank holds of it)."""
    found, group, before = (
        {},
        trainer.rank.group(TENSOR),
        "" if tensor == "weights" else f"{tensor} of ",
    )
    for name, tiling in trainer.tilings[unit].items():
        found[f"{before}{unit}.{name}"] = name, tiling.slice((group.rank,))
    return found
