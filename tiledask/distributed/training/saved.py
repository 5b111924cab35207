"""A training written down and taken up again, under any other (dp, tp, pp) and ZeRO.

    step-00000040/             the checkpoint: whole weights, and whole optimizer states
    .records-5f1e.../40-0      rank 0: what it measured since its last file, for the same call to
                     40-1      rank 1  go on when a worker was lost; its client removes the folder

Arrays have names ("layer 0.mlp.w_1", "momentum of layer 0.mlp.w_1"). Each tensor rank writes its
block; what ZeRO has sharded is gathered before, so that nobody reads a layout out of it.

What is not layout is written down too, and must be the same: a table of Adam's momentum would fit
SGD's, and eight heads' weights four heads', and the numbers would be wrong without a word.
"""

import os
import pickle
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tiledask.distributed.checkpoints import (
    Checkpoint,
    TensorSlice,
    open_checkpoint,
    save_checkpoint,
    steps_in,
)
from tiledask.distributed.checkpoints.write import folder_of
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training.trainer import Trainer
from tiledask.errors import CheckpointError
from tiledask.plan.program.making.layers import TENSOR

__all__ = ["History", "load", "new_folder", "newest_step", "save"]

WRITES = 1.0
"""Seconds that ranks which go on have to write their history, when another one was lost."""


def save(
    trainer: Trainer,
    config: Any,
    step: int,
    loss: float,
    whole: Mapping[tuple[str, str], Mapping[str, Any]],
) -> None:
    """Write the checkpoint of a TrainingConfig after so many steps, of this loss; all ranks call
    this. ``whole``: (tensor class, unit) -> this rank's arrays by name, none sharded by ZeRO."""
    if config.attempt and folder_of(config.folder, step).exists():
        return  # by an attempt that a lost worker has ended
    scale = trainer.guard.scale
    arrays, pieces = {}, {}
    for (tensor, unit), found in whole.items():
        for name, (weight, piece) in _pieces(trainer, tensor, unit).items():
            arrays[name], pieces[name] = found[weight], piece
    about = {
        "loss": loss,
        "updates": trainer.updates,
        "scale": asdict(scale) if scale else None,
        "training": _identity(config),
    }
    save_checkpoint(trainer.rank, config.folder, step, arrays, pieces, about)


def load(trainer: Trainer, config: Any) -> None:
    """Take weights and states from the checkpoint that a TrainingConfig goes on from.

    Raises CheckpointError if that is damaged, or of another training.
    """
    folder, first = config.folder, config.first
    try:
        checkpoint = open_checkpoint(folder, first)
        about = _about(checkpoint, config)
        for tensor, unit in _kept(trainer):
            named = _pieces(trainer, tensor, unit)
            read = checkpoint.read({name: piece for name, (_, piece) in named.items()})
            arrays = {w: trainer.rank.on_device(read[name]) for name, (w, _) in named.items()}
            trainer.put(tensor, unit, arrays)
    except CheckpointError as error:
        before = [step for step in steps_in(folder) if step < first]
        then = f"go on from step {before[-1]}" if before else "begin anew"
        raise CheckpointError(
            f"{error}. Training goes on from the newest checkpoint: remove "
            f"{folder_of(folder, first)} to {then}, or take another folder"
        ) from None
    asked, was = trainer.guard.scale, about["scale"]
    if asked is not None and was:
        # it moves as it is asked to, from where that of the checkpoint was
        at = min(max(was["scale"], asked.floor), asked.ceiling)
        counts = {name: was[name] for name in ("good", "stuck", "skipped")}
        trainer.guard.scale = replace(asked, scale=at, **counts)
    trainer.resume(about["updates"])


def _identity(config: Any) -> dict[str, Any]:
    """What makes a training this one, whatever its layout. Rates and batches may change."""
    model, usual = config.model, {each.name: each.default for each in fields(config.model)}
    facts = asdict(model) | {"kv_heads": model.head_counts.kv, "ffn": model.inner}
    special = {name: facts.pop(name) for name in ("eps", "base", "head_dim", "learned")}
    facts = {name: n if isinstance(n, bool) else int(n) for name, n in facts.items()}
    facts |= {"dtype": config.dtype, "seed": config.seed}
    facts["data's vocabulary"] = config.data.vocabulary
    facts |= {name: n for name, n in special.items() if n != usual[name]}
    kept = [s for s in config.recipe.states if s.tensor != "gradients"]
    return facts | {f"bytes of {s.tensor}": s.bytes for s in kept}


