"""Saving: every rank writes its part at once, and the checkpoint is whole or not there at all.

    rank 0    says ---.  writes its boxes ---.  index, to the disk, rename ---.
    rank 1    says ---+  writes its boxes ---+                                +--- done
    rank 2    says ---'  writes its boxes ---'                                '
              what it holds

What several ranks hold is written by one of them: of those that hold the same box, by the one
that has least to write so far. Until the rename the folder has a name that nobody opens.
"""

import json
import os
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from tiledask.distributed.checkpoints import index
from tiledask.distributed.checkpoints.index import folder_of, whole
from tiledask.distributed.out_of_core.disk import on_disk, sync
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.rank import Rank
from tiledask.errors import CheckpointError
from tiledask.plan.products.regions import Region, TensorSlice, region_size
from tiledask.tile.backend import to_numpy

__all__ = ["save_checkpoint"]

Held = dict[str, tuple[tuple[int, ...], str, tuple[Region, ...]]]
"""What one rank holds, by name: (shape of the array, its type, boxes of it)."""


def save_checkpoint(
    rank: Rank,
    folder: str | os.PathLike[str],
    step: int,
    arrays: Mapping[str, Any],
    pieces: Mapping[str, TensorSlice] | None = None,
    about: dict[str, Any] | None = None,
) -> Path:
    """The folder of the checkpoint, once all of it is on the disk; called by all ranks of a run.

    rank
        What the rank function was given; all its ranks share ``folder``, by one file system.
    arrays
        What this rank holds, by name; ranks of other pipeline stages hold other names.
    pieces
        Which part of the array of this name that is; whole arrays if left out.
    about
        What goes along of this rank: the loss scale, the seed of the data, the loss. JSON holds it.

    All ranks raise CheckpointError if the step is there already, if two ranks disagree about an
    array's shape or type, or if they do not hold all of it together.

    >>> import tempfile
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.checkpoints import open_checkpoint
    >>> def program(rank, folder):
    ...     return save_checkpoint(rank, folder, 7, {"w": np.arange(3)}).name
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run_threads(program, 2, folder).results
    ...     open_checkpoint(folder).read()["w"].tolist()
    ['step-00000007', 'step-00000007']
    [0, 1, 2]
    """
    pieces = {name: whole(a.shape) for name, a in arrays.items()} if pieces is None else pieces
    final = folder_of(folder, step)
    partial = final.with_name(f"{final.name}.unfinished")
    with rank.label("checkpoint"):
        everyone = rank.group()
        known, writers = _writers(_gathered(everyone, _held(arrays, pieces)))
        if rank.index == 0:
            if final.exists():
                raise CheckpointError(
                    f"{final} is there already; remove it, or save to another folder"
                )
            shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
            with on_disk(final, CheckpointError):
                partial.mkdir(parents=True)
        everyone.barrier()
        mine = [
            (name, box, view)
            for name, local in arrays.items()
            for box, view in pieces[name].views(local)
            if writers[name, box] == rank.index
        ]
        _write_boxes(partial / f"rank-{rank.index}.zip", mine, json.dumps(about or {}))
        everyone.barrier()
        if rank.index == 0:
            stored: dict[str, list[Any]] = {name: [*each, []] for name, each in known.items()}
            for (name, box), writer in writers.items():
                stored[name][-1].append((writer, box))
            body = {"step": step, "arrays": stored}
            with on_disk(final, CheckpointError):
                with ZipFile(partial / index.FILE, "w") as file:
                    file.writestr(index.BODY, json.dumps(body))
                sync(partial / index.FILE)
                sync(partial)
                os.rename(partial, final)
                sync(final.parent)
        everyone.barrier()
    return final


def _held(arrays: Mapping[str, Any], pieces: Mapping[str, TensorSlice]) -> Held:
    """What this rank brings: arrays of the shapes that their pieces have here."""
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    if shapes != (asked := {name: piece.local_shape for name, piece in pieces.items()}):
        raise CheckpointError(
            f"every array has a piece, which says what part of it is here: arrays are {shapes}, "
            f"their pieces {asked}; make the pieces for this rank"
        )
    return {
        name: (pieces[name].shape, x.dtype.name, pieces[name].boxes) for name, x in arrays.items()
    }


def _gathered(everyone: Group, mine: Held) -> list[Held]:
    """What every rank brings, by rank, gathered as text: equal values are equally many bytes."""
    text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
    ends = np.cumsum([0, *everyone.all_gather(np.array([text.size]))])
    every = everyone.all_gather(text).tobytes()
    found = (json.loads(every[a:b]) for a, b in pairwise(ends))
    return [{name: _tuples(value) for name, value in each.items()} for each in found]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _writers(held: list[Held]) -> tuple[dict[str, Any], dict[tuple[str, Region], int]]:
    """(shape and type by name, the rank that writes each box: of those that hold it the one with
    least to write so far)."""
    holders = dict[tuple[str, Region], list[int]]()
    known: dict[str, tuple[tuple[int, ...], str]] = {}
    for rank, each in enumerate(held):
        for name, (shape, dtype, boxes) in each.items():
            if (there := known.setdefault(name, (shape, dtype))) != (shape, dtype):
                raise CheckpointError(
                    f"{name!r} is {there[1]} {list(there[0])} on one rank and {dtype} "
                    f"{list(shape)} on rank {rank}; one name is one array"
                )
            for box in boxes:
                holders.setdefault((name, box), []).append(rank)
    for name, (shape, _) in known.items():
        index.check_cover(name, shape, [box for other, box in holders if other == name])
    load, writers = [0] * len(held), {}
    for each_box, ranks in sorted(holders.items(), key=lambda item: -region_size(item[0][1])):
        writers[each_box] = writer = min(ranks, key=lambda rank: (load[rank], rank))
        load[writer] += region_size(each_box[1])
    return known, writers


def _write_boxes(path: Path, mine: list[tuple[str, Region, Any]], about: str) -> None:
    """None, once each box of ``mine`` is on the disk, in the file at ``path``."""
    with on_disk(path, CheckpointError), open(path, "wb") as raw:
        with ZipFile(raw, "w") as file:
            file.writestr(index.ABOUT, about)
            for name, box, view in mine:
                host = to_numpy(view)
                # the index names types without their byte order
                host = np.ascontiguousarray(host, host.dtype.newbyteorder("="))
                file.writestr(f"{name} {box}", host.reshape(-1).view(np.uint8).data)
        raw.flush()
        os.fsync(raw.fileno())
