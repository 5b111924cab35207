"""Programs of ranks: rows that a convolution borrows, a skip connection."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tiledask.errors import PlacementError, ProgramError
from tiledask.lab import plots
from tiledask.lab.exercises.exercise import exercise, instance, none_wrong
from tiledask.lab.judging import Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.collectives.rows import split_rows
from tiledask.plan.program.graph import LinePlace, graph
from tiledask.plan.program.instructions import Do, Recv
from tiledask.plan.program.program import Program
from tiledask.plan.whole import is_whole
from tiledask.tile import layers as tile

__all__ = ["borrowed_rows", "skip_connection"]

# -- rows ------------------------------------------------------------------------------------------

Loans = dict[int, tuple[int, ...]]


def _loans(answer: Any) -> Loans | None:
    loans = {rank: tuple(mine) for rank, mine in answer.items()}
    return loans if all(map(is_whole, sum(loans.values(), ()))) else None


def _borrowed(loans: Loans | None, rows: Sequence[int], *_: Any, **_more: Any) -> Figure:
    lanes = {}
    for rank, ends in enumerate(pairwise((0, *accumulate(rows)))):
        borrowed = [("borrowed", row, row + 1) for row in (loans or {}).get(rank, ())]
        lanes[f"rank {rank}"] = [("own", *ends), *borrowed]
    return plots.slots(lanes, xlabel="row of the image", title="Your loans")


@exercise("borrowed-rows", _loans, _borrowed)
def borrowed_rows(
    loans: Loans,
    rows: Sequence[int] = (3, 3, 3, 2),
    size: int = 5,
    stride: int = 2,
    padding: tuple[int, int] = (2, 2),
) -> list[Target]:
    """Say which rows of others each rank needs for its windows: rank -> rows of the whole image.
    A window belongs to the rank that has its middle row."""
    split = split_rows(rows, size, stride, padding)
    ends, outs = (0, *accumulate(split.rows)), (0, *accumulate(split.out))
    if set(loans) - {*range(len(rows))}:
        raise PlacementError(f"ranks are 0 to {len(rows) - 1}, got {sorted(map(str, loans))}")
    fewest, missing = 0, 0
    lacking: list[str] = []
    idle: list[str] = []
    for rank, slab in enumerate(split.slabs):
        own, mine = range(*ends[rank : rank + 2]), loans.get(rank, ())
        others = {*range(ends[-1])} - {*own}
        if not others.issuperset(mine) or len(set(mine)) < len(mine):
            raise PlacementError(
                f"a rank borrows rows from 0 to {ends[-1] - 1} that it does not have, each "
                f"once: rank {rank} has {own.start} to {own.stop - 1}, got {list(mine)}"
            )
        needed = {*range(slab.start, slab.stop)} & others
        fewest += len(needed)
        for row in sorted(needed - {*mine})[:1]:  # the first of all is named, the rest are not
            lacking.append(f"rank {rank} lacks {f'row {row}' if not lacking else 'rows, too'}")
        idle += [f"no window of rank {rank} reads row {row}" for row in sorted({*mine} - needed)]
        here = np.full((1, 1, ends[-1], size), np.nan)  # whatever it neither has nor borrows
        here[:, :, [*own, *mine]] = 1
        w = np.ones((1, 1, size, size))
        y, _ = tile.conv2d(here, w, stride=(stride, 1), padding=(padding, (0, 0)))
        missing += int(np.isnan(y[0, 0, outs[rank] : outs[rank + 1]]).any(axis=1).sum())
    count = sum(map(len, loans.values()))
    return [
        none_wrong("output rows that lack an input row", lacking, missing),
        Target("rows borrowed", fewest, count, fewest, why="; ".join(idle)),
    ]


# -- a skip connection -----------------------------------------------------------------------------

MICROBATCHES, MESSAGE, KEPT = 4, 1024, 4096
NEEDED = ("0F 1F", "1F 2F", "2F 2B", "2B 1B", "1F 1B", "1B 0B", "0F 0B", "0F 2F", "2B 0B")
"""What is made, and which action needs it; the last two by the skip connection."""


@exercise("skip-connection", instance(str | Program))
def skip_connection(answer: str | Program) -> list[Target]:
    """Write the program of three ranks, 1F1B with 4 micro-batches, in which the last one reads the
    first one's output as well. It is checked as every program is, and what each action reads is
    followed back over the messages to the action that made it."""
    program = (Program.from_text(answer) if isinstance(answer, str) else answer).check()
    if program.ranks != 3:
        raise ProgramError(f"the pipeline has 3 ranks, this program has {program.ranks}")
    for rank in range(3):
        for name, nbytes in program.role(rank).nbytes.items():
            wanted = KEPT if name.startswith("kept") else MESSAGE
            if nbytes != wanted:
                raise ProgramError(f"{name} of rank {rank} has {nbytes:,} B; here {wanted:,} B")
    lacks = [f"{user} reads nothing that {maker} made" for maker, user in _lacks(program)]
    sent, held = program.traffic.sent, program.memory.per_place
    often, fullest = sent.index(max(sent)), max(held, key=lambda rank: held[rank])
    by, least = f"rank {often} sends {sent[often]:,}", 6 * MICROBATCHES * MESSAGE
    on, most = f"that is rank {fullest}", 3 * KEPT + 2 * MESSAGE
    return [
        none_wrong("inputs that actions lack", lacks[:1], len(lacks)),
        Target("bytes that all ranks send", least, sum(sent), least, why=by),
        Target("bytes on the fullest rank", most, held[fullest], why=on),
        Target("seconds until the end", 18, program.timeline({"F": 1.0, "B": 2.0}).makespan),
    ]


def _lacks(program: Program) -> list[tuple[str, str]]:
    """(who made it, who needs it and does not read it), by micro-batch: ("0F.3", "2F.3")."""
    places = [place for node in graph(program) for place in node.places]
    made = {(at.rank, at.frame, name): at for at in places for name in at.instruction.writes}

    def action(at: LinePlace) -> str:
        return f"{at.rank}{getattr(at.instruction, 'kernel', ' ')[0].upper()}.{at.frame}"

    def maker(rank: int, frame: int, name: str) -> str:
        at = made[rank, frame, name]
        if isinstance(at.instruction, Recv):
            return maker(program.peer(rank, at.instruction), frame, name)
        return action(at)

    done = [at for at in places if isinstance(at.instruction, Do)]
    reads = {(maker(at.rank, at.frame, n), action(at)) for at in done for n in at.instruction.reads}
    pairs = [tuple(pair.split()) for pair in NEEDED]
    wanted = [(f"{one}.{m}", f"{other}.{m}") for m in range(MICROBATCHES) for one, other in pairs]
    return [pair for pair in wanted if pair not in reads]