def _about(checkpoint: Checkpoint, config: Any) -> dict[str, Any]:
    """What was saved along. Raises CheckpointError if it is of another training."""
    about, here = checkpoint.about, _identity(config)
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


def _kept(trainer: Trainer) -> Iterator[tuple[str, str]]:
    """(tensor class, unit) of all that a step leaves to the next."""
    for tensor, by_unit in trainer.arrays.items():
        if tensor != "gradients":
            yield from ((tensor, unit) for unit in by_unit)


def _pieces(trainer: Trainer, tensor: str, unit: str) -> dict[str, tuple[str, TensorSlice]]:
    """Name in the checkpoint -> (name in the unit, what this rank holds of it)."""
    number = trainer.rank.group(TENSOR).rank
    before = "" if tensor == "weights" else f"{tensor} of "
    return {
        f"{before}{unit}.{name}": (name, tiling.slice((number,)))
        for name, tiling in trainer.tilings[unit].items()
    }


# -- what was measured -----------------------------------------------------------------------------


class History:
    """What one rank measured. ``growing``: lists that are only added to; an empty ``folder`` keeps
    nothing."""

    def __init__(self, folder: str, rank: Rank, growing: Sequence[list[Any]]) -> None:
        self.folder, self.rank, self.growing = folder, rank, growing
        self._saw = [0] * len(growing)

    def save(self, step: int) -> None:
        """Write what came since the last file; called after the checkpoint of ``step``."""
        if not self.folder:
            return
        more = [each[saw:] for each, saw in zip(self.growing, self._saw, strict=True)]
        self._saw = list(map(len, self.growing))
        counts = [
            (port.members, port.counts.stream, port.counts.came, port.counts.messages)
            for port in list(self.rank.transport.ports.values())
        ]
        path = Path(self.folder) / f"{step}-{self.rank.index}"
        new = path.with_suffix(".new")
        new.write_bytes(pickle.dumps((more, self.rank.barriers, counts)))
        os.replace(new, path)

    def load(self, step: int) -> None:
        """Add what was written up to ``step``."""
        if not self.folder:
            return
        for number, rank in sorted(_files(self.folder)):
            if rank != self.rank.index or number > step:
                continue
            path = Path(self.folder) / f"{number}-{rank}"
            more, self.rank.barriers, counts = pickle.loads(path.read_bytes())
            for grown, each in zip(self.growing, more, strict=True):
                grown.extend(each)
            for members, stream, came, messages in counts:
                port = self.rank.transport.port(members, stream)
                port.counts.came[:], port.counts.messages[:] = came, messages
        self._saw = list(map(len, self.growing))


def new_folder(folder: str, run: str) -> str:
    """An empty folder beside the checkpoints in ``folder``; what killed clients left goes."""
    for old in Path(folder).glob(".records-*"):
        shutil.rmtree(old, ignore_errors=True)
    made = Path(folder) / f".records-{run}"
    made.mkdir(mode=0o700)
    return str(made)


def newest_step(folder: str, history: str, ranks: int, first: int) -> int:
    """The step from which all ranks can go on: of the newest checkpoint after ``first`` of which
    each has written its history, or ``first``."""
    steps, deadline = steps_in(folder), monotonic() + WRITES
    while True:
        there = _files(history)
        able = [s for s in steps if all((s, rank) in there for rank in range(ranks))]
        found = max(able, default=first)
        if found >= max(steps, default=first) or monotonic() > deadline:
            return found
        sleep(0.05)


def _files(folder: str) -> set[tuple[int, int]]:
    """(step, rank) of each file that is whole."""
    found = (re.fullmatch(r"(\d+)-(\d+)", name) for name in os.listdir(folder))
    return {(int(match[1]), int(match[2])) for match in found if match}
