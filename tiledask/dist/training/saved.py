"""A training written down and taken up again, under any other (dp, tp, pp) and ZeRO.

What is saved are whole weights and whole optimizer states by name ("layer 0.mlp.w_1",
"momentum of layer 0.mlp.w_1"). Each tensor rank writes its block; what ZeRO has dealt out is
gathered before, a unit at a time, so that nobody reads a layout out of a checkpoint.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tiledask.dist.checkpoints import Piece, open_checkpoint, save_checkpoint, sharded, whole
from tiledask.dist.ranks.rank import Rank
from tiledask.dist.training.stages import Stages
from tiledask.plan.products.placement import Shard
from tiledask.tile.optimizers import LossScale

__all__ = ["load", "save"]


def save(rank: Rank, stages: Stages, folder: str, step: int, about: dict[str, Any]) -> None:
    """Write the checkpoint of ``step``; all ranks call this."""
    arrays, pieces = {}, {}
    with rank.label("save"):
        for tensor, unit in _kept(stages):
            found = stages.states.gathered(tensor, unit)
            for name, (weight, piece) in _pieces(stages, tensor, unit).items():
                arrays[name], pieces[name] = found[weight], piece
        scale = stages.guard.scale
        about |= {"updates": stages.states.steps, "scale": asdict(scale) if scale else None}
        save_checkpoint(rank, folder, step, arrays, pieces, about)


def load(stages: Stages, folder: str, step: int) -> None:
    """Take weights and states from the checkpoint of ``step``."""
    checkpoint, rank = open_checkpoint(folder, step), stages.rank
    about = checkpoint.about
    for tensor, unit in _kept(stages):
        named = _pieces(stages, tensor, unit)
        read = checkpoint.read({name: piece for name, (_, piece) in named.items()})
        arrays = {weight: rank.on_device(read[name]) for name, (weight, _) in named.items()}
        stages.states.put(tensor, unit, arrays)
    stages.states.steps = about["updates"]
    if stages.guard.scale is not None and about["scale"]:
        stages.guard.scale = LossScale(**about["scale"])


def _kept(stages: Stages) -> Iterator[tuple[str, str]]:
    """(tensor class, unit) of all that a step leaves to the next."""
    for tensor, by_unit in stages.states.arrays.items():
        if tensor != "gradients":
            yield from ((tensor, unit) for unit in by_unit)


def _pieces(stages: Stages, tensor: str, unit: str) -> dict[str, tuple[str, Piece]]:
    """Name in the checkpoint -> (name in the unit, what this rank holds of it)."""
    found, group, before = {}, stages.flow.group, "" if tensor == "weights" else f"{tensor} of "
    for name, parameter in stages.flow.model.parameters(unit).items():
        lay, piece = stages.layouts[unit][name], whole(parameter.shape)
        if isinstance(lay.placement, Shard):
            piece = sharded(parameter.shape, lay.placement.dim, lay.shards, group.rank)
        found[f"{before}{unit}.{name}"] = name, piece
    return found
